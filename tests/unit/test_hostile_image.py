"""Malicious ext4 images: each is read correctly or ends in an error of ours that names it, without a hang or much memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import ArtefactError
from quickstart.image import blockmap
from quickstart.image.blockmap import Kind, read_block_map
from quickstart.image.ext4 import block_groups, used_inodes
from quickstart.image.extents import file_extents, parse_extents
from quickstart.image.superblock import read_superblock
from tests.unit.ext4builder import (
    BLOCK,
    BLOCK_BITMAP,
    DATA,
    DESCRIPTORS,
    FILE,
    INODE_BITMAP,
    INODE_TABLE,
    POINTERS,
    ROOT,
    ext4,
    extents,
    inode_at,
)
from tests.unit.hostile import ANY_FIXTURE, bounded


def written(place: Path, image: bytes | bytearray) -> Path:
    path = place / "root.raw"
    path.write_bytes(image)
    return path


def refused(path: Path, what: str = "root.raw") -> None:
    """By each reader of the layout."""
    for read in (read_block_map, used_inodes, block_groups):
        with bounded(), pytest.raises(ArtefactError, match=what) as caught:
            read(path)
        assert str(path) in caught.value.message


def test_the_crafted_image_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, ext4())
    found = {run.kind: run for run in read_block_map(path).runs if run.path == PurePosixPath("/file")}
    assert found[Kind.FILE].first_block == DATA and found[Kind.FILE].blocks == 4
    assert used_inodes(path) == (2, 11, 12)
    assert [group.blocks for group in block_groups(path)] == [63]


def test_names_of_more_inodes_than_a_root_volume_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bitmap has to say that they are used, so the bound of the bitmaps is none for them."""
    path = written(tmp_path, ext4())
    monkeypatch.setattr(blockmap, "MAX_USED_INODES", 1)
    with pytest.raises(ArtefactError, match="has more than 1 inodes"):
        read_block_map(path)


def test_an_image_cut_anywhere(tmp_path: Path) -> None:
    whole = ext4()
    for size in (0, 1, 1023, 1024, 1500, 2047, 2048, 3000, len(whole) - 1):
        refused(written(tmp_path, whole[:size]))
        if size < 2048:
            with pytest.raises(ArtefactError):
                read_superblock(tmp_path / "root.raw")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"inodes_per_group": 0}, "0 inodes per group"),
        ({"blocks_per_group": 0}, "0 blocks and"),
        ({"blocks_per_group": 248}, "248 blocks and"),
        ({"log_block_size": 4_000_000_000}, "1024 << 4000000000 bytes"),
        ({"log_block_size": 7}, "1024 << 7 bytes"),
        ({"inodes_count": 0}, "0 inodes in 1 groups"),
        ({"inodes_count": 2**32 - 1}, "4294967295 inodes in 1 groups"),
        ({"inodes_per_group": 8, "inodes_count": 2**32 - 8}, "in 1 groups of 8"),
        ({"blocks_count_lo": 2**32 - 1}, "4294967295 blocks"),
        ({"blocks_count_lo": 0}, "0 groups|in 0"),
        ({"first_data_block": 2**32 - 1}, "from 4294967295 on"),
        ({"inode_size": 0}, "inodes have 0 bytes"),
        ({"inode_size": 127}, "inodes have 127 bytes"),
        ({"inode_size": 65535}, "inodes have 65535 bytes"),
        ({"feature_incompat": 0xC2, "desc_size": 0}, "descriptors have 0 bytes"),
        ({"feature_incompat": 0xC2, "desc_size": 128}, "descriptors have 128 bytes"),
        ({"feature_incompat": 0xC2, "desc_size": 65535}, "descriptors have 65535 bytes"),
        ({"feature_incompat": 0xC2, "desc_size": 64, "blocks_count_hi": 2**32 - 1}, "blocks of 1024 bytes"),
        ({"feature_incompat": 0x52}, "meta_bg"),
        ({"magic": 0}, "no ext4 superblock"),
    ],
)
def test_a_superblock_that_lies(tmp_path: Path, changes: dict[str, int], what: str) -> None:
    refused(written(tmp_path, ext4(changes)), what)
    if "log_block_size" in changes:
        with bounded(), pytest.raises(ArtefactError, match=what):
            file_extents(tmp_path / "root.raw", PurePosixPath("/file"))


