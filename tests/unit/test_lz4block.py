"""A block without short matches: liblz4's own decoder gives the same data, from fewer sequences."""

from __future__ import annotations

import random

import lz4.block
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quickstart.initramfs.lz4block import without_short_matches

# Pieces that come again, of lengths around those that a token and one more byte hold.
PIECES = st.lists(st.integers(0, 300).map(lambda seed: random.Random(seed).randbytes(seed)), max_size=40)


def compressed(data: bytes) -> bytes:
    return bytes(lz4.block.compress(data, mode="high_compression", compression=9, store_size=False))


def unpacked(block: bytes, data: bytes) -> bytes:
    return bytes(lz4.block.decompress(block, uncompressed_size=len(data)))


@given(PIECES.map(b"".join), st.integers(0, 400))
@example(b"", 12)
@example(bytes(100_000), 12)
@example(random.Random(1).randbytes(3_000), 12)
@example(random.Random(2).randbytes(20) * 3 + bytes(5_000), 12)
def test_it_unpacks_to_the_same(data: bytes, shortest_bytes: int) -> None:
    assert unpacked(without_short_matches(compressed(data), data, shortest_bytes), data) == data


@given(PIECES.map(b"".join))
def test_where_no_match_is_short_nothing_is_changed(data: bytes) -> None:
    block = compressed(data)
    # No match has less than four bytes.
    assert without_short_matches(block, data, 4) == block


@pytest.mark.parametrize(("length", "kept"), [(11, False), (12, True), (13, True)])
def test_a_match_of_the_shortest_length_stays(length: int, kept: bool) -> None:
    source = random.Random(3)
    again = source.randbytes(length)
    data = again + source.randbytes(100) + again + source.randbytes(100)
    block = compressed(data)
    assert len(block) < len(data)
    assert (without_short_matches(block, data, 12) == block) is kept
    # A block of literals only: a token, and the length's rest in one byte.
    assert kept or without_short_matches(block, data, 12) == b"\xf0" + bytes([len(data) - 15]) + data


def test_many_short_matches_become_few_sequences() -> None:
    source = random.Random(4)
    words = [source.randbytes(length) for length in (5, 6, 7, 40)]
    data = b"".join(source.choice(words) + source.randbytes(3) for _ in range(2_000))
    block = compressed(data)
    less = without_short_matches(block, data, 12)
    assert unpacked(less, data) == data
    # The words of 40 bytes alone.
    assert len(block) < len(less) < 0.75 * len(data)
