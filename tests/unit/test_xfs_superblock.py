"""The facts in an XFS superblock."""

from __future__ import annotations

import io

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.xfs import read_xfs
from quickstart.model.words import FileSystem
from tests.unit.xfsbuilder import BLOCK_BYTES, LOG_BEGIN, UUID, volume


def log_of(data: bytes | bytearray, at_bytes: int = 0) -> str:
    return read_xfs(io.BytesIO(data), at_bytes, "x").state


def test_it_has_a_uuid_and_no_counts() -> None:
    found = read_xfs(io.BytesIO(volume()), 0, "x")
    assert (found.uuid, found.file_system) == (str(UUID), FileSystem.XFS)
    assert (found.mount_count, found.write_time_s, found.created_s) == (0, 0, 0)
    assert found.clean
    assert len(found.state) == 64


@pytest.mark.parametrize("at", [240, LOG_BEGIN, LOG_BEGIN + 2 * BLOCK_BYTES - 1])
def test_the_log_and_the_superblock_tell_a_use(at: int) -> None:
    used = volume()
    used[at] ^= 1
    assert log_of(used) != log_of(volume())


@pytest.mark.parametrize("at", [512, LOG_BEGIN - 1, LOG_BEGIN + 2 * BLOCK_BYTES])
def test_nothing_else_is_read(at: int) -> None:
    other = volume()
    other[at] ^= 1
    assert log_of(other) == log_of(volume())


def test_it_may_be_in_a_partition() -> None:
    assert log_of(bytes(1 << 20) + volume(), 1 << 20) == log_of(volume())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no XFS superblock"),
        (volume()[:511], "no XFS superblock"),
        (volume(magic=b"XFSC"), "no XFS superblock"),
        (volume(version=0xB4A4), "version 4"),
        (volume(log_at=0), "another device"),
        (volume(block_bytes=0), "blocks of 0 bytes"),
        (volume(block_bytes=4097), "blocks of 4097 bytes"),
        (volume(block_bytes=1 << 31), "blocks of 2147483648 bytes"),
        (volume(log_blocks=0), "in no group"),
        (volume(log_blocks=4), "in no group"),
        (volume(log_blocks=0xFFFFFFFF), "in no group"),
        (volume(log_at=8), "in no group"),
        (volume(log_at=(1 << 64) - 1), "in no group"),
        (volume(bits=255), "in no group"),
        (
            volume(log_at=(1 << 63) + 1, bits=32, group_blocks=1 << 31, groups=0xFFFFFFFF),
            "beyond its end",
        ),
        (volume()[: LOG_BEGIN + 5], "beyond its end"),
    ],
)
def test_what_is_damaged(data: bytes, why: str) -> None:
    with pytest.raises(ArtefactError, match=why):
        read_xfs(io.BytesIO(data), 0, "x")