def test_groups_without_end_in_a_sparse_file(tmp_path: Path) -> None:
    path = written(
        tmp_path, ext4({"blocks_per_group": 256, "blocks_count_lo": 2**32 - 1, "inodes_count": 2**32 - 8})
    )
    os.truncate(path, 2**32 * BLOCK)
    refused(path, "groups of 16")


@pytest.mark.parametrize("level", [12, 13, 14])
def test_a_classic_map_that_points_to_itself(tmp_path: Path, level: int) -> None:
    """Triple-indirect: 256 to the third power of blocks."""
    pointers = [0] * 15
    pointers[level] = POINTERS
    image = ext4(classic=struct.pack("<15I", *pointers))
    image[POINTERS * BLOCK : (POINTERS + 1) * BLOCK] = struct.pack("<256I", *[POINTERS] * 256)
    path = written(tmp_path, image)
    with bounded():
        if level == 12:
            # One level only: the file has one block, many times over.
            assert any(run.path == PurePosixPath("/file") for run in read_block_map(path).runs)
        else:
            with pytest.raises(ArtefactError, match=r"block 8 leads to blocks of /file"):
                read_block_map(path)


@pytest.mark.parametrize("depth", [5, 1])
def test_a_tree_of_extents_that_points_to_itself(tmp_path: Path, depth: int) -> None:
    image = ext4(map_of_file=extents(*[(0, 0, POINTERS)] * 4, depth=depth))
    node = extents(*[(0, 0, POINTERS)] * 84, depth=depth - 1)
    image[POINTERS * BLOCK : POINTERS * BLOCK + len(node)] = node
    with bounded(), pytest.raises(ArtefactError, match="leads to blocks of /file"):
        read_block_map(written(tmp_path, image))


@pytest.mark.parametrize(
    "node",
    [
        extents((0, 1, DATA), depth=6),
        b"\x0a\xf3\xff\xff" + extents((0, 1, DATA))[4:],
        extents((0, 4, 2**32 - 1)),
        extents((0, 32767, DATA)),
        b"\0" * 60,
    ],
)
def test_extents_that_lie(tmp_path: Path, node: bytes) -> None:
    with bounded(), pytest.raises(ArtefactError, match="damaged"):
        read_block_map(written(tmp_path, ext4(map_of_file=node)))


@pytest.mark.parametrize("leaves", [[(0, 40, ROOT)] * 4, [(0, 1, ROOT + 1), (1, 1, ROOT + 1)]])
def test_directories_that_lie_on_each_other(tmp_path: Path, leaves: list[tuple[int, int, int]]) -> None:
    """Extents of one directory over the same blocks: 12 000 of them over 32 blocks took 78 s."""
    image = ext4()
    node = extents(*leaves)
    image[inode_at(2) + 0x28 : inode_at(2) + 0x28 + len(node)] = node
    for block in range(ROOT, ROOT + 40):
        image[block * BLOCK : (block + 1) * BLOCK] = struct.pack("<IHBB", 0, BLOCK, 0, 0).ljust(BLOCK, b"\0")
    with bounded(), pytest.raises(ArtefactError, match="has blocks of others"):
        read_block_map(written(tmp_path, image))


def test_paths_have_a_limit_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 000 names below directories of long names took 1 GiB."""
    path = written(tmp_path, ext4())
    monkeypatch.setattr(blockmap, "_MAX_PATH_BYTES", 80)
    assert PurePosixPath("/file") in read_block_map(path).inodes
    monkeypatch.setattr(blockmap, "_MAX_PATH_BYTES", 20)
    with pytest.raises(ArtefactError, match="or very long names"):
        read_block_map(path)


@pytest.mark.parametrize("table", [1, 2, 4, INODE_BITMAP])
def test_metadata_that_lie_on_each_other(tmp_path: Path, table: int) -> None:
    image = ext4()
    struct.pack_into("<3I", image, DESCRIPTORS * BLOCK, BLOCK_BITMAP, INODE_BITMAP, table)
    with pytest.raises(ArtefactError, match=r"damaged: .* and .* at block \d+"):
        read_block_map(written(tmp_path, image))


def test_a_file_that_lies_on_an_inode_table(tmp_path: Path) -> None:
    """The table's second block is still that of inode 9 and above."""
    path = written(tmp_path, ext4(map_of_file=extents((0, 2, INODE_BITMAP))))
    found = read_block_map(path).owners((INODE_TABLE + 1) * BLOCK, BLOCK)
    assert found[0].kind is Kind.INODE_TABLE and found[0].inodes == (PurePosixPath("/file"),)


