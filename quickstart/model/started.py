"""What systemd started in a boot. This module imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadedUnit:
    """A unit that systemd had loaded at ready. ``after`` are the units that it comes after, by systemd's own
    account. ``started_us`` is the uptime at which systemd first started the unit, or 0.
    """

    name: str
    after: frozenset[str]
    started_us: int
