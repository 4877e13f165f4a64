"""Refuse an early start when the application would start before a package's unit that somebody has edited in place.

In an early start, the application starts before systemd runs. The application may start before the units that
pack/harmless.py lists, because QuickStart knows what these units do in the form in which the packages deliver them. If
somebody has changed the file of such a unit, the unit's commands may do something else, for example load a packet
filter. In this case, the application must not start before this unit. Apart from reading files of the image, the
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.delivered import changed
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Trace
from quickstart.pack.earlier import units_before


def refuse_edited(traces: Sequence[Trace], units: Iterable[str], root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when the reference boot started a service before one of ``units``, and the service's
    unit file in the image differs from the file that its package has delivered. The services in ``units`` themselves do
    not lead to the error, because they start early.
    """
    stack = frozenset(units)
    files: dict[PurePosixPath, str] = {}
    for trace in traces:
        loaded = {each.name: each for each in trace.loaded.units}
        for name in {name for unit in sorted(stack) for name in units_before(loaded, unit)} - stack:
            path = PurePosixPath(loaded[name].file or "/")
            canonical = root.resolve(path).canonical if path.is_absolute() else None
            if name.endswith(".service") and canonical is not None and root.host(canonical).is_file():
                files[canonical] = name
    for path in sorted(changed(root, files)):
        raise UnsupportedUnitError(
            f"{', '.join(sorted(stack))} cannot be started early: {files[path]} comes before it, and {path} is not as"
            " its package has delivered it",
            hint="install the package again, and put changes into a drop-in",
        )
