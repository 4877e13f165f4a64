"""Find the other units of the image that matter for the start of a unit. They are the socket units whose sockets
systemd would pass to the unit, the units that the unit requires, and the instances of its template.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.bus import BUS, needs_bus
from quickstart.inspect.unit.files import (
    UNIT_PATHS,
    assignments,
    directives,
    names_of,
    names_with_directories,
    slice_texts,
    unit_texts,
)
from quickstart.inspect.unit.order import PULLING_KEYS, owned_texts
from quickstart.inspect.unit.pulled import started_of
from quickstart.inspect.unit.values import BadValueError, boolean
from quickstart.inspect.unit.words import names_in
from quickstart.parse.printable import brief

_PULLS_IN = tuple(sorted(PULLING_KEYS))
# Without these systemd does not start the unit (systemd.unit(5)). The last three are earlier names of the others.
_NEEDS = ("Requires", "Requisite", "BindsTo", "BindTo", "RequiresOverridable", "RequisiteOverridable")
# Targets that each boot reaches before its services (bootup(7)), whatever is enabled.
_REACHED = frozenset(
    (
        *("sysinit.target", "basic.target", "local-fs.target", "local-fs-pre.target", "network.target"),
        *("paths.target", "slices.target", "sockets.target", "timers.target"),
    )
)
_REQUISITE = ("Requisite=", "RequisiteOverridable=")
_ACTIVE_ONLY = ("BindsTo=", "BindTo=", *_REQUISITE)
# Units that do no work before the unit starts. Sockets have a separate rule.
_NO_WORK = (".target", ".slice", ".socket")
# systemd.service(5), "Default Dependencies".
_ALWAYS = "sysinit.target"
_ROOT_MOUNT = "-.mount"
_SOCKET = ".socket"
# Sockets of the boot itself. A unit that uses them without After= may also find them late in a stock boot.
_SYSTEMDS = "systemd-"
_OF_THE_BOOT = frozenset(("dbus.socket", "syslog.socket"))
# systemd.unit(5); at most 255 characters (UNIT_NAME_MAX).
_NAME = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]{0,254}")
# Each socket unit is read several times in a build. Debian's own have a few hundred bytes.
_MAX_SOCKETS = 1024
_MAX_SOCKET_BYTES = 1 << 20


def handing_sockets(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The socket units that pass their listening sockets to ``unit``, sorted by name (systemd.socket(5)).

    Raises UnsupportedUnitError when one of these socket units is an instance of a template. Also raises this error when
    a socket unit is neither enabled for sockets.target nor pulled in by ``unit``. systemd may not start such socket
    units at every boot, but init would bind their sockets at every boot.
    """
    enabled = {path.name for path in enabled_sockets(root)}
    wanted = enabled | set(_pulled_in(root, unit))
    if len(wanted) > _MAX_SOCKETS:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {len(wanted)} sockets are enabled or wanted"
        )
    # A socket unit that another unit pulls in by its own directives is in no directory of links.
    others = {path.name for place in UNIT_PATHS for path in root.glob(PurePosixPath(place) / f"*{_SOCKET}")}
    _refuse_long(root, unit, wanted | others)
    own = _file(root, unit)
    handing = [name for name in sorted(wanted) if _is_for(root, name, unit, own)]
    handing += sorted(started_of(root, (name for name in others - wanted if _is_for(root, name, unit, own))))
    always = {path.name for path in enabled_sockets(root, "sockets.target")} | set(_pulled_in(root, unit))
    for name in handing:
        # systemd loads no unit with another name, and init uses the names as words of its shell.
        if not _NAME.fullmatch(name):
            raise UnsupportedUnitError(f"{unit} cannot be started early: {name!r} is no unit's name")
        if name not in always or "@" in name:
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {name} hands its sockets over, and is not enabled in sockets.target",
                hint=f"enable {name} in sockets.target, or disable it if the service can listen by itself",
            )
    return tuple(handing)


def _refuse_long(root: ImageRoot, unit: str, sockets: Iterable[str]) -> None:
    """Raise UnsupportedUnitError when the files of ``sockets`` together are too long. A file counts once for
    each of its names, because many names may be links to one long file.
    """
    files = (path for name in sockets if (path := _file(root, name)) is not None)
    if sum(root.host(path).lstat().st_size for path in files) > _MAX_SOCKET_BYTES:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the files of the image's sockets have more than {_MAX_SOCKET_BYTES} bytes"
        )


def _is_for(root: ImageRoot, name: str, unit: str, own: PurePosixPath | None) -> bool:
    service = _service_of(root, name)
    return bool(service) and (service == unit or (own is not None and _file(root, service) == own))


