"""The free clusters of a FAT are those that mkfs.vfat, the kernel's rules and fsck.fat know."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from quickstart.image.fatfree import free_clusters
from quickstart.model import MIB

AT_BYTES = 2 * MIB


def tool(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=60, check=True)
    return done.stdout.decode(errors="replace")


def made(place: Path, bits: int, size_mib: int, *options: str) -> Path:
    """A file system in a partition of a disk, with the volume's label as its only directory entry."""
    volume, disk = place / "volume", place / "disk"
    tool("mkfs.vfat", "-F", str(bits), "-n", "ESP", *options, "-C", volume, str(size_mib * 1024))
    with disk.open("xb") as file:
        file.seek(AT_BYTES)
        file.write(volume.read_bytes())
    return disk


def ranges(disk: Path, size_bytes: int | None = None) -> list[tuple[int, int]]:
    with disk.open("rb") as file:
        return list(free_clusters(file, AT_BYTES, size_bytes or disk.stat().st_size - AT_BYTES))


def counted(disk: Path) -> tuple[int, int]:
    """The used and all clusters, as fsck.fat counts them."""
    volume = disk.with_name("checked")
    volume.write_bytes(disk.read_bytes()[AT_BYTES:])
    said = tool("fsck.fat", "-n", volume)
    used, clusters = re.findall(r"(\d+)/(\d+) clusters", said)[0]
    return int(used), int(clusters)


@pytest.mark.parametrize(
    ("bits", "size_mib", "options"),
    [
        (32, 512, ()),
        (32, 64, ("-s", "1")),
        (16, 64, ()),
        (16, 124, ("-f", "1")),
        (32, 300, ("-S", "4096", "-s", "1")),
    ],
)
def test_free_clusters(tmp_path: Path, bits: int, size_mib: int, options: tuple[str, ...]) -> None:
    disk = made(tmp_path, bits, size_mib, *options)
    cluster_bytes = (
        disk.read_bytes()[AT_BYTES + 13] * struct.unpack_from("<H", disk.read_bytes(), AT_BYTES + 11)[0]
    )
    used, clusters = counted(disk)
    found = ranges(disk)
    assert sum(end - begin for begin, end in found) == (clusters - used) * cluster_bytes
    noise = os.urandom(MIB)
    with disk.open("r+b") as file:
        for begin, end in found:
            file.seek(begin)
            for at in range(begin, end, MIB):
                file.write(noise[: min(MIB, end - at)])
    assert counted(disk) == (used, clusters)


def test_a_chain_of_clusters(tmp_path: Path) -> None:
    disk = made(tmp_path, 32, 64, "-s", "1")
    (begin, end), *others = ranges(disk)
    assert not others
    boot = disk.read_bytes()[AT_BYTES : AT_BYTES + 512]
    reserved = struct.unpack_from("<H", boot, 14)[0]
    with disk.open("r+b") as file:
        # Clusters 10 and 11 are a file, and the highest four bits of an entry do not count.
        file.seek(AT_BYTES + reserved * 512 + 10 * 4)
        file.write(struct.pack("<3I", 11, 0x0FFFFFFF, 0xF0000000))
    first = begin - (3 - 2) * 512
    assert ranges(disk) == [(begin, first + 8 * 512), (first + 10 * 512, end)]


@pytest.mark.parametrize("size_mib", [4])
def test_what_is_not_known_has_no_free_clusters(tmp_path: Path, size_mib: int) -> None:
    assert ranges(made(tmp_path, 12, size_mib)) == []


def test_a_volume_larger_than_its_partition(tmp_path: Path) -> None:
    assert ranges(made(tmp_path, 32, 64), 63 * MIB) == []


@pytest.mark.parametrize(
    ("at", "data"),
    [(11, b"\0\0"), (13, b"\0"), (13, b"\3"), (14, b"\0\0"), (16, b"\0"), (36, b"\1\0\0\0"), (510, b"\0\0")],
)
def test_a_damaged_boot_sector(tmp_path: Path, at: int, data: bytes) -> None:
    disk = made(tmp_path, 32, 64)
    with disk.open("r+b") as file:
        file.seek(AT_BYTES + at)
        file.write(data)
    assert ranges(disk) == []
