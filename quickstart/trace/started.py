"""Parse the log of tracers/units-all (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from quickstart.errors import TraceError
from quickstart.model.started import Loaded, LoadedUnit, RootMount
from quickstart.parse.bounded import natural
from quickstart.trace.whole import whole

_ROOT = "Root="
_ID, _AFTER, _STARTED = "Id", "After", "InactiveExitTimestampMonotonic"
_EXAMINED, _FILE, _DROP_INS = "ConditionTimestampMonotonic", "FragmentPath", "DropInPaths"
_ALWAYS_SAID = frozenset({_ID, _AFTER, _STARTED, _EXAMINED, _FILE, _DROP_INS})
# A machine with a desktop has some five hundred.
_MOST_UNITS = 1 << 13
_MOST_WORDS = 1 << 18
_MOST_DROP_INS = 64
# Of the root's mounts, one over the other.
_MOST_ROOTS = 16


def parse_units(text: str) -> Loaded:
    """The account in the log. Raises TraceError for an incomplete or damaged log, and for a log that has no
    unit or no mount of the root, or more of something than any machine has.
    """
    roots, _, units = whole("the units", text).partition("\n\n")
    # Before there is an object for each.
    if (
        text.count(f"\n{_ID}=") > _MOST_UNITS
        or text.count(" ") > _MOST_WORDS
        or roots.count("\n") >= _MOST_ROOTS
    ):
        raise _damaged()
    loaded = Loaded(tuple(_units(units)), tuple(_roots(roots)))
    if not loaded.roots or not loaded.units:
        raise _damaged()
    return loaded


def _roots(text: str) -> Iterator[RootMount]:
    for line in text.split("\n"):
        words = line.removeprefix(_ROOT).split(" ")
        if not line.startswith(_ROOT) or len(words) != 2:
            raise _damaged()
        yield RootMount(*words)


def _units(text: str) -> Iterator[LoadedUnit]:
    for block in text.rstrip("\n").split("\n\n"):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        started_us, examined_us = natural(values.get(_STARTED, "")), natural(values.get(_EXAMINED, ""))
        if (
            not values.get(_ID)
            or started_us is None
            or examined_us is None
            or not values.keys() >= _ALWAYS_SAID
            or len(drop_ins := _words(values[_DROP_INS])) > _MOST_DROP_INS
        ):
            raise _damaged()
        yield LoadedUnit(
            name=values[_ID],
            after=frozenset(_words(values[_AFTER])),
            started_us=started_us,
            examined_us=examined_us,
            file=values[_FILE],
            drop_ins=drop_ins,
        )


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in value.split(" ") if word)


def _damaged() -> TraceError:
    return TraceError("the log of the units is damaged", hint="build again")
