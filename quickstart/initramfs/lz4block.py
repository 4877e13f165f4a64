"""LZ4 blocks that unpack in fewer steps: a compressor's blocks without their short matches
(docs/internals/payload.md).

A block (lz4's lz4_Block_format.md) is a row of sequences: a token, literals, and, except in the last, a
match: 2 bytes of offset and a length. A match refers to unpacked bytes, whatever made them. So a match that
is replaced by literals of the same bytes changes no other one. The block grows by some 3 bytes less than
the match's length, and the kernel saves one round of its loop, some 50 instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_LEAST_MATCH_BYTES = 4
# A length that does not fit in its half of the token goes on in bytes of which each says at most 255.
_HALF = 15
_MOST = 255


class _Match(NamedTuple):
    """A sequence; there are millions, so it is no dataclass. ``begin`` is its offset in the unpacked data,
    ``offset`` the block's two bytes.
    """

    begin: int
    length: int
    offset: bytes


def without_short_matches(block: bytes, data: bytes, shortest_bytes: int) -> bytes:
    """The block for the same ``data`` without matches below ``shortest_bytes``.

    ``block`` must be a compressor's valid one; another one gives an IndexError or nonsense.
    """
    made = bytearray()
    literals_begin = 0
    for match in _matches(block):
        if match.length >= shortest_bytes:
            _put(made, data[literals_begin : match.begin], match)
            literals_begin = match.begin + match.length
    _put(made, data[literals_begin:], None)
    return bytes(made)


def _matches(block: bytes) -> Iterator[_Match]:
    at = unpacked = 0
    while True:
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        at += literals
        unpacked += literals
        if at == len(block):
            return
        offset = block[at : at + 2]
        length, at = _length(block, at + 2, token & _HALF)
        length += _LEAST_MATCH_BYTES
        yield _Match(unpacked, length, offset)
        unpacked += length


def _length(block: bytes, at: int, half: int) -> tuple[int, int]:
    """A length that begins with that half of the token, and where what follows it stands."""
    if half < _HALF:
        return half, at
    length = half
    while block[at] == _MOST:
        length += _MOST
        at += 1
    return length + block[at], at + 1


def _put(made: bytearray, literals: bytes, match: _Match | None) -> None:
    more = match.length - _LEAST_MATCH_BYTES if match else 0
    made.append(min(len(literals), _HALF) << 4 | min(more, _HALF))
    made += _rest(len(literals))
    made += literals
    if match:
        made += match.offset
        made += _rest(more)


def _rest(length: int) -> bytes:
    if length < _HALF:
        return b""
    whole, last = divmod(length - _HALF, _MOST)
    return bytes([_MOST]) * whole + bytes([last])
