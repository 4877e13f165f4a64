"""Root disks that mkfs.ext4 writes, as debugfs(8) reads them (as root: owners and modes are kept)."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.image.ext4 import read_superblock, write_disk
from quickstart.model import MIB, RootDisk

UUID = str(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"))


def debugfs(disk: Path, command: str) -> str:
    tool = shutil.which("debugfs", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        pytest.fail("debugfs is not installed: apt-get install e2fsprogs")
    done = subprocess.run(
        [tool, "-R", command, disk],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PAGER": "cat"},
    )
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they write files of other owners")
    tree = tmp_path / "tree"
    (tree / "dir").mkdir(parents=True)
    for name, mode, owner in (("plain", 0o644, 0), ("dir/odd", 0o4711, 1234), ("dir/secret", 0o600, 65534)):
        (tree / name).write_text(name)
        os.chown(tree / name, owner, owner + 1)
        (tree / name).chmod(mode)
    (tree / "dir").chmod(0o1777)
    (tree / "link").symlink_to("/dir/odd")
    return tree


def written(tree: Path, path: Path) -> RootDisk:
    return write_disk(tree, path, 16, UUID)


@pytest.mark.parametrize(
    ("name", "mode", "owner", "group"),
    [
        ("/plain", 0o644, 0, 1),
        ("/dir/odd", 0o4711, 1234, 1235),
        ("/dir/secret", 0o600, 65534, 65535),
        ("/dir", 0o1777, 0, 0),
    ],
)
def test_modes_and_owners(tree: Path, tmp_path: Path, name: str, mode: int, owner: int, group: int) -> None:
    shown = debugfs(written(tree, tmp_path / "disk").path, f"stat {name}").split()
    assert int(shown[shown.index("Mode:") + 1], 8) == mode
    assert shown[shown.index("User:") + 1] == str(owner)
    assert shown[shown.index("Group:") + 1] == str(group)


def test_contents_and_links(tree: Path, tmp_path: Path) -> None:
    disk = written(tree, tmp_path / "disk").path
    assert debugfs(disk, "cat /dir/odd") == "dir/odd"
    assert 'Fast link dest: "/dir/odd"' in debugfs(disk, "stat /link")


def test_the_superblock(tree: Path, tmp_path: Path) -> None:
    disk = written(tree, tmp_path / "disk")
    assert disk.size_bytes == disk.path.stat().st_size == 16 * MIB
    assert (disk.superblock.uuid, disk.superblock.mount_count) == (UUID, 0)
    assert disk.superblock.clean
    assert not disk.superblock.has_errors
    assert not disk.superblock.needs_recovery


def test_the_same_tree_has_the_same_superblock(tree: Path, tmp_path: Path) -> None:
    assert written(tree, tmp_path / "a").superblock == written(tree, tmp_path / "b").superblock


def test_a_later_write_shows(tree: Path, tmp_path: Path) -> None:
    """What "never used" rests on: any tool that writes the file system leaves another superblock."""
    disk = written(tree, tmp_path / "disk")
    tool = shutil.which("debugfs", path="/usr/sbin:/sbin") or "debugfs"
    subprocess.run([tool, "-w", "-R", "rm /plain", disk.path], capture_output=True, timeout=60, check=True)
    assert read_superblock(disk.path) != disk.superblock


def test_a_tree_that_does_not_fit(tree: Path, tmp_path: Path) -> None:
    (tree / "large").write_bytes(os.urandom(20 * MIB))
    with pytest.raises(BadInputError, match="does not fit on a disk of 16 MiB"):
        written(tree, tmp_path / "disk")
    assert not (tmp_path / "disk").exists()
