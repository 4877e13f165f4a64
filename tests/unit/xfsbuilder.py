"""A small XFS volume, made by hand."""

from __future__ import annotations

import struct
import uuid

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
BLOCK_BYTES, GROUP_BLOCKS, GROUP_BITS, LOG_AT = 4096, 4, 2, 5
# The second block of the second group.
LOG_BEGIN = (GROUP_BLOCKS + 1) * BLOCK_BYTES


def volume(
    *,
    magic: bytes = b"XFSB",
    block_bytes: int = BLOCK_BYTES,
    log_at: int = LOG_AT,
    log_blocks: int = 2,
    version: int = 0xB4A5,
    bits: int = GROUP_BITS,
    group_blocks: int = GROUP_BLOCKS,
    groups: int = 2,
) -> bytearray:
    """The fields by their offsets in struct xfs_dsb (fs/xfs/libxfs/xfs_format.h)."""
    data = bytearray(2 * GROUP_BLOCKS * BLOCK_BYTES)
    data[:4] = magic
    struct.pack_into(">I", data, 4, block_bytes)
    data[32:48] = UUID.bytes
    struct.pack_into(">Q", data, 48, log_at)
    struct.pack_into(">IIxxxxIH", data, 84, group_blocks, groups, log_blocks, version)
    data[124] = bits
    return data
