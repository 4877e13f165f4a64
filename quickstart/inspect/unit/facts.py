"""Find the facts of an image that decide whether and how systemd starts a unit. When one of the facts changes, init
must not start the unit early.

Only the build interprets these facts. At boot, init only compares the files at the paths of these facts with their
state at the build (docs/users/never-stale.md). So init notices a new file only if the facts include the file's path.
Therefore the facts also include paths at which no file exists at the build.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.apparmor import PARSER, profile_places
from quickstart.inspect.unit.before import settling_files, settling_places
from quickstart.inspect.unit.callgroups import library_of_groups
from quickstart.inspect.unit.containers import DOCKER, EMULATORS, container_files
from quickstart.inspect.unit.files import (
    MANAGER_PATHS,
    UNIT_PATHS,
    assignments,
    drop_in_places,
    names_of,
    names_with_directories,
    unit_texts,
)
from quickstart.inspect.unit.generators import GENERATORS
from quickstart.inspect.unit.initscripts import script_of, start_links
from quickstart.inspect.unit.instances import generating_files
from quickstart.inspect.unit.journal import JOURNAL_SOCKETS
from quickstart.inspect.unit.nameservices import SWITCH, USER_RECORDS, sets_user
from quickstart.inspect.unit.neighbours import handing_sockets
from quickstart.inspect.unit.order import PULLING_KEYS, owned_texts, pulled_by_links
from quickstart.inspect.unit.pulled import pullers
from quickstart.inspect.unit.slices import slice_names
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.sysctl import ADMINISTRATORS_UNITS
from quickstart.inspect.unit.tmpfiles import unpacked_tmpfiles
from quickstart.inspect.unit.words import names_in

# systemd.unit(5): links in these make one unit pull in another.
_PULLING = (".wants", ".requires", ".upholds")
_OWN = PurePosixPath("/etc/systemd/system")
# tmpfiles.d(5): for the directories below /run that are made early, only the administrator's files count. A package's
# own files do not count, because each upgrade writes them again, and systemd-tmpfiles applies them some seconds
# later.
# Ubuntu starts sshd by a socket.
_SSH_SOCKET, _SSHD = "ssh.socket", PurePosixPath("/etc/ssh/sshd_config")
_SSH_GENERATOR = PurePosixPath("/usr/lib/systemd/system-generators/sshd-socket-generator")
_TMPFILES = (PurePosixPath("/etc/tmpfiles.d"), PurePosixPath("/usr/local/lib/tmpfiles.d"))
# What each boot of Debian reaches. systemd's own units ask for them, whose files each upgrade replaces.
_STAGES = frozenset(
    f"{name}.target"
    for name in (
        *("sysinit", "basic", "local-fs", "local-fs-pre", "swap", "sockets", "paths", "timers", "slices"),
        *("remote-fs", "getty", "multi-user", "graphical", "default", "network", "network-pre"),
        *("network-online", "nss-lookup", "nss-user-lookup", "time-set"),
    )
)
_NETWORKS = ("networking.service", "systemd-networkd.service")
# Directories of the kernel and of init, which are never on the volume when init compares.
VOLATILE = frozenset({"proc", "sys", "dev", "run"})


@dataclass(frozen=True)
class Deciding:
    """The facts that decide about an early start, as paths. ``files`` are paths, existing or not, in which only the
    last component may be a link. ``places`` are directories, existing or not, of which every entry is a fact.
    """

    files: tuple[PurePosixPath, ...] = ()
    places: tuple[PurePosixPath, ...] = ()

    def __add__(self, other: Deciding) -> Deciding:
        return Deciding(
            tuple(sorted({*self.files, *other.files})), tuple(sorted({*self.places, *other.places}))
        )


def deciding(root: ImageRoot, unit: str) -> Deciding:
    """The unit file, the unit's drop-ins, the links that enable the unit, and all other configuration of the image that
    affects an early start of the unit.

    Raises UnsupportedUnitError when the image does not have the unit.
    """
    files = {each for path in _files(root, unit) for each in way_to(root, path)}
    places: set[PurePosixPath] = set()
    beside = _alias_places(root)
    for place in (*_places(root, unit), *settling_places(root)):
        *links, last = way_to(root, place)
        files.update(links)
        places.add(last)
        packages = beside.get(last)
        if root.resolve(place).canonical is not None:
            # A drop-in may be a link. The entry itself is compared with its directory.
            files.update(
                each
                for name in root.names(last)
                for each in way_to(root, last / name)
                if each.parent not in (last, packages)
            )
    # The units that pull it in through other units count, too, because a target, or the wrapper of an instance, may
    # be disabled in its place.
    started = (unit, *handing_sockets(root, unit))
    # A stock boot has no network without the service that was enabled for it.
    for name in dict.fromkeys((*_NETWORKS, *pullers(root, *started))):
        files |= set(_enabling(root, name))
    files |= {way for path in _naming(root, *started) for way in way_to(root, path)}
    return Deciding(tuple(sorted(_kept(files))), tuple(sorted(_kept(places))))


def _alias_places(root: ImageRoot) -> dict[PurePosixPath, PurePosixPath]:
    """A map from each directory of the administrator's units to the directory of the packages' units. An alias
    (such as sshd.service) is a link in the administrator's directory to a package's unit file. The link is a fact.
    The package's unit file is not a fact, because each upgrade replaces it.
    """
    packages = way_to(root, PurePosixPath(UNIT_PATHS[-1]))[-1]
    return {way_to(root, place)[-1]: packages for place in ADMINISTRATORS_UNITS}


def way_to(root: ImageRoot, path: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """The links on the way to ``path``, and after them the path that the links lead to, existing or not. No directory
    in these paths is a link.
    """
    found = root.resolve(path)
    if found.canonical is not None:
        return (*found.links, found.canonical)
    *links, parent = way_to(root, path.parent)
    here = parent / path.name
    # For a link that leads nowhere, its own place matters.
    return (*dict.fromkeys((*links, *found.links)), here)


def _kept(paths: set[PurePosixPath]) -> Iterator[PurePosixPath]:
    return (path for path in paths if len(path.parts) > 1 and path.parts[1] not in VOLATILE)


def _files(root: ImageRoot, unit: str) -> Iterator[PurePosixPath]:
    """The files that may define, mask or change the unit, and other single files that affect the unit's start. The
    function does not resolve links in these paths.
    """
    stem, at, _ = unit.removesuffix(".service").partition("@")
    sockets = handing_sockets(root, unit)
    slices = _slices(root, unit, sockets)
    for directory in map(PurePosixPath, UNIT_PATHS):
        yield directory / unit
        if at:
            yield directory / f"{stem}@.service"
        yield from (directory / name for name in (*slices, *sockets, *JOURNAL_SOCKETS))
    if (script := script_of(root, unit)) is not None:
        yield script
        yield from start_links(root, script.name)
        yield _OWN / "multi-user.target"
    yield from (PurePosixPath(directory) / "system.conf" for directory in MANAGER_PATHS)
    yield _OWN / "default.target"
    # A socket of its own would have its sockets handed over (unit/neighbours.py).
    yield _OWN / f"sockets.target.wants/{unit.removesuffix('.service')}.socket"
    if sockets:
        yield _OWN / "sockets.target"
    yield from generating_files(unit)
    if _moves_sshd(root, sockets):
        yield _SSHD
    yield from settling_files(root)
    yield from sorted(unpacked_tmpfiles(root))
    texts = unit_texts(root, unit)
    yield from _negated_conditions(texts)
    service = assignments(texts, "[Service]")
    if _names_docker(service):
        yield from container_files(Source(unit, service, {}))
    names = {name for name, _ in service}
    if sets_user(names):
        yield SWITCH
    if "AppArmorProfile" in names:
        yield PARSER
    if "SystemCallFilter" in names and (library := library_of_groups(root)) is not None:
        yield library


def _names_docker(service: Iterable[tuple[str, str]]) -> bool:
    # The command's words name the program. Any other unit that names it only gets one more fact.
    return any(name == "ExecStart" and DOCKER in value for name, value in service)


def _negated_conditions(texts: tuple[str, ...]) -> Iterator[PurePosixPath]:
    """The paths that must be absent, because of conditions such as ConditionPathExists=!PATH
    (systemd.unit(5), "Conditions and Asserts").
    """
    for name, value in assignments(texts, "[Unit]"):
        word = value.removeprefix("|").strip()
        path = word.removeprefix("!").strip()
        kind = name.removeprefix("Condition").removeprefix("Assert")
        is_about_paths = kind != name and kind.startswith(("Path", "File", "Directory"))
        if is_about_paths and word.startswith("!/") and not set(path) & set("%*?["):
            yield PurePosixPath(path)


def _moves_sshd(root: ImageRoot, sockets: Iterable[str]) -> bool:
    """Whether a generator of OpenSSH's package gives ssh.socket the ports and addresses of sshd_config(5). Ubuntu has
    this generator. systemd binds these sockets, so sshd itself does not look at its ports.
    """
    return _SSH_SOCKET in sockets and root.resolve(_SSH_GENERATOR).canonical is not None


def _slices(root: ImageRoot, unit: str, sockets: Iterable[str]) -> tuple[str, ...]:
    """The names of the slices that contain the unit or its socket units (systemd.slice(5))."""
    sections = [(unit, "[Service]"), *((name, "[Socket]") for name in sockets)]
    found = (
        each
        for name, section in sections
        for each in slice_names(Source(name, assignments(unit_texts(root, name), section), {}))
    )
    return tuple(dict.fromkeys(found))


def _places(root: ImageRoot, unit: str) -> Iterator[PurePosixPath]:
    """The directories of which every entry is a fact that decides about an early start. The function does not resolve
    links in the paths of these directories. There are nine kinds of directories:

    - directories with drop-ins of the unit, of its socket units or of its slices
    - directories with links to the units that the unit pulls in, or that its slices and sockets require (`systemctl add-requires`)
    - directories with drop-ins of system.conf
    - the administrator's tmpfiles.d directories
    - directories with generators
    - directories with AppArmor profiles
    - for a unit with a user or group, the directories with systemd's user records
    - for dockerd, the directories of binfmt.d(5)
    - for sshd with a socket that a generator changes, the directory of sshd_config(5)
    """
    pulled = dict.fromkeys(name for each in names_of(root, unit) for name in names_with_directories(each))
    sockets = handing_sockets(root, unit)
    slices = tuple(_slices(root, unit, sockets))
    names = dict.fromkeys(
        (
            *drop_in_places(root, unit),
            *(name for each in (*slices, *sockets, *JOURNAL_SOCKETS) for name in drop_in_places(root, each)),
            *(f"{each}{kind}" for each in pulled for kind in _PULLING),
            *(f"{each}.requires" for name in (*slices, *sockets) for each in names_with_directories(name)),
        )
    )
    for directory in UNIT_PATHS:
        yield from (PurePosixPath(directory) / name for name in names)
    yield from (PurePosixPath(directory) / "system.conf.d" for directory in MANAGER_PATHS)
    yield from _TMPFILES
    yield from GENERATORS
    yield from profile_places(root)
    service = assignments(unit_texts(root, unit), "[Service]")
    if sets_user({name for name, _ in service}):
        yield from USER_RECORDS
    if _names_docker(service):
        yield from map(PurePosixPath, EMULATORS)
    if _moves_sshd(root, sockets):
        yield PurePosixPath(f"{_SSHD}.d")


def _naming(root: ImageRoot, *units: str) -> Iterator[PurePosixPath]:
    """The files and drop-ins by which units pull in one of ``units``, directly or through other units (Wants=X). The
    result is empty when links alone pull in one of ``units``, because then the links are facts. When such a file
    changes, a boot may no longer start the unit.
    """
    own = {name for unit in units for name in names_of(root, unit)}
    if own & _linked_from_stages(root):
        return
    pulled = pulled_by_links(root)
    linked = {each for names in pulled.values() for each in names}
    left, seen = sorted(own), set(own)
    while left:
        name = left.pop()
        for path, owners, text in owned_texts(root):
            if name not in text and "%" not in text:
                continue
            instances = [each for each in linked if f"{each.partition('@')[0]}@.service" in owners]
            for owner in (*owners, *instances):
                asks = any(
                    name in names_in(owner, value)
                    for key, value in assignments((text,), "[Unit]")
                    if key in PULLING_KEYS
                )
                if asks and owner not in _STAGES:
                    yield path
                if asks and owner not in (*seen, *_STAGES):
                    seen.add(owner)
                    left.append(owner)
        # A target or template may pull in the unit by a link, and be asked for itself by a text.
        above = {each for each, names in pulled.items() if name in names}
        left += sorted(above - seen - _STAGES)
        seen |= above


def _linked_from_stages(root: ImageRoot) -> frozenset[str]:
    """The units that a boot reaches by links alone, from the targets that each boot reaches."""
    pulled = pulled_by_links(root)
    left, found = sorted(_STAGES), set(_STAGES)
    while left:
        name = left.pop()
        for each in names_with_directories(name):
            new = set(pulled.get(each, ())) - found
            found |= new
            left += sorted(new)
    return frozenset(found)


def _enabling(root: ImageRoot, unit: str) -> Iterator[PurePosixPath]:
    """The links by which other units pull in ``unit`` under any of its names, and the paths at which a mask would
    disable one of these other units.
    """
    own = names_of(root, unit)
    for directory in UNIT_PATHS:
        canonical = root.resolve(PurePosixPath(directory)).canonical
        for name in root.names(canonical) if canonical is not None else ():
            puller = next((name.removesuffix(each) for each in _PULLING if name.endswith(each)), "")
            place = root.resolve(PurePosixPath(directory) / name).canonical if puller else None
            if place is None or not root.host(place).is_dir():
                continue
            links = [each for each in root.names(place) if each in own]
            if not links:
                continue
            yield from (place / each for each in links)
            # A directory that counts more may have a mask of the link, and one that counts less is hidden by it.
            yield from (PurePosixPath(each) / name / link for each in UNIT_PATHS for link in links)
            yield from way_to(root, _OWN / puller)
