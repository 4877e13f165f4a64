"""Change LZ4 blocks so that the kernel unpacks them in fewer steps (docs/internals/payload.md). This module removes
the short matches from the blocks that a compressor has made.

A block (lz4's lz4_Block_format.md) is a series of sequences. A sequence has a token, literals and a match, which is an
offset of 2 bytes and a length. The last sequence has no match. A match refers to a position in the unpacked bytes, and
not to a position in the block. So when a match is replaced by the same bytes as literals, all other matches stay
valid. For each replaced match, the block grows by about the match's length minus 3 bytes, and the kernel saves one
round of its loop, about 50 instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_LEAST_MATCH_BYTES = 4
# A length that does not fit into its half of the token continues in further bytes, each of which adds at most 255.
_HALF = 15
_MOST = 255


class _Match(NamedTuple):
    """The match of a sequence. This class is not a dataclass, because there are millions of matches. ``begin`` is the
    match's position in the unpacked data, and ``offset`` has the two offset bytes from the block.
    """

    begin: int
    length: int
    offset: bytes


def without_short_matches(block: bytes, data: bytes, shortest_bytes: int) -> bytes:
    """A block that unpacks to the same ``data`` as ``block``, but has no matches shorter than ``shortest_bytes``.

    ``block`` must be a valid block from a compressor. For any other block, the function raises IndexError or returns a
    wrong result.
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
    """A length in a sequence, and the position after the length. The length begins in ``half``, which is one half of
    the sequence's token, and continues at the position ``at``.
    """
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
