"""The data classes for what systemd started in a boot, and for the network that the boot set up. This module
imports no module of QuickStart.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import PurePosixPath


@dataclass(frozen=True)
class RootMount:
    """A file system that is mounted as /. ``inside`` is the directory of the file system that is mounted, and
    ``/`` for the whole file system. ``fs_type`` is for example ``ext4`` or ``overlay``.
    """

    inside: str
    fs_type: str


@dataclass(frozen=True, kw_only=True)
class LoadedUnit:
    """A unit that systemd had loaded at ready.

    ``after`` are the units that it is ordered after, as systemd reports them. ``started_us`` is the uptime at
    which systemd last started the unit, or 0. ``examined_us`` is the uptime at which systemd last examined
    the conditions of the unit, or 0; systemd does so each time before it starts a unit. ``file`` is the unit
    file, empty for a unit without one. ``drop_ins`` are the files of its drop-ins.
    """

    name: str
    after: frozenset[str]
    started_us: int
    examined_us: int = 0
    file: str = ""
    drop_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """A network card. ``mac`` is its present address. ``is_enslaved`` means that it is a port of another interface,
    such as a bridge.
    """

    name: str
    mac: str
    is_enslaved: bool = False


@dataclass(frozen=True)
class Route:
    """A route of the kernel's main table. It has no gateway when the network is the interface's own."""

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
    """The paths that other processes of a boot had changed before a program of the unit used them
    (``before_unit``), and before systemd used them, for whatever unit (``before_manager``).
    """

    before_unit: tuple[PurePosixPath, ...] = ()
    before_manager: tuple[PurePosixPath, ...] = ()


NOTHING_CHANGED = Changed()
