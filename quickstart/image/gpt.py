"""Write a GUID partition table (UEFI specification 2.10, chapter 5.3), with a protective MBR (chapter 5.2.3)."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

SECTOR_BYTES = 512
# Tools such as sfdisk align partitions to this number of bytes.
ALIGNMENT_BYTES = 1 << 20
BIOS_BOOT = uuid.UUID("21686148-6449-6e6f-744e-656564454649")
ESP = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
# Discoverable Partitions Specification: root of x86-64.
ROOT_X86_64 = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
_ENTRIES, _ENTRY_BYTES = 128, 128
_ENTRY_SECTORS = _ENTRIES * _ENTRY_BYTES // SECTOR_BYTES
# The first usable sector is behind the MBR, the header and the entries. The end of the disk has the same,
# without the MBR.
_FIRST_SECTOR = 2 + _ENTRY_SECTORS
_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRY = struct.Struct("<16s16sQQQ72s")
_MBR = struct.Struct("<440xI2xB3sB3sII48x2s")
_REVISION = 0x00010000


@dataclass(frozen=True, kw_only=True)
class GptPartition:
    """A partition with the number ``number`` (1 to 128). ``begin_bytes`` and ``size_bytes`` are multiples of 512."""

    number: int
    begin_bytes: int
    size_bytes: int
    type_id: uuid.UUID
    identifier: uuid.UUID
    name: str


@dataclass(frozen=True)
class GptBytes:
    """The bytes of the table: ``first`` for the beginning of the disk, ``last`` for its end."""

    first: bytes
    last: bytes


def gpt(partitions: Sequence[GptPartition], disk_bytes: int, identifier: uuid.UUID) -> GptBytes:
    """The table of a disk with ``disk_bytes`` bytes (pure).

    Raises ValueError when partitions overlap, or when a partition is not between the two copies of the table.
    """
    sectors = disk_bytes // SECTOR_BYTES
    last_usable = sectors - _ENTRY_SECTORS - 2
    _check(partitions, last_usable)
    by_number = {each.number: _entry(each) for each in partitions}
    entries = b"".join(by_number.get(number, bytes(_ENTRY_BYTES)) for number in range(1, _ENTRIES + 1))

    def header(own: int, other: int, entries_at: int) -> bytes:
        def packed(checksum: int) -> bytes:
            return _HEADER.pack(
                b"EFI PART",
                _REVISION,
                _HEADER.size,
                checksum,
                0,
                own,
                other,
                _FIRST_SECTOR,
                last_usable,
                identifier.bytes_le,
                entries_at,
                _ENTRIES,
                _ENTRY_BYTES,
                zlib.crc32(entries),
            )

        return packed(zlib.crc32(packed(0))).ljust(SECTOR_BYTES, b"\0")

    first = _protective_mbr(sectors) + header(1, sectors - 1, 2) + entries
    return GptBytes(first, entries + header(sectors - 1, 1, last_usable + 1))


def _check(partitions: Sequence[GptPartition], last_usable: int) -> None:
    free_from = _FIRST_SECTOR * SECTOR_BYTES
    for each in sorted(partitions, key=lambda partition: partition.begin_bytes):
        if each.begin_bytes % SECTOR_BYTES or each.size_bytes % SECTOR_BYTES or each.size_bytes <= 0:
            raise ValueError(f"partition {each.number} does not consist of whole sectors")
        if each.begin_bytes < free_from:
            raise ValueError(f"partition {each.number} begins where something else is")
        free_from = each.begin_bytes + each.size_bytes
    if free_from > (last_usable + 1) * SECTOR_BYTES:
        raise ValueError("the partitions do not fit on the disk")
    numbers = [each.number for each in partitions]
    if len(set(numbers)) != len(numbers) or not all(1 <= number <= _ENTRIES for number in numbers):
        raise ValueError("the numbers of the partitions are not right")


def _entry(partition: GptPartition) -> bytes:
    begin = partition.begin_bytes // SECTOR_BYTES
    return _ENTRY.pack(
        partition.type_id.bytes_le,
        partition.identifier.bytes_le,
        begin,
        begin + partition.size_bytes // SECTOR_BYTES - 1,
        0,
        partition.name.encode("utf-16-le")[:72],
    )


def _protective_mbr(sectors: int) -> bytes:
    """The protective MBR, which has one partition of type 0xEE. The partition covers the disk, or as many sectors of it
    as a number of 32 bits can count.
    """
    return _MBR.pack(
        0, 0, b"\x00\x02\x00", 0xEE, b"\xff\xff\xff", 1, min(sectors - 1, 0xFFFFFFFF), b"\x55\xaa"
    )
