"""Find out how a unit uses the system's message bus (docs/internals/bus.md). The unit may be the bus itself, or it may
have Type=dbus. A unit with Type=dbus counts as started when it owns its name on the bus (systemd.service(5), BusName=).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, directives, names_of, unit_file, unit_texts
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError

BUS = "dbus.service"
_SOCKET = "dbus.socket"
_BROKER = "dbus-broker.service"
# Where systemd's own library looks for the bus (DEFAULT_SYSTEM_BUS_ADDRESS).
_PLACE = PurePosixPath("/run/dbus/system_bus_socket")
# "Valid Names" of the D-Bus specification; at most 255 characters.
_NAME = re.compile(r"(?=.{1,255}\Z)[A-Za-z_-][A-Za-z0-9_-]*(?:\.[A-Za-z_-][A-Za-z0-9_-]*)+")
# With these options, the bus gets its socket from systemd, and systemd starts the services that are called
# (dbus-daemon(1)).
_WORDS = frozenset(("--system", "--address=systemd:", "--nofork", "--systemd-activation"))


def default_type(found: Collection[str]) -> str:
    """The default type of a service that has no Type= (systemd.service(5), Type=). ``found`` are the directives that
    the service has.
    """
    return "dbus" if "BusName" in found else "simple"


def has_idle_name(source: Source) -> bool:
    """Whether the unit has a name on the bus (BusName=), but another type than `dbus`. For such a unit, systemd watches
    the name on the bus, but does not wait for it before the unit counts as started.
    """
    return "BusName" in source.found and source.last("Type", "dbus") != "dbus"


def bus_records(source: Source, kind: str) -> Iterator[tuple[str, ...]]:
    """The record (line) of the starter's description that has the unit's name on the bus. The starter starts the unit
    early. ``kind`` is the unit's type. Only a unit with Type=dbus has such a record. Raises UnsupportedUnitError for
    Type=dbus without a valid name.
    """
    if kind == "dbus":
        name = source.names.expand(source.last("BusName"))
        if not _NAME.fullmatch(name):
            raise source.refusal("BusName", source.last("BusName"), BadValueError("is no name on the bus"))
        yield "bus-name", name


def needs_bus(root: ImageRoot, unit: str) -> bool:
    """Whether the unit is a service with Type=dbus. systemd starts such a service after dbus.socket."""
    try:
        found = directives(assignments(unit_texts(root, unit), "[Service]"))
    except (StartSetError, UnsupportedUnitError):
        return False
    return unit.endswith(".service") and found.get("Type", (default_type(found),))[-1] == "dbus"


def is_bus(unit: UnitStart) -> bool:
    return any(socket.unit == _SOCKET for socket in unit.sockets)


def refuse_broker(root: ImageRoot, units: Collection[str]) -> None:
    """Raise UnsupportedUnitError when one of ``units`` is dbus-broker. The starter does not support dbus-broker for two
    reasons. First, dbus-broker has a launcher, which passes the bus socket on to the broker. Second, this launcher asks
    systemd for services in another way than dbus-daemon does.
    """
    for name in units:
        if _BROKER in (name, *_names_of(root, name)):
            raise UnsupportedUnitError(
                f"{name} cannot be started early: it is dbus-broker, and only dbus-daemon is known",
                hint="remove the package dbus-broker from the image, so that dbus.service is dbus-daemon",
            )


def refuse_other_bus(unit: UnitStart) -> None:
    """Raise UnsupportedUnitError when ``unit`` is the message bus, but does not start dbus-daemon in the way in which
    Debian's package does.
    """
    if unit.unit != BUS and not is_bus(unit):
        return
    is_daemon = PurePosixPath(unit.start.program).name == "dbus-daemon" and {*unit.start.words} >= _WORDS
    places = [socket.path for socket in unit.sockets]
    if not is_daemon or unit.unit != BUS or unit.type != "notify" or places != [_PLACE]:
        raise UnsupportedUnitError(
            f"{unit.unit} cannot be started early: it is the message bus, and is not started as Debian starts dbus-daemon",
            hint=f"remove from the image what changes {BUS} or {_SOCKET}",
        )


def _names_of(root: ImageRoot, unit: str) -> tuple[str, ...]:
    try:
        return (*names_of(root, unit), unit_file(root, unit).name)
    except (StartSetError, UnsupportedUnitError):
        return ()
