"""The free ranges of an ext4 are those that dumpe2fs lists, and what is not free has all of the file system."""

from __future__ import annotations

import itertools
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.ext4layout import read_layout
from quickstart.image.unused import free_ranges

MIB = 1024 * 1024
AT_BYTES = 3 * MIB
# What -O gives, and with which block size. Groups that nothing uses have no written bitmap with "default".
VARIANTS = {
    "default": ("-b", "4096"),
    "small-blocks": ("-b", "1024"),
    "narrow": ("-b", "1024", "-O", "^extents,^64bit,^flex_bg,^metadata_csum,^uninit_bg"),
    "small-groups": ("-b", "1024", "-g", "4096", "-O", "^metadata_csum"),
    "sparse-super2": ("-b", "1024", "-O", "sparse_super2,^resize_inode"),
}


def tool(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120, check=True)
    return done.stdout.decode(errors="replace")


def made(place: Path, *options: str) -> Path:
    tree = place / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(os.urandom(9 * MIB))
    for number in range(300):
        (tree / f"file-{number}").write_bytes(b"x" * 5000)
    volume = place / "volume"
    tool("mkfs.ext4", "-q", "-F", *options, "-d", tree, volume, "600M")
    return volume


def in_partition(volume: Path) -> Path:
    """A disk on which the file system begins at AT_BYTES."""
    disk = volume.with_name("disk")
    tool("dd", f"if={volume}", f"of={disk}", "bs=1M", f"seek={AT_BYTES // MIB}", "conv=sparse,notrunc")
    return disk


def ranges(disk: Path) -> list[tuple[int, int]]:
    with disk.open("rb") as file:
        return list(free_ranges(file, read_layout(file, "disk", AT_BYTES), AT_BYTES, "disk"))


def listed(volume: Path) -> tuple[int, set[int]]:
    """The size of a block, and the free blocks, as dumpe2fs says."""
    text = tool("dumpe2fs", volume)
    block_bytes = int(re.findall(r"^Block size: +(\d+)$", text, re.M)[0])
    free: set[int] = set()
    for line in re.findall(r"^  Free blocks: (.*)$", text, re.M):
        for run in line.split(", "):
            first, _, last = run.strip().partition("-")
            if first:
                free |= set(range(int(first), int(last or first) + 1))
    return block_bytes, free


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_free_blocks(tmp_path: Path, variant: str) -> None:
    volume = made(tmp_path, *VARIANTS[variant])
    block_bytes, expected = listed(volume)
    found = ranges(in_partition(volume))
    free = {(at - AT_BYTES) // block_bytes for begin, end in found for at in range(begin, end, block_bytes)}
    assert free == expected
    assert len(free) > 100_000 // (block_bytes // 1024)
    # Ranges that touch are one.
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(found))


def test_noise_in_what_is_free(tmp_path: Path) -> None:
    """The volume of a snapshot without these blocks has the same files, and e2fsck finds nothing."""
    volume = made(tmp_path)
    disk = in_partition(volume)
    noise = os.urandom(MIB)
    with volume.open("r+b") as file:
        for begin, end in ranges(disk):
            file.seek(begin - AT_BYTES)
            for at in range(begin, end, MIB):
                file.write(noise[: min(MIB, end - at)])
    tool("e2fsck", "-f", "-n", volume)
    tool("debugfs", "-R", f"dump /large {tmp_path}/copy", volume)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "tree/large").read_bytes()


def test_clusters(tmp_path: Path) -> None:
    """The bits of bigalloc are of clusters of blocks, so nothing is known to be free."""
    assert ranges(in_partition(made(tmp_path, "-O", "bigalloc", "-C", "16384", "-g", "8192"))) == []


def test_groups_of_more_blocks_than_a_bitmap_has_bits(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="blocks and"):
        ranges(in_partition(made(tmp_path, "-O", "bigalloc")))


def test_a_flag_that_does_not_count(tmp_path: Path) -> None:
    """Without checksums of the groups, the kernel reads each bitmap, whatever the flag BLOCK_UNINIT says."""
    volume = made(tmp_path, "-b", "4096", "-O", "^64bit,^metadata_csum,^uninit_bg")
    expected = ranges(in_partition(volume))
    disk = volume.with_name("disk")
    with disk.open("r+b") as file:
        for group in range(5):
            file.seek(AT_BYTES + 4096 + group * 32 + 0x12)
            file.write(struct.pack("<H", 2))
    assert ranges(disk) == expected


@pytest.mark.parametrize(("at", "place"), [(0x0, 0), (0x4, 0xFFFFFFFF), (0x8, 153_599)])
def test_metadata_outside_of_the_volume(tmp_path: Path, at: int, place: int) -> None:
    disk = in_partition(made(tmp_path, "-b", "4096", "-O", "^64bit"))
    with disk.open("r+b") as file:
        file.seek(AT_BYTES + 4096 + at)
        file.write(struct.pack("<I", place))
    with pytest.raises(ArtefactError, match="block group 0 has metadata"):
        ranges(disk)
