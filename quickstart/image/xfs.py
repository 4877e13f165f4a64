"""Read the superblock of an XFS file system in an untrusted image.

The layout is described in "XFS Algorithms & Data Structures" (the kernel's fs/xfs/libxfs/xfs_format.h, struct xfs_dsb).
All numbers are big-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from dataclasses import dataclass
from typing import BinaryIO

from quickstart.errors import ArtefactError
from quickstart.model.superblock import Superblock
from quickstart.model.words import FileSystem

MAGIC = b"XFSB"
_BYTES = 512
_VERSION_MASK, _VERSION = 0xF, 5
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 512, 65536
# XFS_MAX_LOG_BYTES in xfs_fs.h.
_MOST_LOG_BYTES = 1 << 31
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class _Log:
    """The place of the log in the file system, in bytes."""

    begin_bytes: int
    size_bytes: int


def read_xfs(file: BinaryIO, at_bytes: int, source: str) -> Superblock:
    """The superblock of the XFS file system that begins at byte ``at_bytes`` of ``file``. ``source`` names the file in
    messages.

    XFS writes each change of its metadata to its log first, also those of a mount and of an unmount. So the hash of the
    log tells whether the volume has been in use. The superblock itself need not change.

    Raises ArtefactError when the superblock is damaged, is not of version 5, or has its log on another device.
    """
    file.seek(at_bytes)
    block = file.read(_BYTES)
    log = _log(block, source)
    digest = hashlib.sha256(block)
    if at_bytes + log.begin_bytes + log.size_bytes > file.seek(0, os.SEEK_END):
        raise _damaged(source, "its log goes beyond its end")
    file.seek(at_bytes + log.begin_bytes)
    left_bytes = log.size_bytes
    while left_bytes:
        chunk = file.read(min(_CHUNK_BYTES, left_bytes))
        if not chunk:
            raise _damaged(source, "it became shorter meanwhile")
        digest.update(chunk)
        left_bytes -= len(chunk)
    return Superblock(
        uuid=str(uuid.UUID(bytes=block[32:48])),
        mount_count=0,
        write_time_s=0,
        clean=True,
        needs_recovery=False,
        has_errors=False,
        file_system=FileSystem.XFS,
        state=digest.hexdigest(),
    )


def _log(block: bytes, source: str) -> _Log:
    if len(block) < _BYTES or block[:4] != MAGIC:
        raise _damaged(source, "it has no XFS superblock")
    (block_bytes,) = struct.unpack_from(">I", block, 4)
    (first,) = struct.unpack_from(">Q", block, 48)
    group_blocks, groups = struct.unpack_from(">II", block, 84)
    log_blocks, version = struct.unpack_from(">IH", block, 96)
    group_bits = block[124]
    if version & _VERSION_MASK != _VERSION:
        raise ArtefactError(
            f"{source} has an XFS file system of version {version & _VERSION_MASK}",
            hint="make it anew with mkfs.xfs -m crc=1",
        )
    if not first:
        raise ArtefactError(
            f"{source} has an XFS file system with its log on another device",
            hint="make it anew with an internal log",
        )
    if block_bytes & (block_bytes - 1) or not _LEAST_BLOCK_BYTES <= block_bytes <= _MOST_BLOCK_BYTES:
        raise _damaged(source, f"it has blocks of {block_bytes} bytes")
    group, place = first >> group_bits, first & ((1 << group_bits) - 1)
    size_bytes = log_blocks * block_bytes
    # The log lies in one group.
    if group >= groups or place + log_blocks > group_blocks or not 0 < size_bytes <= _MOST_LOG_BYTES:
        raise _damaged(source, "its log is in no group")
    return _Log((group * group_blocks + place) * block_bytes, size_bytes)


def _damaged(source: str, what: str) -> ArtefactError:
    return ArtefactError(f"{source} is damaged: {what}", hint="run xfs_repair, or build it again")
