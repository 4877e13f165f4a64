"""A user's own root with cp(1), tar(1) and its programs (as root, for owners, nodes and mounts)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.reference.rootfs import copy_directory, examine, unpack
from quickstart.store.store import Store
from quickstart.store.treehash import tree_hash
from tests.contract.test_ext4 import ACL, NAMES, odd_tree

DISK = 64 << 20


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A tree with something of every kind."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they write files of other owners")
    tree = odd_tree(tmp_path / "given", NAMES, 1_700_000_000)
    (tree / "setuid").write_text("x")
    (tree / "setuid").chmod(0o4755)
    os.utime(tree / "setuid", (1, 1_600_000_000))
    return tree


def hash_without_nodes(tree: Path) -> str:
    """Device nodes are not copied. The root's own time is not in the hash."""
    aside = tree.parent / "node"
    (tree / "node").rename(aside)
    try:
        return tree_hash(tree)
    finally:
        aside.rename(tree / "node")


def assert_whole(copy: Path, given: Path) -> None:
    """Everything that a tree's hash has, and what it does not: hard links and holes."""
    assert tree_hash(copy) == hash_without_nodes(given)
    assert (copy / "a").stat().st_ino == (copy / "hard").stat().st_ino
    assert (copy / "sparse").stat().st_blocks == 0
    assert os.getxattr(copy / "c", "system.posix_acl_access") == ACL
    assert os.getxattr(copy / "a", "user.note") == b"kept"
    assert os.listxattr(copy / "b/1") == ["security.capability"]


def packed(tree: Path, archive: Path, *options: str) -> Path:
    """``archive`` of ``tree`` as docs/users/build.md says."""
    argv = ["tar", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-S", *options]
    subprocess.run([*argv, "-C", tree, "-cf", archive, "."], check=True, timeout=60)
    return archive


@pytest.mark.parametrize("option", ["--no-auto-compress", "--gzip", "--xz", "--zstd"])
def test_an_archive_is_unpacked_whole(given: Path, tmp_path: Path, option: str) -> None:
    archive = packed(given, tmp_path / "archive", option)
    assert examine(archive).kind == "tar"
    unpack(archive, tmp_path / "copy", DISK)
    assert_whole(tmp_path / "copy", given)


def test_a_directory_is_copied_whole_and_not_changed(given: Path, tmp_path: Path) -> None:
    before = tree_hash(given)
    copy_directory(examine(given), tmp_path / "copy", Store(tmp_path / "store"), DISK)
    assert_whole(tmp_path / "copy", given)
    assert tree_hash(given) == before
    (tmp_path / "link").symlink_to(given)
    assert examine(tmp_path / "link") == examine(given)


@pytest.fixture
def mounted(given: Path) -> Iterator[Path]:
    """A file system on a directory of the tree, as a live /proc would be."""
    subprocess.run(["mount", "-t", "tmpfs", "none", given / "d/e"], check=True, timeout=60)
    try:
        (given / "d/e/inside").write_text("live")
        yield given
    finally:
        subprocess.run(["umount", given / "d/e"], check=True, timeout=60)


def test_what_is_mounted_in_a_directory_stays_outside(mounted: Path, tmp_path: Path) -> None:
    found = examine(mounted)
    copies = [tmp_path / "1", tmp_path / "2"]
    for copy in copies:
        (mounted / "d/e/inside").write_text(f"{copy}")
        (mounted / f"d/e/{copy.name}").touch()
        copy_directory(found, copy, Store(tmp_path / "store"), DISK)
        assert list((copy / "d/e").iterdir()) == []
    assert tree_hash(copies[0]) == tree_hash(copies[1])


def test_a_directory_that_changes_meanwhile(given: Path, tmp_path: Path) -> None:
    found = examine(given)
    (given / "c").write_text("other")
    with pytest.raises(BadInputError, match="changed while it was copied"):
        copy_directory(found, tmp_path / "copy", Store(tmp_path / "store"), DISK)


def test_a_store_inside_the_directory(given: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="lies in"):
        copy_directory(examine(given), tmp_path / "copy", Store(given / "d/store"), DISK)


@pytest.mark.parametrize("option", ["--no-auto-compress", "--gzip", "--xz", "--zstd"])
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_cut_archive(given: Path, tmp_path: Path, option: str, part: float) -> None:
    archive = packed(given, tmp_path / "archive", option)
    os.truncate(archive, int(archive.stat().st_size * part) // 512 * 512 + 7)
    with pytest.raises(BadInputError, match=r"cannot be unpacked whole|is cut|ended before its end"):
        examine(archive)
        unpack(archive, tmp_path / "copy", DISK)


@pytest.mark.parametrize(("option", "said"), [("--gzip", "crc error"), ("--xz", "corrupt")])
def test_what_decompresses_says_why_it_failed(given: Path, tmp_path: Path, option: str, said: str) -> None:
    """It may write to no file, and its last bytes are a sum."""
    archive = packed(given, tmp_path / "archive", option)
    data = bytearray(archive.read_bytes())
    data[-6] ^= 1
    archive.write_bytes(data)
    with pytest.raises(BadInputError, match=f"cannot be unpacked whole: .*{said}"):
        examine(archive)
        unpack(archive, tmp_path / "copy", DISK)


def test_a_plain_archive_cut_between_two_members(given: Path, tmp_path: Path) -> None:
    archive = packed(given, tmp_path / "archive", "--no-auto-compress")
    with tarfile.open(archive) as members:
        end = members.getmembers()[5].offset
    os.truncate(archive, end)
    with pytest.raises(BadInputError, match="it has no end of archive"):
        examine(archive)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, data = kind, target, b"evil" if kind == tarfile.REGTYPE else b""
    info.size = len(data)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.SYMTYPE, target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.LNKTYPE, target)


Members = Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]


