"""The files of a root of XFS or btrfs: an archive of GNU tar, as the appliance makes it (guest/tree), in place of the disk."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.artefact.useddisk import UsedDisk, examine_disk, reference_of_disk, with_times_of
from quickstart.host.progress import Quiet
from quickstart.model import MIB, StartSet
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.test_ext4 import ACL, CAPABILITY
from tests.contract.test_file_systems import UUID, made
from tests.contract.usedtree import write_tree
from tests.unit.startfiles import start_file


def archived(tree: Path, archive: Path) -> None:
    """With the options of the appliance's script."""
    script = resources.files("quickstart.launch.appliance").joinpath("guest", "tree").read_text()
    found = re.search(r"^/sbin/tar (--create .*) \.$", script, re.MULTILINE)
    assert found
    words: list[str | Path] = ["sh", "-c", f"tar {found[1].replace('/cell/disk/${2-}', '$1')} .", "sh", tree]
    with archive.open("wb") as out:
        subprocess.run(words, check=True, timeout=60, stdout=out)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    write_tree(tree, ["usr/bin/a b"])
    os.utime(tree / "usr/bin/a b", ns=(1, 1_600_000_000_123_456_789))
    return tree


def used(tree: Path, place: Path) -> UsedDisk:
    archived(tree, place / "root.tar")
    return examine_disk(made(place / "disk"), place / "root.tar")


def test_times_are_those_of_the_inodes(tree: Path, tmp_path: Path) -> None:
    names = ("usr/bin/a b", "usr/bin/link", "usr/bin/plain", "usr/bin/second", "usr/bin")
    files = tuple(start_file(f"/{name}", mode=0o100755) for name in names)
    found = with_times_of(StartSet(files, ()), used(tree, tmp_path))
    expected = [(tree / name).lstat() for name in names]
    assert [(file.mtime_s, file.ctime_s) for file in found.files] == [
        (int(each.st_mtime), int(each.st_ctime)) for each in expected
    ]


def test_the_tree_is_as_on_the_disk(tree: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        image = reference_of_disk(used(tree, tmp_path), "root", 64 * MIB, Context(store, Quiet()))
    assert (image.kernel_version, image.volume_uuid) == ("6.1.0-1", UUID)
    found = (image.tree / "usr/bin/a b").stat()
    assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o755, 1234, 2345)
    assert found.st_mtime_ns == 1_600_000_000_123_456_789
    assert os.getxattr(image.tree / "usr/bin/able", "security.capability") == CAPABILITY
    assert (image.tree / "usr/bin/link").readlink() == Path("plain")
    assert (image.tree / "usr/bin/second").samefile(image.tree / "usr/bin/plain")


def test_what_every_user_can_give_a_file_stays_on_the_disk(tree: Path, tmp_path: Path) -> None:
    """btrfs alone takes the attribute for its compression, so another one of users stands for it. ACLs come home."""
    os.setxattr(tree / "usr/bin/plain", "user.btrfs", b"x" * 1000)
    os.setxattr(tree / "usr/bin/plain", "system.posix_acl_access", ACL)
    with Store(tmp_path / "store") as store:
        image = reference_of_disk(used(tree, tmp_path), "root", 64 * MIB, Context(store, Quiet()))
    assert b"SCHILY.xattr.user" not in (tmp_path / "root.tar").read_bytes()
    assert os.listxattr(image.tree / "usr/bin/plain") == ["system.posix_acl_access"]
