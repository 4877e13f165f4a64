"""Volumes that mkfs.xfs and mkfs.btrfs have made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.superblock import read_superblock
from quickstart.model import MIB
from quickstart.model.words import FileSystem
from tests.contract.test_command_line import said

UUID = "5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0a01"
PARTITION_BYTES = 3 * MIB


def made_btrfs(path: Path) -> Path:
    with path.open("xb") as file:
        file.truncate(256 * MIB)
    try:
        subprocess.run(["mkfs.btrfs", "-q", "-U", UUID, path], check=True, timeout=60)
    except FileNotFoundError:
        pytest.fail("mkfs.btrfs is missing: apt-get install btrfs-progs")
    return path


def test_btrfs(tmp_path: Path) -> None:
    """A new label is a new superblock."""
    disk = made_btrfs(tmp_path / "disk")
    before = read_superblock(disk)
    assert (before.file_system, before.uuid) == (FileSystem.BTRFS, UUID)
    subprocess.run(["btrfs", "filesystem", "label", disk, "other"], check=True, timeout=60)
    assert read_superblock(disk).state != before.state


def made(path: Path, *options: str) -> Path:
    with path.open("xb") as file:
        file.truncate(320 * MIB)
    argv: list[str | Path] = ["mkfs.xfs", "-q", "-m", f"uuid={UUID}", *options, path]
    try:
        subprocess.run(argv, check=True, timeout=60)
    except FileNotFoundError:
        pytest.fail("mkfs.xfs is missing: apt-get install xfsprogs")
    return path


@pytest.mark.parametrize("options", [(), ("-b", "size=1024"), ("-d", "agcount=3"), ("-s", "size=4096")])
def test_the_superblock(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = read_superblock(made(tmp_path / "disk", *options))
    assert (found.file_system, found.uuid) == (FileSystem.XFS, UUID)


def test_what_changes_the_log(tmp_path: Path) -> None:
    """xfs_db's `logformat` writes the log anew, and nothing else."""
    disk = made(tmp_path / "disk")
    before = read_superblock(disk)
    subprocess.run(
        ["xfs_db", "-x", "-c", "logformat -c 5", disk], check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    after = read_superblock(disk)
    assert before.state != after.state
    assert before.uuid == after.uuid


def test_in_a_partition(tmp_path: Path) -> None:
    """The size of the file is not that of the file system."""
    volume = made(tmp_path / "volume")
    with (tmp_path / "disk").open("xb") as file:
        file.seek(PARTITION_BYTES)
        file.write(volume.read_bytes())
    assert read_superblock(tmp_path / "disk", PARTITION_BYTES) == read_superblock(volume)


def test_version_4(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="version 4"):
        read_superblock(made(tmp_path / "disk", "-m", "crc=0"))


@pytest.mark.parametrize(("kind", "make"), [("xfs", made), ("btrfs", made_btrfs)])
def test_init_finds_the_volume(tmp_path: Path, kind: str, make: Callable[[Path], Path]) -> None:
    make(tmp_path / "disk")
    found = 'read_superblock /disk && echo "$SB_UUID $SB_CREATED"; needs_check; echo "$unwanted"'
    script = f"ROOT_FSTYPE={kind} BUILD_WTIME=0 unwanted=; {found}"
    assert said(tmp_path, script) == f"{UUID} 0"


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize(
    "what", [b"", b"XFSB", os.urandom(1 << 17), b"xfsb" + bytes(4096), bytes(65600) + b"_BHRfS_"]
)
def test_init_takes_nothing_else_for_it(tmp_path: Path, kind: str, what: bytes) -> None:
    (tmp_path / "disk").write_bytes(what)
    assert said(tmp_path, f"ROOT_FSTYPE={kind}; read_superblock /disk || echo none") == "none"


@pytest.mark.parametrize(
    ("used_s", "why"),
    [
        (None, ""),
        (3600, ""),
        (-30 * 86400, ""),
        (3 * 86400, "the clock is more than two days behind the root volume"),
        (-6 * 31557600, "the clock is years ahead of the root volume"),
    ],
)
def test_when_it_was_last_used(tmp_path: Path, used_s: int | None, why: str) -> None:
    """XFS and btrfs do not say so, but files do."""
    now_s = 1_700_000_000
    stat = "stat() { false; }" if used_s is None else f"stat() {{ echo {now_s + used_s}; }}"
    script = f'unwanted= SB_WTIME=0 BUILD_WTIME=0 EPOCHSECONDS={now_s}; {stat}; last_use; check_clock; echo "$unwanted"'
    assert said(tmp_path, f"unset EPOCHSECONDS; {script}") == why
