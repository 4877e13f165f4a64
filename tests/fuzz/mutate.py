"""Mutations beside libFuzzer's own changes of bytes: they change or repeat lines, words and numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"255",
    b"65536",
    b"2147483648",
    b"4294967295",
    b"18446744073709551616",
    b"9" * 400,
    b"9" * 5000,
)
_BINARY = (b"\0" * 4, b"\xff" * 4, b"\xff" * 8, b"\0\0\0\x80", b"\x80\0\0\0", b"\1\0\0\0")
_TIMES = (2, 30, 1000, 20_000)


def mutated(data: bytes, words: Sequence[bytes], most_bytes: int, chance: random.Random) -> bytes:
    """``data`` with one to three changes, at most ``most_bytes`` of it."""
    for _ in range(chance.randint(1, 3)):
        data = chance.choice(_CHANGES)(data, words, chance)[:most_bytes]
    return data


def _place(data: bytes, chance: random.Random) -> tuple[int, int]:
    """Begin and end of a piece."""
    begin = chance.randint(0, len(data))
    return begin, min(len(data), begin + chance.choice((0, 1, 4, 8, 30, 200)))


def _line(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    """A line moved, doubled, removed, or one many times."""
    lines = data.split(b"\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    what = chance.randrange(4)
    if what == 0:
        lines[at], lines[to] = lines[to], lines[at]
    elif what == 1:
        lines.insert(to, lines[at])
    elif what == 2:
        del lines[at]
    else:
        lines[at:at] = [lines[at]] * chance.choice(_TIMES[:3])
    return b"\n".join(lines)


def _number(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    found = list(re.finditer(rb"[0-9]+", data[:20_000]))
    if not found:
        return data
    match = chance.choice(found)
    return data[: match.start()] + chance.choice(_NUMBERS) + data[match.end() :]


def _word(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    begin, end = _place(data, chance)
    return data[:begin] + chance.choice((*words, b"\n", b"\0", b"\xff")) + data[chance.choice((begin, end)) :]


def _many(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    """A word, or a piece, again and again."""
    begin, end = _place(data, chance)
    piece = chance.choice((*words, b"(", b"[", b" ", data[begin:end]))
    return data[:begin] + piece * chance.choice(_TIMES) + data[begin:]


def _bytes(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begin, _end = _place(data, chance)
    new = chance.choice((*_BINARY, bytes([chance.randrange(256)])))
    return data[:begin] + new + data[begin + len(new) :]


def _cut(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begin, end = _place(data, chance)
    return data[:begin] if chance.randrange(8) == 0 else data[:begin] + data[end:]


def _swapped(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begin, end = _place(data, chance)
    to, _end = _place(data, chance)
    return data[:to] + data[begin:end] + data[to:]


_CHANGES = (_line, _number, _word, _many, _bytes, _cut, _swapped)
