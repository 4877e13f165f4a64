"""The data class for a unit that systemd loaded in a boot. This module imports no module of QuickStart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadedUnit:
    """A unit that systemd had loaded at ready. ``after`` are the units that come before it, according to
    systemd itself (systemctl(1), property After). ``started_us`` is the uptime at which systemd first started
    the unit, or 0 when systemd did not start it.
    """

    name: str
    after: frozenset[str]
    started_us: int
