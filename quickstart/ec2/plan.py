"""Decide which blocks of a disk go into a snapshot (EBS direct APIs, "Write snapshots": a snapshot has blocks of 512
KiB, and a block that was never written is left out).

A volume that is made from a snapshot may have any content in a block that was left out. So a block is left out only if
it has nothing but zeros, and a file system says that it is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import ArtefactError, BadInputError
from quickstart.host.beneath import opened_regular
from quickstart.host.holes import data_chunks
from quickstart.image.ext4layout import read_layout
from quickstart.image.fatfree import free_clusters
from quickstart.image.superblock import read_superblock
from quickstart.image.unused import free_ranges
from quickstart.model.words import FileSystem

BLOCK_BYTES = 512 * 1024
_GIB = 1 << 30
# A plan names each block. EC2 itself has volumes of 64 TiB, and nobody's image is so large.
_MOST_BYTES = 2 << 40


@dataclass(frozen=True)
class Plan:
    """The blocks of a disk of ``disk_bytes`` bytes. ``written`` are the numbers of the blocks that go into the snapshot,
    in order.
    """

    disk_bytes: int
    written: tuple[int, ...]

    @property
    def volume_gib(self) -> int:
        """The size of the snapshot's volume."""
        return -(-self.disk_bytes // _GIB)

    @property
    def written_bytes(self) -> int:
        return len(self.written) * BLOCK_BYTES

    @cached_property
    def blocks(self) -> int:
        """How many blocks the disk has. The last one may be only a part of a block."""
        return blocks_of(self.disk_bytes)


def blocks_of(disk_bytes: int) -> int:
    return -(-disk_bytes // BLOCK_BYTES)


def planned(disk: Path, root_at_bytes: int, fats: Iterable[tuple[int, int]] = ()) -> Plan:
    """The plan for ``disk``, a raw image whose root volume begins at ``root_at_bytes``. ``fats`` are the partitions with
    FAT file systems, as (offset, size) in bytes. Raises BadInputError for a disk of more than 2 TiB.
    """
    with opened_regular(disk) as fd, open(fd, "rb", closefd=False) as file:
        disk_bytes = file.seek(0, 2)
        if disk_bytes > _MOST_BYTES:
            raise BadInputError(f"{disk} has {disk_bytes} bytes, and an AMI gets at most {_MOST_BYTES}")
        with_data = {offset // BLOCK_BYTES for offset, _ in data_chunks(fd, disk_bytes)}
        free = set(_within(_free(file, disk, root_at_bytes), disk_bytes))
        for at_bytes, size_bytes in fats:
            free |= set(_within(free_clusters(file, at_bytes, size_bytes), disk_bytes))
    blocks = range(blocks_of(disk_bytes))
    return Plan(disk_bytes, tuple(index for index in blocks if index in with_data or index not in free))


def _free(file: BinaryIO, disk: Path, root_at_bytes: int) -> Iterator[tuple[int, int]]:
    """The ranges of ``disk`` that the root file system does not use, in bytes. ``file`` is the open disk. There are none
    if the root is no ext4, or if its journal has changes that the bitmaps do not have yet.
    """
    superblock = read_superblock(disk, root_at_bytes)
    is_settled = superblock.clean and not superblock.needs_recovery and not superblock.has_errors
    if superblock.file_system != FileSystem.EXT4 or not is_settled:
        return
    try:
        layout = read_layout(file, str(disk), root_at_bytes)
    except ArtefactError:
        # For example meta_bg.
        return
    yield from free_ranges(file, layout, root_at_bytes, str(disk))


def _within(ranges: Iterable[tuple[int, int]], disk_bytes: int) -> Iterator[int]:
    """The numbers of the blocks that lie wholly in one of ``ranges``."""
    for begin, end in ranges:
        # The last block of the disk may be shorter.
        last = blocks_of(disk_bytes) if end >= disk_bytes else end // BLOCK_BYTES
        yield from range(-(-begin // BLOCK_BYTES), last)