@pytest.mark.parametrize(
    ("members", "refused"),
    [
        (lambda out: [member("../outside/x")], True),
        (lambda out: [member("a/../../outside/x")], True),
        (lambda out: [member(f"{out}/x")], False),
        (lambda out: [link("way", str(out)), member("way/x")], True),
        (lambda out: [link("way", "../outside"), member("way/x")], True),
        (lambda out: [link("one", "."), link("one/two", "../outside"), member("two/x")], True),
        (lambda out: [link("file", f"{out}/victim"), member("file")], False),
        (lambda out: [hard("file", f"{out}/victim"), member("file")], True),
        (lambda out: [hard("file", "../outside/victim"), member("file")], True),
        (lambda out: [link("l", f"{out}/victim"), hard("file", "l"), member("file")], False),
    ],
)
def test_nothing_leaves_the_directory(tmp_path: Path, members: Members, refused: bool) -> None:
    """Each either fails as a whole or stays inside; a file and a directory beside it are as they were."""
    out = tmp_path / "outside"
    out.mkdir()
    (out / "victim").write_text("good")
    with tarfile.open(tmp_path / "archive", "w") as archive:
        for info, data in members(out):
            archive.addfile(info, io.BytesIO(data))
    examine(tmp_path / "archive")
    if refused:
        with pytest.raises(BadInputError, match="cannot be unpacked whole"):
            unpack(tmp_path / "archive", tmp_path / "tree", DISK)
    else:
        unpack(tmp_path / "archive", tmp_path / "tree", DISK)
    assert [path.name for path in out.iterdir()] == ["victim"]
    assert (out / "victim").read_text() == "good"
    assert (out / "victim").stat().st_nlink == 1
    shutil.rmtree(tmp_path / "tree")


def test_a_root_without_a_member_of_its_own_is_open_to_all(tmp_path: Path) -> None:
    """Whatever the umask; one that the archive has is kept."""
    (tmp_path / "given").mkdir()
    (tmp_path / "given/x").touch()
    (tmp_path / "given").chmod(0o711)
    before = os.umask(0o077)
    try:
        subprocess.run(["tar", "-C", tmp_path / "given", "-cf", tmp_path / "1", "x"], check=True, timeout=60)
        subprocess.run(["tar", "-C", tmp_path / "given", "-cf", tmp_path / "2", "."], check=True, timeout=60)
        for name in "12":
            unpack(tmp_path / name, tmp_path / f"copy{name}", DISK)
    finally:
        os.umask(before)
    assert [(tmp_path / f"copy{name}").stat().st_mode & 0o777 for name in "12"] == [0o755, 0o711]
