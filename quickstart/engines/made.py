"""Make an artefact from a Packing, which has everything that the initramfs is made from. Remember in the store which
artefacts we have made ourselves.

The build key in a manifest is computed from public facts. So somebody who gives us an artefact can write the key that
our own build would have. But only we can write records into our store. For each artefact that we make, the store gets a
record. The store finds this record by the SHA-256 of each file of the artefact, except the root disk and run.sh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.sums import made_digests
from quickstart.errors import BadInputError
from quickstart.model import Artefact
from quickstart.pack.packing import Packed, Packing, pack
from quickstart.store.context import Context
from quickstart.store.store import Store

_STAGE = "made"


def make_artefact(
    out: Path,
    packing: Packing,
    facts: Callable[[Packed, Path], artefacts.Made],
    context: Context,
    *,
    keep_present: Callable[[], bool],
) -> Artefact:
    """Write the initramfs of ``packing`` and all other files of an artefact into a new directory. The new directory
    then replaces ``out``. After an error, ``out`` is unchanged.

    This function calls ``facts`` with the packed initramfs and the new directory. ``facts`` may put the artefact's disk
    into the new directory. Then ``facts`` returns the facts from which this function writes the artefact's manifest and
    its other files. At the end, this function calls ``keep_present`` if ``out`` exists. If ``keep_present`` returns
    True, ``out`` stays (see the argument ``keep`` of `output.new_directory`).
    """
    with output.new_directory(out, keep_present) as directory:
        with context.progress.step("initramfs"):
            packed = pack(packing, directory / "initramfs.img")
        made = facts(packed, directory)
        with context.progress.step("image"):
            _write(directory, made, context.store)
    with output.settled(out):
        return artefacts.load(out)


def _write(directory: Path, made: artefacts.Made, store: Store) -> None:
    """Write OUT's files into ``directory`` (see ``write`` in artefact/directory.py), and record in the store that we
    have made these files.
    """
    artefacts.write(directory, made)
    store.get_or_make(_STAGE, _inputs(directory), _nothing)


def up_to_date(out: Path, build_key: str, force: bool, context: Context) -> Artefact | None:
    """The artefact at ``out``, if it is equal to the artefact that the build with the key ``build_key`` would make (see
    the function ``check_output`` in artefact/directory.py). Otherwise, the result is None. Show a note when the store
    has no record that we have made the artefact.
    """
    present = artefacts.check_output(out, build_key, force)
    if present and not is_remembered(out, context.store):
        context.progress.note(
            f"{out} was there already, and this store has no record of its build: if somebody else has given it to you, "
            "--force makes it anew"
        )
    return present


def is_remembered(directory: Path, store: Store) -> bool:
    """Whether the store has a record that we have made exactly the files of the artefact in ``directory``. The result
    is False for a damaged artefact.
    """
    try:
        return store.use(_STAGE, _inputs(directory)) is not None
    except BadInputError:
        return False


def _inputs(directory: Path) -> Mapping[str, object]:
    return {"files": made_digests(directory)}


def _nothing(directory: Path) -> None:
    """Write no files into ``directory``. The entry in the store is the record, even without files."""
