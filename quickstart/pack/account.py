"""Check that systemd has loaded the application's units from the files that the unit reader (inspect/unit) has read.

The unit reader takes a unit's settings from the image. But a generator or another program of a boot may add unit files
in /run, and systemd may search the directories of unit files in another order than the unit reader. An early start uses
only the settings that the unit reader has read. So an early start would lack the settings in other files, for example
settings that restrict the unit. The reference boot, which is a traced boot of the image, shows the files that systemd
has loaded. Apart from looking up names in the image, the functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import drop_ins_of, unit_file
from quickstart.inspect.unit.initscripts import SCRIPTS
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.neighbours import is_another_services_socket
from quickstart.model import Trace
from quickstart.model.started import LoadedUnit
from quickstart.parse.printable import brief

_ROOT_SLICE = "-.slice"
# systemd-sysv-generator(8) makes the unit of an init script there. The reader makes the same unit.
_OF_SCRIPTS = ("/run/systemd/generator.late/", "/run/systemd/generator/")


def refuse_other_files(traces: Sequence[Trace], unit: UnitStart, root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when systemd has loaded a unit of the stack from other files than the unit reader has
    read. The stack is the set of units that start early together. This function also compares the files of the slices
    that contain these units, and of the socket units that pass sockets to these units. This function also raises the
    error when a unit of the stack is ordered after a socket unit of another service.
    """
    names = tuple(dict.fromkeys(name for each in unit.all_units for name in _names(each)))
    for trace in traces:
        loaded = {each.name: each for each in trace.loaded.units}
        # PID 1 binds the sockets of the whole stack before it starts any of the services.
        own = {socket.unit for each in unit.all_units for socket in each.sockets}
        for each in unit.all_units:
            _refuse_sockets(each, loaded, own)
        for name in names:
            if name in loaded and (other := next(_others(root, loaded[name]), "")):
                raise UnsupportedUnitError(
                    f"{unit.unit} cannot be started early: in the reference boot, {name} had {brief(other)},"
                    " which the image does not have or which has no effect there",
                    hint="remove from the image what makes this file at boot, such as a generator",
                )


def _refuse_sockets(unit: UnitStart, loaded: Mapping[str, LoadedUnit], own: Collection[str]) -> None:
    """Raise UnsupportedUnitError when the unit is ordered after a socket unit that does not belong to the stack, which
    is the set of units that start early together. In this case, the application may connect to the socket before
    systemd makes it. ``own`` has the names of the stack's socket units. The socket units of systemd, D-Bus and syslog
    do not lead to the error.
    """
    after = loaded[unit.unit].after if unit.unit in loaded else frozenset()
    for name in sorted(after - {*own}):
        if is_another_services_socket(name):
            raise UnsupportedUnitError(
                f"{unit.unit} cannot be started early: it comes after {name}, which comes with systemd",
                hint="name the service of that socket in `units` of the profile, so that both start early;"
                " or remove the socket from After= and Requires= in a unit file of the image",
            )


def _names(unit: UnitStart) -> Iterator[str]:
    yield unit.unit
    yield from (socket.unit for socket in unit.sockets)
    yield _ROOT_SLICE
    # A name that systemd has escaped begins with one more `_` (inspect/unit/slices.py).
    yield from (part.removeprefix("_") for part in unit.group.split("/")[:-1])


def _others(root: ImageRoot, loaded: LoadedUnit) -> Iterator[str]:
    """The differences between the files from which the reference boot loaded the unit and the unit's files in the
    image. Each difference is a phrase for an error message. The phrase for a file that only the boot had is the file's
    path. The phrase for a drop-in that only the image has is ``no PATH``.
    """
    try:
        own_file: PurePosixPath | None = unit_file(root, loaded.name)
    except UnsupportedUnitError:
        # A slice needs no file.
        own_file = None
    is_script = own_file is not None and own_file.parent == SCRIPTS
    if is_script and not loaded.file.startswith(_OF_SCRIPTS):
        yield loaded.file or f"no unit for {own_file}"
    if not is_script and _canonical(root, loaded.file) != own_file:
        yield loaded.file or "no file"
    own = {_canonical(root, str(path)) for path in drop_ins_of(root, loaded.name).values()} - {None}
    for path in loaded.drop_ins:
        if _canonical(root, path) not in own:
            yield path
    missing = own - {_canonical(root, path) for path in loaded.drop_ins}
    yield from sorted(f"no {path}" for path in missing if path and root.host(path).is_file())


def _canonical(root: ImageRoot, path: str) -> PurePosixPath | None:
    pure = PurePosixPath(path)
    return root.resolve(pure).canonical if pure.is_absolute() else None
