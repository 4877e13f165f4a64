"""Write the result of `quickstart trace -o`. The result is a directory that has only ``start-set.json``. So this
directory is not an artefact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import START_SET
from quickstart.errors import OutputExistsError
from quickstart.model import StartSet, Trace


def check_traced_place(out: Path) -> None:
    """Raise OutputExistsError when ``keep_traced`` must not replace ``out``. Raise BadInputError when the
    parent directory of ``out`` is missing.
    """
    with output.settled(out):
        _refuse_others(out)


def keep_traced(start_set: StartSet, traces: Sequence[Trace], out: Path) -> None:
    """Write ``start-set.json`` into a new directory ``out``. An existing directory ``out`` is replaced if the directory
    is empty or has only a file start-set.json. Otherwise, OutputExistsError is raised.
    """

    def refuse() -> bool:
        _refuse_others(out)
        return False

    with output.new_directory(out, refuse) as directory:
        artefacts.write_start_set(directory, start_set, traces)


def _refuse_others(out: Path) -> None:
    if out.is_dir():
        if {path.name for path in out.iterdir()} <= {START_SET}:
            return
        raise OutputExistsError(f"{out} exists and holds something else", hint="choose another -o")
    if out.exists():
        raise OutputExistsError(f"{out} exists and is not a directory", hint="choose another -o")
