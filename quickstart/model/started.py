"""What systemd started in a boot. This module imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass


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

    ``after`` are the units that it comes after, by systemd's own account. ``started_us`` is the uptime at
    which systemd last started the unit, or 0. ``examined_us`` is the uptime at which systemd last examined the
    conditions of the unit, or 0; systemd does so each time before it starts a unit. ``file`` is the unit file,
    empty for a unit without one. ``drop_ins`` are the files of its drop-ins.
    """

    name: str
    after: frozenset[str]
    started_us: int
    examined_us: int = 0
    file: str = ""
    drop_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """systemd's account of a boot at ready: all units that it had loaded, and what was mounted as /."""

    units: tuple[LoadedUnit, ...] = ()
    roots: tuple[RootMount, ...] = ()


NOTHING_LOADED = Loaded()
