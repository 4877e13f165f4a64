"""A disk's tree, times and attributes are compared with debugfs(8); mke2fs makes the disk."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from quickstart.artefact import useddisk
from quickstart.artefact.useddisk import examine_disk, reference_of_disk, with_times_of
from quickstart.errors import BadInputError
from quickstart.host.progress import Quiet
from quickstart.image.ext4 import write_disk
from quickstart.inspect.foreign.home import Members
from quickstart.inspect.foreign.members import Kind, Member
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import IMAGE_TIME_S, MIB, StartSet
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.test_ext4 import ACL, CAPABILITY
from tests.contract.usedtree import write_tree
from tests.unit.startfiles import start_file

UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    tree = tmp_path / "given tree"
    write_tree(tree, ("usr/bin/a b", "etc/odd\xe9"))
    (tree / 'etc/quoted"\n').write_text("x")
    os.utime(tree / "usr/bin/link", (1, 1_500_000_000), follow_symlinks=False)
    path = tmp_path / "a disk.raw"
    write_disk(tree, path, 64, UUID, "root")
    return path


def test_the_tree_is_as_on_the_disk(disk: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        image = reference_of_disk(examine_disk(disk), "root", 64 * MIB, Context(store, Quiet()))
    assert (image.kernel_version, image.volume_uuid, image.origin[0]) == ("6.1.0-1", UUID, "disk")
    for name in ("usr/bin/plain", "usr/bin/a b", "etc/odd\xe9"):
        found = (image.tree / name).stat()
        assert (image.tree / name).read_text() == name
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid, found.st_mtime) == (
            0o755, 1234, 2345, 1_600_000_000
        )  # fmt: skip
    assert os.getxattr(image.tree / "usr/bin/able", "security.capability") == CAPABILITY
    assert os.listxattr(image.tree / "usr/bin/plain") == []
    assert (image.tree / "usr/bin/link").readlink() == Path("plain")
    assert sorted(path.name for path in image.tree.parent.iterdir()) == ["entry.json", "image.json", "root"]


def test_files_and_directories_keep_their_acls(tmp_path: Path) -> None:
    """A rebuild must not pack what an ACL closes to some users."""
    write_tree(tmp_path / "tree", ())
    closed = ("usr/bin/plain", "usr/bin", "etc")
    for name in closed:
        os.setxattr(tmp_path / "tree" / name, "system.posix_acl_access", ACL)
    write_disk(tmp_path / "tree", tmp_path / "disk", 64, UUID, "root")
    with Store(tmp_path / "store") as store:
        image = reference_of_disk(examine_disk(tmp_path / "disk"), "root", 64 * MIB, Context(store, Quiet()))
    root = ImageRoot(image.tree)
    assert [name for name in (*closed, "usr") if root.has_acl(PurePosixPath("/", name))] == list(closed)
    assert os.getxattr(image.tree / "etc", "system.posix_acl_access") == ACL


def test_times_are_the_volumes(disk: Path) -> None:
    # Of the two names of a file, one is a hard link to the other.
    names = ("/usr/bin/a b", "/usr/bin/link", "/etc/odd\xe9", "/usr/bin/plain", "/usr/bin/second")
    files = [start_file(name, mode=0o100755) for name in names]
    found = with_times_of(StartSet(tuple(files), ()), examine_disk(disk))
    assert [(file.mtime_s, file.ctime_s) for file in found.files] == [
        (1_600_000_000, IMAGE_TIME_S),
        (1_500_000_000, IMAGE_TIME_S),
        *[(1_600_000_000, IMAGE_TIME_S)] * 3,
    ]


def test_other_files_of_the_disk_take_no_memory(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 58 MB of data (200 KB as tar.zst) with long paths took 600 MiB, and its size is no limit."""

    @contextmanager
    def many(*_: object) -> Iterator[Members]:
        yield ((Member(path=f"{number:0900}", kind=Kind.FILE), iter(())) for number in range(10_000))

    used = examine_disk(disk)
    monkeypatch.setattr(useddisk, "foreign_members", many)
    tracemalloc.start()
    try:
        with_times_of(StartSet((), ()), used)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_file_that_the_disk_does_not_have(disk: Path) -> None:
    file = start_file("/none", mode=0o100755)
    with pytest.raises(BadInputError, match="/none"):
        with_times_of(StartSet((file,), ()), examine_disk(disk))


def test_a_disk_that_was_cut_off(disk: Path) -> None:
    # s_feature_incompat of the superblock: INCOMPAT_RECOVER.
    with disk.open("r+b") as file:
        file.seek(1024 + 0x60)
        flags = file.read(1)[0] | 0x4
        file.seek(1024 + 0x60)
        file.write(bytes([flags]))
    with pytest.raises(BadInputError, match="not shut down in order"):
        examine_disk(disk)
