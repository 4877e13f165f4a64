"""Find out which file or which metadata owns each block of a disk with partitions. One partition is the root volume."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quickstart.errors import HostLacksError
from quickstart.host.beneath import opened_regular
from quickstart.host.files import free_bytes, temporary_directory
from quickstart.host.holes import copy_range
from quickstart.host.workspace import workspace
from quickstart.image.blockmap import BlockMap, Kind, Owner, read_block_map
from quickstart.image.ext4layout import read_layout

_ROOT = "root.raw"
# stat(2): the unit of st_blocks, whatever the file system.
_STAT_BLOCK_BYTES = 512


class BlockOwners(Protocol):
    """The map of the blocks of a disk or of a volume. An owner of a block is a file or metadata of the file system."""

    def owners(self, offset_bytes: int, length_bytes: int) -> tuple[Owner, ...]:
        """The owners of the blocks in a range, in order and without gaps."""
        ...


@dataclass(frozen=True)
class DiskMap:
    """The map of the blocks of a disk. The disk's root volume begins at byte ``begin_bytes`` and has ``size_bytes``
    bytes. For blocks outside of the root volume, such as the partition table and other partitions, the owner only has
    the kind OUTSIDE.
    """

    volume: BlockMap
    begin_bytes: int
    size_bytes: int

    def owners(self, offset_bytes: int, length_bytes: int) -> tuple[Owner, ...]:
        """The owners of the blocks in a range of the disk, in order and without gaps."""
        return tuple(self._parts(offset_bytes, offset_bytes + length_bytes))

    def _parts(self, begin: int, end: int) -> Iterator[Owner]:
        first, last = self.begin_bytes, self.begin_bytes + self.size_bytes
        yield from self._outside(begin, min(end, first))
        if max(begin, first) < min(end, last):
            at = max(begin, first)
            yield from self.volume.owners(at - first, min(end, last) - at)
        yield from self._outside(max(begin, last), end)

    def _outside(self, begin: int, end: int) -> Iterator[Owner]:
        block_bytes = self.volume.block_bytes
        if begin < end:
            block = begin // block_bytes
            yield Owner(kind=Kind.OUTSIDE, first_block=block, blocks=-(-end // block_bytes) - block)


def read_disk_map(disk: Path, begin_bytes: int) -> DiskMap:
    """The map of the raw ``disk``, whose root volume begins at byte ``begin_bytes``. Raises ArtefactError when the root
    volume is damaged, is not ext4, or has the ext4 feature meta_bg. Raises HostLacksError when the temporary directory
    has too little space for a copy of the root volume.
    """
    with workspace("quickstart-map-") as place:
        copy = place / _ROOT
        with opened_regular(disk) as source, copy.open("xb") as target:
            status = os.fstat(source)
            size_bytes = max(0, status.st_size - begin_bytes)
            _check_room(disk, min(size_bytes, status.st_blocks * _STAT_BLOCK_BYTES))
            copy_range(source, begin_bytes, size_bytes, target.fileno())
        with copy.open("rb") as file:
            layout = read_layout(file, str(disk))
        return DiskMap(read_block_map(copy), begin_bytes, layout.blocks * layout.block_bytes)


def _check_room(disk: Path, data_bytes: int) -> None:
    place = temporary_directory()
    if free_bytes(place) < data_bytes:
        raise HostLacksError(
            f"the root volume of {disk} is copied, and the temporary directory {place} has too little space for it",
            hint="free some space there, or set TMPDIR to a directory with more",
        )