def refuse_requirements(root: ImageRoot, unit: str, stack: Collection[str] = ()) -> None:
    """Raise UnsupportedUnitError when ``unit`` requires another unit, such as a service or a mount, which systemd would
    have to start first. If ``unit`` requires a target or a socket, the units that this target or socket requires also
    lead to the error. The function allows the units of ``stack``, because they also start early. An Assert…= of such a
    target, socket or slice also leads to the error: when it fails, systemd does not start ``unit``.
    """
    beside = {alias for name in stack for alias in names_of(root, name)}
    for name, needing in _all_needed(root, unit).items():
        if name in beside:
            continue
        if needing.startswith(_REQUISITE) and name.endswith((".target", ".socket")) and name not in _REACHED:
            # Nothing starts it for the unit: a later `systemctl disable` would keep the unit from its start.
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {brief(needing)} lets it start only if another unit is active",
                hint=f"Requires={name} in place of it starts that one",
            )
        if not name.endswith(_NO_WORK) or _is_own_socket(root, name, unit):
            continue
        # These need a unit that is active: one that was skipped will not do.
        kinds = ("Assert", "Condition") if needing.startswith(_ACTIVE_ONLY) else ("Assert",)
        if said := _checked(root, name, kinds):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: it needs {name}, which starts only with {brief(said)}",
                hint="write the condition into the unit itself",
            )
    for name, said in unmet_requirements(root, unit, stack).items():
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it needs {name}, which comes with systemd ({said})",
            hint="name both in `units` of the profile, so that both start early"
            if name.endswith(".service")
            else "Wants= in place of it lets the unit start without; systemd starts that one later",
        )


def unmet_requirements(root: ImageRoot, unit: str, stack: Collection[str] = ()) -> Mapping[str, str]:
    """The units, apart from those of ``stack``, that have to work before systemd starts ``unit``. The keys are the
    units' names, sorted, and the values are the assignments or links that require these units.
    """
    beside = {alias for name in stack for alias in names_of(root, name)}
    return {
        name: said
        for name, said in sorted(_all_needed(root, unit).items())
        if not name.endswith(_NO_WORK) and name != _ROOT_MOUNT and name not in beside
    }


def _all_needed(root: ImageRoot, unit: str) -> dict[str, str]:
    """The units that ``unit`` requires, and those that its targets, sockets and slices require, as `_needed` gives them."""
    needed = {_ALWAYS: _ALWAYS, **_needed(root, unit)}
    if needs_bus(root, unit):
        # systemd requires the socket of the bus. The service that answers there must also start early.
        needed[BUS] = "Type=dbus"
    # A target, socket or slice starts only with the units that it requires itself, and the unit starts only with the
    # target, socket or slice.
    left = [name for name in needed if name.endswith(_NO_WORK)]
    while left:
        for name, said in _needed(root, left.pop()).items():
            if name not in needed and name.endswith(_NO_WORK):
                left.append(name)
            _add(needed, name, said)
    return needed


def _checked(root: ImageRoot, unit: str, kinds: tuple[str, ...]) -> str:
    """An assignment of ``kinds``, such as Assert…=, in the files of ``unit``, or nothing."""
    try:
        found = assignments(_texts(root, unit), "[Unit]")
    except (StartSetError, UnsupportedUnitError):
        return ""
    return next((f"{name}={value}" for name, value in found if name.startswith(kinds) and value), "")


