"""Find the ranges of an ext4 file system that hold nothing. A volume that is made from a snapshot may have any content
in a block that was left out of the snapshot. So `ami create` leaves out only blocks of these ranges.

The block bitmaps say which blocks belong to files (kernel: Documentation/filesystems/ext4/bitmaps.rst). All metadata at
fixed places counts as used, whatever the bitmaps say.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from quickstart.image.ext4layout import Layout, damaged, has_superblock

_BLOCK_UNINIT = 0x2
_RO_COMPAT_GDT_CSUM, _RO_COMPAT_BIGALLOC, _RO_COMPAT_METADATA_CSUM = 0x10, 0x200, 0x400
_FREE = re.compile(b"0+")


@dataclass(frozen=True)
class _Group:
    """The places of the metadata that a group descriptor names, as numbers of blocks."""

    block_bitmap: int
    inode_bitmap: int
    inode_table: int
    is_bitmap_written: bool


def free_ranges(file: BinaryIO, layout: Layout, at_bytes: int, source: str) -> Iterator[tuple[int, int]]:
    """The ranges of free blocks, as (begin, end) in bytes of ``file``, in order. ``at_bytes`` is the place of the file
    system in ``file``. ``source`` names the file in messages. A file system
    with bigalloc has none.

    Raises ArtefactError for a file system that is inconsistent.
    """
    (ro_compat,) = struct.unpack_from("<I", layout.superblock, 0x64)
    if ro_compat & _RO_COMPAT_BIGALLOC:
        # The bits of its bitmaps are clusters of blocks.
        return
    # Without checksums, the kernel does not look at this flag (ext4_has_group_desc_csum).
    has_flags = bool(ro_compat & (_RO_COMPAT_GDT_CSUM | _RO_COMPAT_METADATA_CSUM))
    groups = [_group(layout, index, has_flags, source) for index in range(layout.groups)]
    metadata = _metadata(layout, groups)
    begin = end = 0
    for index, group in enumerate(groups):
        for first, last in _free_in(file, layout, index, group, metadata.get(index, 0), at_bytes):
            if first != end:
                if end > begin:
                    yield at_bytes + begin, at_bytes + end
                begin = first
            end = last
    if end > begin:
        yield at_bytes + begin, at_bytes + end


def _group(layout: Layout, index: int, has_flags: bool, source: str) -> _Group:
    at = index * layout.descriptor_bytes
    places = list(struct.unpack_from("<3I", layout.descriptors, at))
    if layout.wide:
        high = struct.unpack_from("<3I", layout.descriptors, at + 0x20)
        places = [low | more << 32 for low, more in zip(places, high, strict=True)]
    (flags,) = struct.unpack_from("<H", layout.descriptors, at + 0x12)
    lengths = (1, 1, _table_blocks(layout))
    for place, blocks in zip(places, lengths, strict=True):
        if not layout.first_block < place <= layout.blocks - blocks:
            raise damaged(source, f"block group {index} has metadata in block {place}")
    return _Group(places[0], places[1], places[2], not (has_flags and flags & _BLOCK_UNINIT))


def _table_blocks(layout: Layout) -> int:
    return -(-layout.inodes_per_group * layout.inode_bytes // layout.block_bytes)


def _metadata(layout: Layout, groups: list[_Group]) -> dict[int, int]:
    """The blocks of metadata in each group: bit n of the number of a group is block n of this group."""
    used: dict[int, int] = {}

    def use(first: int, blocks: int) -> None:
        while blocks > 0:
            index, at = divmod(first - layout.first_block, layout.blocks_per_group)
            here = min(blocks, layout.blocks_per_group - at)
            used[index] = used.get(index, 0) | ((1 << here) - 1) << at
            first, blocks = first + here, blocks - here

    (reserved,) = struct.unpack_from("<H", layout.superblock, 0xCE)
    descriptors = -(-layout.groups * layout.descriptor_bytes // layout.block_bytes)
    for index, group in enumerate(groups):
        use(group.block_bitmap, 1)
        use(group.inode_bitmap, 1)
        use(group.inode_table, _table_blocks(layout))
        if has_superblock(layout, index):
            use(layout.first_block + index * layout.blocks_per_group, 1 + descriptors + reserved)
    return used


def _free_in(
    file: BinaryIO, layout: Layout, index: int, group: _Group, metadata: int, at_bytes: int
) -> Iterator[tuple[int, int]]:
    """The ranges of free blocks of one group, as (begin, end) in bytes of the file system."""
    first = layout.first_block + index * layout.blocks_per_group
    blocks = min(layout.blocks_per_group, layout.blocks - first)
    used = metadata
    if group.is_bitmap_written:
        file.seek(at_bytes + group.block_bitmap * layout.block_bytes)
        used |= int.from_bytes(file.read(layout.block_bytes), "little")
    # The digits of a number begin with the highest bit.
    digits = f"{used & (1 << blocks) - 1:0{blocks}b}"[::-1].encode()
    for run in _FREE.finditer(digits):
        yield (first + run.start()) * layout.block_bytes, (first + run.end()) * layout.block_bytes
