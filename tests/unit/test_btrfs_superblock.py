"""The facts in a btrfs superblock, and which superblock a volume has."""

from __future__ import annotations

import io
import uuid
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.btrfs import read_btrfs
from quickstart.image.superblock import read_superblock
from quickstart.model.words import FileSystem
from tests.unit import ext4builder, xfsbuilder

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
AT = 64 << 10


def volume() -> bytearray:
    """The fields by their offsets in struct btrfs_super_block (include/uapi/linux/btrfs_tree.h)."""
    data = bytearray(AT + 8192)
    data[AT + 32 : AT + 48] = UUID.bytes
    data[AT + 64 : AT + 72] = b"_BHRfS_M"
    data[AT + 136] = 1
    return data


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [(136, 0, "one of 0 devices"), (136, 2, "one of 2 devices"), (143, 1, "devices"), (196, 1, "crc32c")],
)
def test_what_init_cannot_mount(at: int, value: int, why: str) -> None:
    other = volume()
    other[AT + at] = value
    with pytest.raises(ArtefactError, match=why):
        read_btrfs(io.BytesIO(other), 0, "x")


def test_it_has_a_uuid_and_no_counts() -> None:
    found = read_btrfs(io.BytesIO(bytes(1 << 20) + volume()), 1 << 20, "x")
    assert (found.uuid, found.file_system) == (str(UUID), FileSystem.BTRFS)
    assert (found.mount_count, found.write_time_s, found.created_s) == (0, 0, 0)
    assert not found.needs_recovery
    assert len(found.state) == 64


@pytest.mark.parametrize(
    ("at", "is_used"), [(AT + 72, True), (AT + 4095, True), (AT - 1, False), (AT + 4096, False)]
)
def test_the_superblock_tells_a_use(at: int, is_used: bool) -> None:
    other = volume()
    other[at] ^= 1
    states = {read_btrfs(io.BytesIO(each), 0, "x").state for each in (volume(), other)}
    assert (len(states) == 2) == is_used


def test_a_log_that_is_to_be_replayed() -> None:
    used = volume()
    used[AT + 103] = 1
    assert read_btrfs(io.BytesIO(used), 0, "x").needs_recovery


def test_what_is_cut() -> None:
    with pytest.raises(ArtefactError, match="is cut"):
        read_btrfs(io.BytesIO(volume()[: AT + 4095]), 0, "x")


def _with_words(volume: bytes) -> bytes:
    """What a user may write into a file, which may lie anywhere."""
    data = bytearray(volume.ljust(AT + 8192, b"\0"))
    data[:4] = b"XFSB"
    data[AT + 64 : AT + 72] = b"_BHRfS_M"
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "file_system"),
    [
        (bytes(1024) + ext4builder.superblock(), FileSystem.EXT4),
        (_with_words(bytes(1024) + ext4builder.superblock()), FileSystem.EXT4),
        (xfsbuilder.volume(), FileSystem.XFS),
        (volume(), FileSystem.BTRFS),
    ],
)
def test_each_file_system_is_found(tmp_path: Path, data: bytes, file_system: FileSystem) -> None:
    (tmp_path / "disk").write_bytes(bytes(4096) + data)
    assert read_superblock(tmp_path / "disk", 4096).file_system is file_system


@pytest.mark.parametrize("data", [b"", bytes(1 << 20), b"XFS" + bytes(1 << 20), volume()[: AT + 71]])
def test_no_superblock(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "disk").write_bytes(data)
    with pytest.raises(ArtefactError, match="no superblock of ext4, XFS or btrfs"):
        read_superblock(tmp_path / "disk")
