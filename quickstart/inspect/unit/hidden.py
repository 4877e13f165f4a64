"""Find the paths in memory that a unit's mount namespace hides or restricts (InaccessiblePaths=, ReadOnlyPaths=,
NoExecPaths=), and that systemd makes only after an early start.

systemd applies such a directive to the paths that exist when systemd starts the unit. At that time, PID 1's own
sockets, the sockets of sockets.target and some directories exist. When a unit starts early, these paths do not exist
yet. The starter, which starts the unit early, makes the directories itself, so it can hide them.

The starter cannot hide a socket that does not exist yet. If the starter made a file in place of the socket and mounted
something over this file, systemd would later unlink the file to make the socket, and thereby remove the mount. So the
build refuses a unit that hides such a socket. If such a unit started early, the unit's processes could use the socket
until systemd adopts them, and they could keep the connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, directives, unit_texts
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.mounted import late_places
from quickstart.inspect.unit.neighbours import enabled_sockets
from quickstart.inspect.unit.place import place_of
from quickstart.inspect.unit.pulled import pulled_by, started_of
from quickstart.inspect.unit.values import BadValueError, file_mode
from quickstart.inspect.unit.words import Names
from quickstart.parse.guestpaths import simplified
from quickstart.parse.printable import brief

Record = tuple[str, ...]

RESTRICTING = ("inaccessible", "read-only", "no-exec")
_READ_ONLY_BINDS = ("bind-read-only", "bind-all-read-only")
_IN_MEMORY = ("/run/", "/dev/")
_LINKS = "Symlinks"
_LISTENS = ("ListenStream", "ListenDatagram", "ListenSequentialPacket", "ListenFIFO", _LINKS)
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
_PASSWD = PurePosixPath("/etc/passwd")


def hidden_paths(unit: UnitStart, root: ImageRoot) -> tuple[str, ...]:
    """The paths below /run and /dev that the units of the stack hide or restrict, sorted. A stack is the units that
    start early together.
    """
    return tuple(sorted({path for each in unit.all_units for path in _restricted(root, each.settings)}))


def hidden_directories(
    root: ImageRoot,
    unit: str,
    records: Iterable[Record],
    bound: Collection[str],
    commands: Iterable[UnitCommand] = (),
) -> tuple[Record, ...]:
    """The `run-directory` records, by which the starter makes directories before the unit starts. The result has one
    record for each directory that ``unit`` hides and that systemd makes only after an early start. ``records`` are the
    starter's records of ``unit``, which say what ``unit`` hides. ``bound`` are the socket units whose sockets init
    binds before the unit starts. ``commands`` are all commands of the unit.

    Raises UnsupportedUnitError when the unit hides another path that systemd makes later, such as a socket.
    """
    records = tuple(records)
    _refuse_covers(root, unit, records)
    wanted = _restricted(root, records)
    if not wanted:
        return ()
    early = (PurePosixPath(path) for path in _sockets(root, unit, bound))
    made = {*_made(records), *(str(each) for path in early for each in (path, *path.parents)), *_STARTERS}
    closed = {path for path in wanted if "inaccessible" in wanted[path]}
    # A command with `!` runs as root, whatever the unit's user.
    is_unprivileged = _is_unprivileged(root, records) and not any("!" in each.flags for each in commands)
    late = _sockets(root, unit, started_sockets(root).difference(bound))
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


def late_guards(root: ImageRoot, unit: str, records: Iterable[Record]) -> Iterator[Record]:
    """The `guard` records, one for each place below /boot or /efi at which a boot mounts a file system, if a mount of
    ``records`` hides or restricts this place or a path above or below it. In an early start, systemd mounts the file
    system later. Without a guard, the unit's processes could write to this file system until systemd adopts them.

    Raises UnsupportedUnitError when ``unit`` binds a directory above such a place read-only.
    """
    mounts = [tuple(words) for kind, *words in records if kind == "mount"]
    restricted = [place_of(root, words[2]) for words in mounts if words[0] in RESTRICTING]
    for place in late_places(root):
        for words in mounts:
            if not words[0].startswith("bind") or not place.is_relative_to(place_of(root, words[3])):
                continue
            target = place_of(root, words[2])
            if words[0] in _READ_ONLY_BINDS or any(
                target.is_relative_to(path) or path.is_relative_to(target) for path in restricted
            ):
                raise UnsupportedUnitError(
                    f"{unit} cannot be started early: it restricts a bind mount of {brief(words[3])}, and {place} in it is"
                    " mounted only after an early start",
                    hint='bind a directory without it, or set early = "never" in the profile',
                )
        if any(place.is_relative_to(path) or path.is_relative_to(place) for path in restricted):
            yield "guard", str(place)


def _refuse_covers(root: ImageRoot, unit: str, records: Iterable[Record]) -> None:
    """Raise UnsupportedUnitError when the unit binds a file over a path in memory (BindReadOnlyPaths=/dev/null:/run/x).
    A process that makes such a path anew first unlinks it, and the bind mount disappears together with the old file.
    systemd binds the file when the new path exists.
    """
    for kind, *words in records:
        if kind != "mount" or not words[0].startswith("bind"):
            continue
        path, source = place_of(root, words[2]), PurePosixPath(words[3])
        if not str(path).startswith(_IN_MEMORY) or path == place_of(root, words[3]):
            continue
        file = root.resolve(source).canonical
        if file is None or not root.host(file).is_dir():
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: it binds {brief(str(source))} over {brief(str(path))}, which may be"
                " made anew after an early start, and would then be open to its processes",
                hint='name a directory, or set early = "never" in the profile',
            )


def _restricted(root: ImageRoot, records: Iterable[Record]) -> Mapping[str, frozenset[str]]:
    """The paths in memory that mounts of ``records`` hide or restrict, each with the kinds of these mounts."""
    found: dict[str, set[str]] = {}
    for kind, *words in records:
        if kind == "mount" and words[0] in RESTRICTING:
            path = str(place_of(root, words[2]))
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


def started_sockets(root: ImageRoot) -> frozenset[str]:
    """The socket units that a boot starts. They are the enabled ones, and those that another started unit pulls in by
    its directives. systemd binds all of them before the application, because of sockets.target.
    """
    known = pulled_by(root)
    started = started_of(root, (name for name in known.by if name.endswith(".socket")), known)
    return started | {path.name for path in enabled_sockets(root)}


def _sockets(root: ImageRoot, unit: str, units: Collection[str]) -> Mapping[str, str]:
    """The paths of the sockets and FIFOs of the socket units ``units``. Each path has the mode that systemd gives to
    new directories above the socket or FIFO.

    Raises UnsupportedUnitError for a path with a specifier that only the running machine knows. ``unit`` names the unit
    that would start early in this message.
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
        values = (value.split() if key == _LINKS else [value] for key, value in assigned if key in _LISTENS)
        paths = (_expanded(unit, name, path) for value in values for path in value)
        found |= {str(place_of(root, simplified(path))): mode for path in paths if path.startswith("/")}
    return found


def _expanded(unit: str, socket: str, path: str) -> str:
    try:
        return Names(socket).expand(path)
    except UnsupportedUnitError as error:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it hides or restricts paths in memory, and {brief(socket)} listens on"
            f" {brief(path)}, which only the running machine knows"
        ) from error


def _is_unprivileged(root: ImageRoot, records: Collection[Record]) -> bool:
    """Whether the unit's processes run as a user other than root, and without any capability. With some capabilities, a
    process can give itself others.
    """
    users = [words[0] for kind, *words in records if kind == "user"]
    ambient = sum(int(words[0], 16) for kind, *words in records if kind == "ambient")
    return bool(users) and not ambient and users[0] not in _names_of_root(root)


def _names_of_root(root: ImageRoot) -> frozenset[str]:
    """The names and numbers of the users with the number 0 (passwd(5))."""
    file = root.resolve(_PASSWD).canonical
    lines = [line.split(":") for line in root.read_text(file).splitlines()] if file is not None else []
    return frozenset((*_ROOT, *(words[0] for words in lines if len(words) > 2 and words[2].strip("0") == "")))
