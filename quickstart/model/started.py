"""The data classes for what systemd started in a boot, and for the network that the boot set up. This module
imports no module of QuickStart.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import PurePosixPath


@dataclass(frozen=True)
class RootMount:
    """A file system that is mounted as /. ``inside`` is the path of the mounted directory inside this file
    system: ``/`` when the whole file system is mounted. ``fs_type`` is for example ``ext4`` or ``overlay``.
    """

    inside: str
    fs_type: str


@dataclass(frozen=True, kw_only=True)
class LoadedUnit:
    """A unit that systemd had loaded at ready.

    ``after`` are the units that this unit is ordered after, as systemd reports them. ``started_us`` is the uptime at
    which systemd last started the unit, or 0. ``examined_us`` is the uptime at which systemd last examined the
    conditions of the unit, or 0. systemd examines the conditions every time before it starts a unit. ``file`` is the
    path of the unit file, or empty for a unit without a file. ``drop_ins`` are the paths of the unit's drop-ins.
    """

    name: str
    after: frozenset[str]
    started_us: int
    examined_us: int = 0
    file: str = ""
    drop_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """A network card. ``mac`` is its present MAC address. ``is_enslaved`` means that the card is a port of
    another interface, such as a bridge.
    """

    name: str
    mac: str
    is_enslaved: bool = False


@dataclass(frozen=True)
class Route:
    """A route of the kernel's main table. A route to the interface's own network has no gateway."""

    interface: str
    network: IPv4Network
    gateway: IPv4Address | None = None


@dataclass(frozen=True)
class Wired:
    """The machine's network cards, IPv4 routes and own IPv4 addresses."""

    cards: tuple[Card, ...] = ()
    routes: tuple[Route, ...] = ()
    addresses: tuple[IPv4Address, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The state of a boot at ready: all units that systemd had loaded, the file system that was mounted as /,
    and the network.
    """

    units: tuple[LoadedUnit, ...] = ()
    roots: tuple[RootMount, ...] = ()
    wired: Wired = Wired()


NOTHING_LOADED = Loaded()


@dataclass(frozen=True)
class Changed:
    """The paths that processes outside of the profile's units changed during a boot. A program of the profile's units
    used the paths ``before_unit`` after the change. systemd used the paths ``before_manager`` after the change, for the
    profile's units or for other units.
    """

    before_unit: tuple[PurePosixPath, ...] = ()
    before_manager: tuple[PurePosixPath, ...] = ()


NOTHING_CHANGED = Changed()


@dataclass(frozen=True)
class Peer:
    """A connection of a unit's program to a local socket that another process of the boot had bound. ``path`` is the
    socket's path or, with @ in front, its abstract name. ``program`` is the unit's program that connected. ``command``
    is the program of a command in the unit file, such as ExecStart=. The process of this command, or a descendant of
    this process, has run ``program``.
    """

    path: str
    program: str
    command: str