def _texts(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The texts of the unit's file and drop-ins. A slice needs no file."""
    return tuple(slice_texts(root, unit) if unit.endswith(".slice") else unit_texts(root, unit))


def _is_own_socket(root: ImageRoot, name: str, unit: str) -> bool:
    """Whether the socket unit ``name`` hands its sockets to ``unit``. Then init checks its conditions."""
    return name.endswith(_SOCKET) and _is_for(root, name, unit, _file(root, unit))


def wanted_before(root: ImageRoot, unit: str) -> Mapping[str, str]:
    """The services that a stock boot starts before ``unit``, or whose sockets the boot binds before ``unit``, because
    of directives of ``unit``. The keys are the services' names, and the values are these directives.

    A service is in the result when ``unit`` pulls the service in and comes after the service (Wants= with After=). A
    service is also in the result when ``unit`` comes after a socket unit that starts the service. For example,
    rabbitmq-server.service comes after epmd.socket. The service need not exist in the image.
    """
    wanted = {word for _, word in _dependencies(root, unit, ("Wants",)) if word.endswith(".service")}
    after = {word for _, word in _dependencies(root, unit, ("After",))}
    before = {name: f"Wants={name}, After={name}" for name in sorted(wanted & after)}
    for socket in sorted(name for name in after if is_another_services_socket(name)):
        service = _service_of(root, socket)
        if service and not _is_for(root, socket, unit, _file(root, unit)):
            before.setdefault(service, f"After={socket}")
    return before


def is_another_services_socket(name: str) -> bool:
    """Whether ``name`` is a socket unit that does not belong to systemd, D-Bus or syslog. A unit that starts after this
    socket unit may connect to its socket.
    """
    return name.endswith(_SOCKET) and not name.startswith(_SYSTEMDS) and name not in _OF_THE_BOOT


def _needed(root: ImageRoot, unit: str) -> dict[str, str]:
    """The units that ``unit`` requires. The key is the name of the required unit, and the value is the
    assignment or link that requires it.
    """
    try:
        found: dict[str, str] = {}
        for name, word in _dependencies(root, unit, _NEEDS):
            _add(found, word, f"{name}={word}")
        names = names_of(root, unit)
    except (StartSetError, UnsupportedUnitError):
        # The unit has no file, so it requires nothing.
        return {}
    # A link for the template, a prefix or all services counts as well.
    names = tuple(dict.fromkeys(name for each in names for name in names_with_directories(each)))
    for place in UNIT_PATHS:
        for each in names:
            links = root.glob(PurePosixPath(place) / f"{glob.escape(f'{each}.requires')}/*")
            for link in links:
                _add(found, link.name, str(link))
    return found


def _add(needed: dict[str, str], name: str, said: str) -> None:
    """Note what requires ``name``. What needs it to be active counts before what does not."""
    if name not in needed or (said.startswith(_ACTIVE_ONLY) and not needed[name].startswith(_ACTIVE_ONLY)):
        needed[name] = said


def _dependencies(root: ImageRoot, unit: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """The dependencies of ``unit``, as (directive, unit that it names), for the directives in ``names``. An
    empty assignment does not reset such a directive (systemd.unit(5)).
    """
    for name, value in assignments(_texts(root, unit), "[Unit]"):
        if name in names:
            yield from ((name, word) for word in names_in(unit, value))


def refuse_shared_namespaces(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when ``unit`` shares the namespaces of another unit (JoinsNamespaceOf=). The other
    unit does not run before the hand-off.
    """
    key = "JoinsNamespaceOf"
    for _, name in _dependencies(root, unit, (key,)):
        raise UnsupportedUnitError(f"{unit} cannot be started early: {key}={name}")
    # It counts in both directions.
    own = set(names_of(root, unit))
    for path, owners, text in owned_texts(root):
        if key in text and any(
            own & set(names_in(owner, value))
            for owner in owners
            for name, value in assignments((text,), "[Unit]")
            if name == key
        ):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {brief(str(path))} has {key}= with its name"
            )


def instances_of(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The template NAME@.service of the unit NAME.service, and those instances of the template that have unit files,
    sorted.
    """
    names = {
        path.name
        for place in UNIT_PATHS
        for path in root.glob(PurePosixPath(place) / f"{unit.removesuffix('.service')}@*.service")
    }
    return tuple(sorted(names))


def enabled_sockets(root: ImageRoot, by: str = "*") -> Iterator[PurePosixPath]:
    """The links that make units pull in socket units. ``by`` is the name of the unit that pulls the socket units in, or
    a pattern of such names.
    """
    for place in UNIT_PATHS:
        for kind in ("wants", "requires"):
            yield from root.glob(PurePosixPath(place) / f"{by}.{kind}/*{_SOCKET}")


def _pulled_in(root: ImageRoot, unit: str) -> Iterator[str]:
    """The socket units that ``unit`` pulls in by its own directives."""
    yield from (word for _, word in _dependencies(root, unit, _PULLS_IN) if word.endswith(_SOCKET))


def _service_of(root: ImageRoot, socket: str) -> str:
    """The service that systemd starts for the socket unit ``socket`` (systemd.socket(5)), as the socket unit's file and
    drop-ins say. The result is empty when the socket unit does not exist, or when each connection gets its own service
    (Accept=yes).
    """
    try:
        assigned = assignments(unit_texts(root, socket), "[Socket]")
        found = directives(assigned)
    except (StartSetError, UnsupportedUnitError):
        return ""
    try:
        if boolean(found.get("Accept", ("no",))[-1]):
            return ""
    except BadValueError:
        pass
    # systemd leaves out a value that is no name of a service, and an empty one takes nothing back.
    named = [names_in(socket, value) for key, value in assigned if key == "Service" and value]
    services = [words[0] for words in named if len(words) == 1 and words[0].endswith(".service")]
    return services[-1] if services else f"{socket.removesuffix(_SOCKET)}.service"


def _file(root: ImageRoot, unit: str) -> PurePosixPath | None:
    found = (root.resolve(PurePosixPath(place) / unit).canonical for place in UNIT_PATHS)
    return next((path for path in found if path is not None), None)
