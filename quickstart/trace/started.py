"""Parse the log of tracers/units-all (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from quickstart.errors import TraceError
from quickstart.model.started import LoadedUnit
from quickstart.parse.bounded import natural
from quickstart.trace.whole import whole

_ID, _AFTER, _STARTED = "Id", "After", "InactiveExitTimestampMonotonic"
# A machine with a desktop has some five hundred.
_MOST_UNITS = 1 << 16


def parse_units(text: str) -> tuple[LoadedUnit, ...]:
    """The units in the log. Raises TraceError for an incomplete or damaged log, and for a log without units."""
    found = tuple(_units(whole("the units", text)))
    if not 0 < len(found) <= _MOST_UNITS:
        raise _damaged()
    return found


def _units(text: str) -> Iterator[LoadedUnit]:
    for block in text.rstrip("\n").split("\n\n"):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        started_us = natural(values.get(_STARTED, ""))
        if not values.get(_ID) or _AFTER not in values or started_us is None:
            raise _damaged()
        yield LoadedUnit(values[_ID], frozenset(values[_AFTER].split()), started_us)


def _damaged() -> TraceError:
    return TraceError("the log of the units is damaged", hint="build again")
