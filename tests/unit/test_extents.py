"""Where a file's blocks are: debugfs' output as byte ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import ArtefactError
from quickstart.image.extents import parse_extents, tail_extent

HEAD = "Level Entries       Logical        Physical Length Flags\n"
MIB = 1024 * 1024


def test_one_extent() -> None:
    text = HEAD + " 0/ 0   1/  1     0 -  3463  11777 -  15240   3464 \n"
    assert parse_extents(text, 4096) == ((11777 * 4096, 3464 * 4096),)


def test_a_tree_counts_its_leaves_in_the_files_order() -> None:
    text = HEAD + (
        " 0/ 1   1/  1     0 -    30     99             31\n"
        " 1/ 1   1/  4     0 -     9    500 -    509     10 \n"
        " 1/ 1   2/  4    10 -    19    510 -    519     10 \n"
        " 1/ 1   3/  4    20 -    29    100 -    109     10 Uninit\n"
        " 1/ 1   4/  4    30 -    30     40 -     40      1 \n"
    )
    assert parse_extents(text, 1024) == ((500 * 1024, 20 * 1024), (40 * 1024, 1024))


def test_no_such_file() -> None:
    assert parse_extents("/nope: File not found by ext2_lookup\n", 4096) == ()


@given(st.integers(1, 64 * MIB), st.integers(64 * MIB, 10 * 1024 * MIB), st.sampled_from([512, MIB]))
def test_the_tail_is_inside_aligned_and_at_the_end(length: int, volume: int, align: int) -> None:
    offset, found = tail_extent(volume, length, align)
    assert found == length and offset % align == 0
    assert volume - align < offset + length <= volume


def test_a_file_larger_than_the_volume() -> None:
    with pytest.raises(ArtefactError, match="no room"):
        tail_extent(MIB, MIB + 1, 512)
