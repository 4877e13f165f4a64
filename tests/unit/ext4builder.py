"""Crafts a small ext4 image, so that tests need neither a tool nor a megabyte.

It has one group of blocks of 1 KiB, and a root directory with one file, mapped by extents or by the classic
map.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

BLOCK = 1024
BLOCKS = 64
INODES = 16
# Blocks.
DESCRIPTORS, BLOCK_BITMAP, INODE_BITMAP, INODE_TABLE, ROOT, POINTERS, DATA = 2, 3, 4, 5, 7, 8, 10
FILE = 12
SUPERBLOCK_AT = 1024
MAP_AT = 0x28
_DIRECTORY, _REGULAR = 0o040755, 0o100644
_EXTENTS = 0x80000


def inode_at(number: int) -> int:
    return INODE_TABLE * BLOCK + (number - 1) * 128


def extents(*leaves: tuple[int, int, int], depth: int = 0) -> bytes:
    """A node of the tree: (logical, blocks, first block) each, or (logical, 0, block of the node) above the leaves."""
    head = struct.pack("<4HI", 0xF30A, len(leaves), 4, depth, 0)
    if depth:
        return head + b"".join(struct.pack("<IIHH", logical, block, 0, 0) for logical, _, block in leaves)
    return head + b"".join(struct.pack("<IHHI", logical, count, 0, block) for logical, count, block in leaves)


def superblock(**changes: int) -> bytes:
    """1024 bytes; ``changes`` by the kernel's names without their `s_`."""
    places = {
        "inodes_count": (0x0, "<I", INODES),
        "blocks_count_lo": (0x4, "<I", BLOCKS),
        "first_data_block": (0x14, "<I", 1),
        "log_block_size": (0x18, "<I", 0),
        "blocks_per_group": (0x20, "<I", 8192),
        "inodes_per_group": (0x28, "<I", INODES),
        "wtime": (0x30, "<I", 1),
        "mnt_count": (0x34, "<H", 0),
        "magic": (0x38, "<H", 0xEF53),
        "state": (0x3A, "<H", 1),
        "rev_level": (0x4C, "<I", 1),
        "inode_size": (0x58, "<H", 128),
        "feature_compat": (0x5C, "<I", 0),
        "feature_incompat": (0x60, "<I", 0x42),
        "feature_ro_compat": (0x64, "<I", 1),
        "desc_size": (0xFE, "<H", 0),
        "blocks_count_hi": (0x150, "<I", 0),
    }
    block = bytearray(1024)
    for name, (at, form, value) in places.items():
        struct.pack_into(form, block, at, changes.get(name, value))
    return bytes(block)


def _inode(mode: int, size: int, flags: int, blocks: bytes) -> bytes:
    inode = bytearray(128)
    struct.pack_into("<HHI", inode, 0, mode, 0, size)
    struct.pack_into("<I", inode, 0x20, flags)
    inode[MAP_AT : MAP_AT + len(blocks)] = blocks
    return bytes(inode)


def _entry(number: int, name: bytes, length: int, kind: int) -> bytes:
    return (struct.pack("<IHBB", number, length, len(name), kind) + name).ljust(length, b"\0")


def ext4(
    changes: Mapping[str, int] | None = None,
    *,
    classic: bytes | None = None,
    map_of_file: bytes | None = None,
) -> bytearray:
    """The image; ``changes`` are of the superblock, ``classic`` is the file's classic map, ``map_of_file`` its node of extents."""
    image = bytearray(BLOCKS * BLOCK)
    image[SUPERBLOCK_AT : SUPERBLOCK_AT + 1024] = superblock(**changes or {})
    struct.pack_into("<3I", image, DESCRIPTORS * BLOCK, BLOCK_BITMAP, INODE_BITMAP, INODE_TABLE)
    image[INODE_BITMAP * BLOCK : INODE_BITMAP * BLOCK + 2] = b"\xff\x0f"
    root = _inode(_DIRECTORY, BLOCK, _EXTENTS, extents((0, 1, ROOT)))
    tree = map_of_file or extents((0, 4, DATA))
    file = _inode(_REGULAR, 4 * BLOCK, 0 if classic else _EXTENTS, classic or tree)
    for number, inode in ((2, root), (FILE, file)):
        image[inode_at(number) : inode_at(number) + 128] = inode
    names = _entry(2, b".", 12, 2) + _entry(2, b"..", 12, 2) + _entry(FILE, b"file", BLOCK - 24, 1)
    image[ROOT * BLOCK : ROOT * BLOCK + BLOCK] = names
    return image
