"""Find the clusters of a FAT file system that hold nothing, such as those of an EFI system partition (Microsoft, "FAT32
File System Specification").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_BOOT_BYTES = 512
_SECTOR_BYTES = (512, 1024, 2048, 4096)
_ENTRY_BYTES = 32
_RESERVED_CLUSTERS = 2
# Below these numbers of clusters, an entry of the table has 12 and 16 bits.
_FAT16_CLUSTERS, _FAT32_CLUSTERS = 4085, 65525
_FAT32_MASK = 0x0FFFFFFF
# 2 TiB in the smallest clusters would have more; no EFI system partition does.
_MOST_TABLE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class _Fat:
    """Places in bytes of the file system. ``clusters`` are those of the data."""

    table_at: int
    table_bytes: int
    data_at: int
    cluster_bytes: int
    clusters: int


def free_clusters(file: BinaryIO, at_bytes: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The ranges of free clusters, as (begin, end) in bytes of ``file``, in order. The partition of the file system has
    ``size_bytes`` bytes and begins at ``at_bytes``. There are none if this is no FAT16 or FAT32, or if it is
    inconsistent.
    """
    file.seek(at_bytes)
    fat = _read(file.read(_BOOT_BYTES), size_bytes)
    if fat is None:
        return
    word = 2 if fat.clusters < _FAT32_CLUSTERS else 4
    file.seek(at_bytes + fat.table_at)
    table = file.read((fat.clusters + _RESERVED_CLUSTERS) * word)
    entries = memoryview(table).cast("H" if word == 2 else "I")
    begin = None
    for number in range(fat.clusters + 1):
        is_free = number < fat.clusters and not entries[number + _RESERVED_CLUSTERS] & _FAT32_MASK
        if is_free and begin is None:
            begin = number
        elif not is_free and begin is not None:
            data_at = at_bytes + fat.data_at
            yield data_at + begin * fat.cluster_bytes, data_at + number * fat.cluster_bytes
            begin = None


def _read(boot: bytes, size_bytes: int) -> _Fat | None:
    if len(boot) < _BOOT_BYTES or boot[510:512] != b"\x55\xaa":
        return None
    sector, per_cluster, reserved, tables, root_entries, few, short = struct.unpack_from(
        "<HBHBHH1xH", boot, 11
    )
    many, long = struct.unpack_from("<I", boot, 32)[0], struct.unpack_from("<I", boot, 36)[0]
    sectors, table_sectors = few or many, short or long
    is_power = per_cluster and not per_cluster & per_cluster - 1
    if sector not in _SECTOR_BYTES or not is_power or not reserved or tables not in (1, 2):
        return None
    root_sectors = -(-root_entries * _ENTRY_BYTES // sector)
    data_sector = reserved + tables * table_sectors + root_sectors
    clusters = (sectors - data_sector) // per_cluster
    if clusters < _FAT16_CLUSTERS or sectors * sector > size_bytes:
        return None
    word = 2 if clusters < _FAT32_CLUSTERS else 4
    table_bytes = table_sectors * sector
    if not (clusters + _RESERVED_CLUSTERS) * word <= table_bytes <= _MOST_TABLE_BYTES:
        return None
    return _Fat(
        table_at=reserved * sector,
        table_bytes=table_bytes,
        data_at=data_sector * sector,
        cluster_bytes=per_cluster * sector,
        clusters=clusters,
    )
