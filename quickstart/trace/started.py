"""Parse the log of the script tracers/units-all. This log lists the units of the reference boot, the mounts of /, and
the machine's network settings. This module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from quickstart.errors import TraceError
from quickstart.model.started import Card, Loaded, LoadedUnit, RootMount, Route, Wired
from quickstart.parse.bounded import natural
from quickstart.trace.whole import whole

_ROOT, _CARD, _ROUTE, _LOCAL = "Root=", "Card=", "Route=", "Local="
_ID, _AFTER, _STARTED = "Id", "After", "InactiveExitTimestampMonotonic"
_EXAMINED, _FILE, _DROP_INS = "ConditionTimestampMonotonic", "FragmentPath", "DropInPaths"
_ALWAYS_SAID = frozenset({_ID, _AFTER, _STARTED, _EXAMINED, _FILE, _DROP_INS})
# A machine with a desktop has some five hundred.
_MOST_UNITS = 1 << 13
_MOST_WORDS = 1 << 18
_MOST_DROP_INS = 64
# The root's mounts, one over the other, and what there is of the network.
_MOST_LINES = 1024
_WORD = re.compile(r'(?<![^ ])(?:([^ "\\]+)|"((?:[^"\\]|\\["\\`$])+)")(?![^ ])')
_ESCAPED = re.compile(r'\\(["\\`$])')


def parse_units(text: str) -> Loaded:
    """The units, mounts of / and network settings in the log ``text``. Raises TraceError for a log that is incomplete
    or damaged, has no unit or no mount of /, or has more entries than the log of any real machine.
    """
    machine, _, units = whole("the units", text).partition("\n\n")
    # This is checked before there is an object for each line.
    if (
        text.count(f"\n{_ID}=") > _MOST_UNITS
        or text.count(" ") > _MOST_WORDS
        or machine.count("\n") >= _MOST_LINES
    ):
        raise _damaged()
    lines = machine.split("\n")
    if any(not line.startswith((_ROOT, _CARD, _ROUTE, _LOCAL)) for line in lines):
        raise _damaged()
    try:
        wired = Wired(tuple(_cards(lines)), tuple(_routes(lines)), tuple(_addresses(lines)))
    except ValueError:
        raise _damaged() from None
    loaded = Loaded(tuple(_units(units)), tuple(_roots(lines)), wired)
    if not loaded.roots or not loaded.units:
        raise _damaged()
    return loaded


def _of_kind(lines: list[str], kind: str, most_words: int) -> Iterator[list[str]]:
    for line in lines:
        if line.startswith(kind):
            words = line.removeprefix(kind).split(" ")
            if len(words) != most_words:
                raise _damaged()
            yield words


def _roots(lines: list[str]) -> Iterator[RootMount]:
    for inside, fs_type in _of_kind(lines, _ROOT, 2):
        yield RootMount(inside, fs_type)


def _cards(lines: list[str]) -> Iterator[Card]:
    for name, how, mac in _of_kind(lines, _CARD, 3):
        if how not in ("free", "enslaved"):
            raise _damaged()
        yield Card(name, mac, is_enslaved=how == "enslaved")


def _routes(lines: list[str]) -> Iterator[Route]:
    for interface, destination, gateway, mask in _of_kind(lines, _ROUTE, 4):
        network = IPv4Network((str(_address(destination)), str(_address(mask))))
        yield Route(interface, network, _address(gateway) if gateway.strip("0") else None)


def _addresses(lines: list[str]) -> Iterator[IPv4Address]:
    # The kernel lists its tables one after the other, and may list an address in each.
    yield from dict.fromkeys(IPv4Address(word) for (word,) in _of_kind(lines, _LOCAL, 1))


def _address(text: str) -> IPv4Address:
    """The address in ``text``, which the kernel writes as a hexadecimal number of eight digits in
    little-endian byte order. Raises TraceError for another length, and ValueError for other characters.
    """
    if len(text) != 8:
        raise _damaged()
    return IPv4Address(int.from_bytes(bytes.fromhex(text), "little"))


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
    """The words of a list. systemctl writes a word with a backslash or another special character between double quotes,
    and such a character behind a backslash (shell_maybe_quote in systemd's src/basic/escape.c). Raises TraceError for a
    word of another form.
    """
    if _WORD.sub("", value).strip(" "):
        raise _damaged()
    found = _WORD.findall(value)
    return tuple(plain or _ESCAPED.sub(r"\1", quoted) for plain, quoted in found)


def _damaged() -> TraceError:
    return TraceError("the log of the units is damaged", hint="build again")