def test_a_directory_that_is_its_own_child_is_walked_once(tmp_path: Path) -> None:
    image = ext4()
    at = ROOT * BLOCK + 24
    struct.pack_into("<I", image, at, 2)
    with bounded():
        assert PurePosixPath("/file") not in read_block_map(written(tmp_path, image)).inodes


@pytest.mark.parametrize(("number", "what"), [(2**32 - 1, "no inode 4294967295"), (17, "no inode 17")])
def test_an_entry_of_an_inode_that_there_is_not(tmp_path: Path, number: int, what: str) -> None:
    image = ext4()
    struct.pack_into("<I", image, ROOT * BLOCK + 24, number)
    with pytest.raises(ArtefactError, match=what):
        read_block_map(written(tmp_path, image))


@pytest.mark.parametrize("name", [b"../x", b"a\0bc", b"/abs"])
def test_a_name_that_is_none(tmp_path: Path, name: bytes) -> None:
    image = ext4()
    image[ROOT * BLOCK + 32 : ROOT * BLOCK + 36] = name
    with pytest.raises(ArtefactError, match="has the name"):
        read_block_map(written(tmp_path, image))


def test_inodes_that_only_a_bitmap_has(tmp_path: Path) -> None:
    """A sparse image of 4 GiB, of which 300 KiB are there: two million inodes in use, all of them zeros."""
    groups = 512
    image = ext4({"blocks_count_lo": groups * 8192, "inodes_count": groups * 8192, "inodes_per_group": 8192})
    table = struct.pack("<3I", BLOCK_BITMAP, 64, INODE_TABLE) + bytes(20)
    image[DESCRIPTORS * BLOCK : 64 * BLOCK] = (table * groups).ljust(62 * BLOCK, b"\0")
    path = written(tmp_path, image + b"\xff" * BLOCK)
    os.truncate(path, groups * 8192 * BLOCK)
    # The map of the file takes its size of addresses, and no memory.
    for read, mib in ((used_inodes, 512), (read_block_map, 4096 + 512)):
        with (
            bounded(mib=mib),
            pytest.raises(ArtefactError, match="more than 1048576 inodes are said to be in use"),
        ):
            read(path)


def test_a_used_inode_of_zeros_has_no_place(tmp_path: Path) -> None:
    assert PurePosixPath("inode 11") not in read_block_map(written(tmp_path, ext4())).inodes


def test_bitmaps_beyond_the_end(tmp_path: Path) -> None:
    image = ext4()
    struct.pack_into("<3I", image, DESCRIPTORS * BLOCK, 1, 2**32 - 1, 1)
    with pytest.raises(ArtefactError, match="inode bitmap of group 0 lies at block 4294967295"):
        used_inodes(written(tmp_path, image))


def test_each_bit_of_the_bitmap_is_found(tmp_path: Path) -> None:
    image = ext4()
    image[INODE_BITMAP * BLOCK : INODE_BITMAP * BLOCK + 2] = b"\x02\x8c"
    assert used_inodes(written(tmp_path, image)) == (2, 11, FILE, 16)


@given(st.lists(st.tuples(st.integers(0, 11 * BLOCK), st.binary(min_size=1, max_size=8)), max_size=6))
@ANY_FIXTURE
def test_an_image_with_any_bytes_changed(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    image = ext4()
    for at, new in changes:
        image[at : at + len(new)] = new
    path = written(tmp_path, image)
    for read in (read_block_map, used_inodes, block_groups, read_superblock):
        try:
            read(path)
        except ArtefactError as error:
            assert str(path) in error.message


def test_what_debugfs_says_of_extents_has_numbers_of_any_length() -> None:
    line = f" 0/ 0   1/  1     0 -  3463  {'1' * 5000} -  15240   3464 \n"
    with bounded():
        assert parse_extents(line, 4096) == ()
        assert parse_extents(" " * 200_000 + "\n", 4096) == ()
