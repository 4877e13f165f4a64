"""The partition table that we write. tests/vm/test_inspect.py shows one to Linux."""

from __future__ import annotations

import struct
import uuid
import zlib

import pytest

from quickstart.image.gpt import BIOS_BOOT, ESP, GptPartition, gpt
from quickstart.model import MIB

DISK = uuid.UUID("5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0c01")


def partition(number: int, at_mib: int, size_mib: int = 1, kind: uuid.UUID = ESP) -> GptPartition:
    return GptPartition(
        number=number,
        begin_bytes=at_mib * MIB,
        size_bytes=size_mib * MIB,
        type_id=kind,
        identifier=uuid.uuid5(DISK, str(number)),
        name=f"p{number}",
    )


def test_both_copies_are_whole() -> None:
    """Each header and the entries have their checksum, and each copy says where the other one is."""
    made = gpt((partition(1, 8, 4), partition(14, 1, 3, BIOS_BOOT)), 16 * MIB, DISK)
    assert (len(made.first), len(made.last)) == (34 * 512, 33 * 512)
    disk = made.first + bytes(16 * MIB - len(made.first) - len(made.last)) + made.last
    for at in (512, len(disk) - 512):
        size, checksum = struct.unpack_from("<II", disk, at + 12)
        header = bytearray(disk[at : at + size])
        header[16:20] = bytes(4)
        assert zlib.crc32(header) == checksum
        own, other = struct.unpack_from("<QQ", disk, at + 24)
        assert (own, other) == (at // 512, len(disk) // 512 - 1 - (at // 512 - 1))
        entries_at, count, entry_bytes, entries_sum = struct.unpack_from("<QIII", disk, at + 72)
        entries = disk[entries_at * 512 : entries_at * 512 + count * entry_bytes]
        assert zlib.crc32(entries) == entries_sum
        assert entries[13 * 128 : 13 * 128 + 16] == BIOS_BOOT.bytes_le
        assert struct.unpack_from("<QQ", entries, 32) == (8 * 2048, 12 * 2048 - 1)


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        ((partition(1, 0),), "begins where something else is"),
        ((partition(1, 1, 3), partition(2, 3)), "begins where something else is"),
        ((partition(1, 15),), "do not fit"),
        ((partition(0, 1),), "numbers"),
        ((partition(129, 1),), "numbers"),
        ((partition(1, 1), partition(1, 3)), "numbers"),
        ((partition(1, 1, 0),), "whole sectors"),
    ],
)
def test_partitions_that_cannot_be(partitions: tuple[GptPartition, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        gpt(partitions, 16 * MIB, DISK)
