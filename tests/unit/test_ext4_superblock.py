"""The facts in an ext4 superblock."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.ext4 import created_of, parse_superblock
from quickstart.image.superblock import read_superblock
from quickstart.model import IMAGE_TIME_S
from quickstart.model.superblock import Superblock

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def block(*, state: int = 1, incompat: int = 0x2C2, magic: int = 0xEF53) -> bytes:
    """The fields by their offsets in Documentation/filesystems/ext4/super.rst."""
    data = bytearray(1024)
    struct.pack_into("<I", data, 0x30, 1_400_000_000)
    struct.pack_into("<HH", data, 0x34, 3, 0xFFFF)
    struct.pack_into("<HH", data, 0x38, magic, state)
    struct.pack_into("<I", data, 0x60, incompat)
    data[0x68:0x78] = UUID.bytes
    struct.pack_into("<I", data, 0x108, 1_500_000_000)
    return bytes(data)


@pytest.mark.parametrize(
    ("state", "incompat", "flags"),
    [
        (1, 0x2C2, (True, False, False)),
        (0, 0x2C6, (False, True, False)),
        (3, 0x2C2, (True, False, True)),
        (2, 0x4, (False, True, True)),
    ],
)
def test_fields(state: int, incompat: int, flags: tuple[bool, bool, bool]) -> None:
    clean, needs_recovery, has_errors = flags
    expected = Superblock(
        uuid=str(UUID),
        mount_count=3,
        write_time_s=1_400_000_000,
        clean=clean,
        needs_recovery=needs_recovery,
        has_errors=has_errors,
    )
    found = parse_superblock(block(state=state, incompat=incompat), "x")
    assert (found, found.created_s) == (expected, 1_500_000_000)


def test_disks_of_two_images_differ_in_their_time_of_creation() -> None:
    """From 2014 to 2022, so that no clock is before it."""
    times = [created_of(f"{digit}" * 64) for digit in "0123456789abcdef"]
    assert len(set(times)) == len(times)
    assert (min(times), max(times)) == (IMAGE_TIME_S, IMAGE_TIME_S + (1 << 28) - 1)


@pytest.mark.parametrize("data", [b"", block()[:1023], bytes(1024), block(magic=0x53EF), b"\xff" * 1024])
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(ArtefactError, match=r"root\.raw has no ext4 superblock"):
        parse_superblock(data, "root.raw")


def test_it_lies_behind_the_boot_sector(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(1024) + block() + bytes(100))
    assert read_superblock(tmp_path / "disk").uuid == str(UUID)
    (tmp_path / "cut").write_bytes(bytes(1024) + block()[:500])
    with pytest.raises(ArtefactError, match="cut has no superblock of"):
        read_superblock(tmp_path / "cut")
