"""Read the superblock of a btrfs file system in an untrusted image.

The layout is described in the kernel's include/uapi/linux/btrfs_tree.h (struct btrfs_super_block).
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from typing import BinaryIO

from quickstart.errors import ArtefactError
from quickstart.model.superblock import Superblock
from quickstart.model.words import FileSystem

SUPERBLOCK_AT = 64 << 10
MAGIC_AT = SUPERBLOCK_AT + 64
MAGIC = b"_BHRfS_M"
_BYTES = 4096
# For another checksum, the kernel asks for a module by a name that modules.dep does not have.
_CRC32C = 0


def read_btrfs(file: BinaryIO, at_bytes: int, source: str) -> Superblock:
    """The superblock of the btrfs file system that begins at byte ``at_bytes`` of ``file``. ``source`` names the file in
    messages.

    btrfs never changes a block in place, and each change that lasts comes with a new superblock. So the hash of the
    superblock tells whether the volume has been in use.

    Raises ArtefactError when the file is too short, or when init could not mount the file system.
    """
    file.seek(at_bytes + SUPERBLOCK_AT)
    block = file.read(_BYTES)
    if len(block) < _BYTES:
        raise ArtefactError(
            f"{source} is damaged: its btrfs superblock is cut", hint="is the image truncated?"
        )
    (devices,) = struct.unpack_from("<Q", block, 136)
    (checksum,) = struct.unpack_from("<H", block, 196)
    if devices != 1:
        raise ArtefactError(f"{source} has one of {devices} devices of a btrfs file system")
    if checksum != _CRC32C:
        raise ArtefactError(
            f"{source} has a btrfs file system with another checksum than crc32c (type {checksum})",
            hint="make it anew with mkfs.btrfs --checksum crc32c",
        )
    log_root = block[96:104]
    return Superblock(
        uuid=str(uuid.UUID(bytes=block[32:48])),
        mount_count=0,
        write_time_s=0,
        clean=True,
        needs_recovery=any(log_root),
        has_errors=False,
        file_system=FileSystem.BTRFS,
        state=hashlib.sha256(block).hexdigest(),
    )
