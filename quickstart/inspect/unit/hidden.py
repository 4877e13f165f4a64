"""Find the paths in memory that a unit's mount namespace hides or restricts (InaccessiblePaths=, ReadOnlyPaths=,
NoExecPaths=), and that systemd makes only after an early start.

systemd applies such a directive to the paths that exist when systemd starts the unit. At that time, PID 1's own
sockets, the sockets of sockets.target and some directories exist. When a unit starts early, these paths do not exist
yet. The starter, which starts the unit early, makes the directories itself, so it can hide them.

The starter cannot hide a socket that does not exist yet. If the starter made a file in place of the socket and mounted
something over this file, systemd would later unlink the file to make the socket, and thereby remove the mount. So the
build refuses a unit that hides such a socket. Otherwise, the unit's processes could use the socket until systemd adopts
them, and they could keep the connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, directives, unit_texts
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.neighbours import enabled_sockets
from quickstart.inspect.unit.values import CAPABILITY, BadValueError, file_mode
from quickstart.parse.guestpaths import in_run
from quickstart.parse.printable import brief

Record = tuple[str, ...]

RESTRICTING = ("inaccessible", "read-only", "no-exec")
_IN_MEMORY = ("/run/", "/dev/")
_LISTENS = ("ListenStream", "ListenDatagram", "ListenSequentialPacket", "ListenFIFO")
_SYSTEMDS = "/run/systemd/"
# These directories belong to root, and all users may read them. A program that needs one of them makes it, or uses the
# existing one.
_DIRECTORIES = frozenset(
    (
        *("/run/udev", "/run/log", "/run/systemd/system", "/run/systemd/ask-password", "/run/systemd/seats"),
        *("/run/systemd/sessions", "/run/systemd/users", "/run/systemd/machines", "/run/systemd/shutdown"),
    )
)
# The starter makes these for each unit with a mount namespace.
_STARTERS = (
    "/run/credentials",
    "/run/systemd/inaccessible",
    "/run/systemd/incoming",
    "/run/systemd/propagate",
)
# PID 1 binds this socket with mode 0700, so nobody but root may connect (bus_init_private in systemd's
# src/core/dbus.c).
_ROOTS = "/run/systemd/private"
_ROOT = ("root", "0")


def hidden_paths(unit: UnitStart) -> tuple[str, ...]:
    """The paths below /run and /dev that the units of the stack hide or restrict, sorted. A stack is the units that
    start early together.
    """
    return tuple(sorted({path for each in unit.all_units for path in _restricted(each.settings)}))


def hidden_directories(
    root: ImageRoot,
    unit: str,
    records: Iterable[Record],
    bound: Collection[str],
    commands: Iterable[UnitCommand] = (),
) -> tuple[Record, ...]:
    """The `run-directory` records, by which the starter makes directories before the unit starts. The result has one
    record for each directory that the ``records`` of ``unit`` hide and that systemd makes only after an early start.
    ``bound`` are the socket units whose sockets init binds before the unit starts. ``commands`` are all commands of the
    unit.

    Raises UnsupportedUnitError when the unit hides another path that systemd makes later, such as a socket.
    """
    records = tuple(records)
    wanted = _restricted(records)
    if not wanted:
        return ()
    early = (PurePosixPath(path) for path in _sockets(root, bound))
    made = {*_made(records), *(str(each) for path in early for each in (path, *path.parents)), *_STARTERS}
    closed = {path for path in wanted if "inaccessible" in wanted[path]}
    # A command with `!` runs as root, whatever the unit's user.
    is_unprivileged = _is_unprivileged(records) and not any("!" in each.flags for each in commands)
    late = _sockets(root, {path.name for path in enabled_sockets(root)}.difference(bound))
    found: dict[str, Record] = {}
    for path in sorted(wanted):
        above = {str(each) for each in PurePosixPath(path).parents}
        if path in made or above & closed or above & set(_STARTERS):
            continue
        modes = [mode for socket, mode in late.items() if socket.startswith(f"{path}/")]
        if modes or path in _DIRECTORIES:
            found[path] = ("run-directory", (modes or ["0755"])[0], "root", "root", path)
        elif path in late or (path.startswith(_SYSTEMDS) and not (path == _ROOTS and is_unprivileged)):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: it hides or restricts {brief(path)}, which systemd makes only after an"
                " early start, so its processes could use it until then",
                hint='name the directory above it, or set early = "never" in the profile',
            )
    return tuple(found.values())


def _restricted(records: Iterable[Record]) -> Mapping[str, frozenset[str]]:
    """The paths in memory that mounts of ``records`` hide or restrict, each with the kinds of these mounts."""
    found: dict[str, set[str]] = {}
    for kind, *words in records:
        if kind == "mount" and words[0] in RESTRICTING:
            path = str(PurePosixPath(in_run(words[2])))
            if path.startswith(_IN_MEMORY):
                found.setdefault(path, set()).add(words[0])
    return {path: frozenset(kinds) for path, kinds in found.items()}


def _made(records: Iterable[Record]) -> Iterator[str]:
    """The directories that the starter makes before it makes the unit's mount namespace, and all directories above
    them.
    """
    for kind, *words in records:
        if kind == "run-directory" or (kind == "directory" and words[2].startswith("/run/")):
            path = PurePosixPath(words[-1])
            yield from map(str, (path, *path.parents))


def _sockets(root: ImageRoot, units: Collection[str]) -> Mapping[str, str]:
    """The paths of the sockets and FIFOs of the socket units ``units``. Each path has the mode that systemd gives to
    new directories above the socket or FIFO.
    """
    found: dict[str, str] = {}
    for name in sorted(units):
        try:
            assigned = assignments(unit_texts(root, name), "[Socket]")
        except (StartSetError, UnsupportedUnitError):
            # It has no file, so it is not started.
            continue
        try:
            mode = file_mode(directives(assigned).get("DirectoryMode", ("0755",))[-1])
        except BadValueError:
            mode = "0755"
        paths = (in_run(value) for key, value in assigned if key in _LISTENS and value.startswith("/"))
        found |= {str(PurePosixPath(path)): mode for path in paths}
    return found


def _is_unprivileged(records: Collection[Record]) -> bool:
    """Whether the unit's processes run as another user than root, and have no capability to open files that this user
    may not open.
    """
    users = [words[0] for kind, *words in records if kind == "user"]
    ambient = sum(int(words[0], 16) for kind, *words in records if kind == "ambient")
    return bool(users) and users[0] not in _ROOT and not ambient & CAPABILITY["CAP_DAC_OVERRIDE"]
