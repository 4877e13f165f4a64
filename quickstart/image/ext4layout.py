"""Read the layout of an ext4 file system from the superblock and group descriptors of an untrusted image.

The layout is described in the kernel's Documentation/filesystems/ext4 (super.rst, group_descr.rst). This module refuses
every superblock that ext4_fill_super() in the kernel's fs/ext4/super.c refuses, before it computes any value from the
image.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO

from quickstart.errors import ArtefactError

SUPERBLOCK_AT = 1024
SUPERBLOCK_BYTES = 1024
_MAGIC = 0xEF53
_INCOMPAT_META_BG, _INCOMPAT_64BIT = 0x10, 0x80
_COMPAT_SPARSE_SUPER2 = 0x200
_RO_COMPAT_SPARSE_SUPER = 0x1
# Blocks of 64 KiB.
_MAX_LOG_BLOCK_SIZE = 6
# mke2fs makes no other descriptors of groups, and no smaller groups.
_NARROW_BYTES, _WIDE_BYTES = 32, 64
_LEAST_BLOCKS_PER_GROUP = 256
_OLD_INODE_BYTES = 128
# A volume of 128 TiB.
_MAX_GROUPS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of an ext4 file system. ``groups`` is the number of block groups. Each group has ``blocks_per_group``
    blocks, but the last group may have fewer. ``wide`` means that block numbers have 64 bits.

    ``superblock`` and ``descriptors`` are the bytes of the superblock and of the group descriptors.
    """

    first_block: int
    blocks: int
    block_bytes: int
    blocks_per_group: int
    inodes_per_group: int
    inode_bytes: int
    groups: int
    wide: bool
    descriptor_bytes: int
    superblock: bytes
    descriptors: bytes


def damaged(source: str, what: str) -> ArtefactError:
    return ArtefactError(f"{source} is damaged: {what}", hint="fsck it, or build it again")


def read_layout(file: BinaryIO, source: str, at_bytes: int = 0) -> Layout:
    """The layout of the file system that begins at ``at_bytes`` in ``file``. Raises ArtefactError when this is no ext4
    file system, is inconsistent, or has the feature meta_bg.
    """
    size_bytes = file.seek(0, os.SEEK_END) - at_bytes
    file.seek(at_bytes + SUPERBLOCK_AT)
    block = file.read(SUPERBLOCK_BYTES)
    if len(block) < SUPERBLOCK_BYTES or struct.unpack_from("<H", block, 0x38)[0] != _MAGIC:
        raise ArtefactError(f"{source} has no ext4 superblock", hint="is the image truncated?")
    inodes, blocks, first_block, log_size, blocks_per_group, inodes_per_group, incompat = (
        struct.unpack_from("<I", block, offset)[0] for offset in (0x0, 0x4, 0x14, 0x18, 0x20, 0x28, 0x60)
    )
    if incompat & _INCOMPAT_META_BG:
        raise ArtefactError(f"{source} has meta_bg, which we cannot read", hint="mkfs.ext4 without it")
    wide = bool(incompat & _INCOMPAT_64BIT)
    if wide:
        blocks |= struct.unpack_from("<I", block, 0x150)[0] << 32
    if log_size > _MAX_LOG_BLOCK_SIZE:
        raise damaged(source, f"its blocks have 1024 << {log_size} bytes")
    block_bytes = 1024 << log_size
    if blocks * block_bytes > size_bytes or first_block != (log_size == 0):
        raise damaged(
            source, f"{blocks} blocks of {block_bytes} bytes from {first_block} on, in {size_bytes} bytes"
        )
    in_group = 8 * block_bytes
    if not (
        _LEAST_BLOCKS_PER_GROUP <= blocks_per_group <= in_group
        and 0 < inodes_per_group <= in_group
        and inodes_per_group % 8 == 0
    ):
        raise damaged(source, f"{blocks_per_group} blocks and {inodes_per_group} inodes per group")
    groups = -(-(blocks - first_block) // blocks_per_group)
    if not 0 < groups <= _MAX_GROUPS or inodes != groups * inodes_per_group:
        raise damaged(source, f"{inodes} inodes in {groups} groups of {inodes_per_group}")
    descriptor_bytes, inode_bytes = _sizes(block, wide, block_bytes, source)
    file.seek(at_bytes + (first_block + 1) * block_bytes)
    descriptors = file.read(groups * descriptor_bytes)
    if len(descriptors) < groups * descriptor_bytes:
        raise damaged(source, "its group descriptors are cut")
    return Layout(
        first_block=first_block,
        blocks=blocks,
        block_bytes=block_bytes,
        blocks_per_group=blocks_per_group,
        inodes_per_group=inodes_per_group,
        inode_bytes=inode_bytes,
        groups=groups,
        wide=wide,
        descriptor_bytes=descriptor_bytes,
        superblock=block,
        descriptors=descriptors,
    )


def _sizes(block: bytes, wide: bool, block_bytes: int, source: str) -> tuple[int, int]:
    """The sizes in bytes of a group descriptor and of an inode."""
    (revision,) = struct.unpack_from("<I", block, 0x4C)
    inode_bytes = struct.unpack_from("<H", block, 0x58)[0] if revision else _OLD_INODE_BYTES
    descriptor_bytes = struct.unpack_from("<H", block, 0xFE)[0] if wide else _NARROW_BYTES
    if descriptor_bytes != (_WIDE_BYTES if wide else _NARROW_BYTES):
        raise damaged(source, f"its group descriptors have {descriptor_bytes} bytes each")
    if not (_OLD_INODE_BYTES <= inode_bytes <= block_bytes and _is_power_of_two(inode_bytes)):
        raise damaged(source, f"its inodes have {inode_bytes} bytes each")
    return descriptor_bytes, inode_bytes


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & number - 1 == 0


def has_superblock(layout: Layout, group: int) -> bool:
    """Whether the block group has a copy of the superblock (kernel: Documentation/filesystems/ext4/blockgroup.rst)."""
    compat, _, ro_compat = struct.unpack_from("<3I", layout.superblock, 0x5C)
    if group == 0:
        return True
    if compat & _COMPAT_SPARSE_SUPER2:
        return group in struct.unpack_from("<2I", layout.superblock, 0x24C)
    if not ro_compat & _RO_COMPAT_SPARSE_SUPER:
        return True
    return group == 1 or any(_is_power(group, base) for base in (3, 5, 7))


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1
