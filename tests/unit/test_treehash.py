"""The hash of a tree: what it covers, and that holes count as zeros."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.host.files import remove_tree
from quickstart.host.walk import walk
from quickstart.model import MIB
from quickstart.store import treehash
from quickstart.store.treehash import tree_hash
from tests.unit.deep import DEEP, little_recursion, nest

FAR = 5 * MIB + 1234
HOLE = b"x" * 10 + bytes(FAR) + b"y" * 10


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "dir/file").write_bytes(b"text")
    (tree / "large").write_bytes(HOLE)
    (tree / "link").symlink_to("dir/file")
    (tree / "-first").write_bytes(b"")
    return tree


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x" * 10)
        file.seek(10 + FAR)
        file.write(b"y" * 10)


def test_holes_are_zeros(tmp_path: Path) -> None:
    for name in ("written", "holes"):
        (tmp_path / name).mkdir()

    (tmp_path / "written/file").write_bytes(HOLE)
    sparse(tmp_path / "holes/file")
    for name in ("written", "holes"):
        os.utime(tmp_path / name / "file", (1, 1))
    assert (tmp_path / "holes/file").stat().st_blocks < (tmp_path / "written/file").stat().st_blocks
    assert tree_hash(tmp_path / "written") == tree_hash(tmp_path / "holes")


def rewrite(path: Path, data: bytes) -> None:
    """Other content, with the times as they were."""
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: rewrite(tree / "dir/file", b"texT"),
        lambda tree: rewrite(tree / "dir/file", b"tex"),
        lambda tree: rewrite(tree / "dir/file", b"text\0"),
        lambda tree: rewrite(tree / "-first", b"\0"),
        lambda tree: rewrite(tree / "large", HOLE[:-1] + b"z"),
        lambda tree: rewrite(tree / "large", HOLE[: FAR // 2] + b"z" + HOLE[FAR // 2 + 1 :]),
        lambda tree: rewrite(tree / "large", HOLE + bytes(MIB)),
        lambda tree: rewrite(tree / "large", bytes(MIB) + HOLE[:-MIB]),
        lambda tree: (tree / "dir/file").unlink(),
        lambda tree: (tree / "dir/more").write_text(""),
        lambda tree: (tree / "dir/empty").mkdir(),
        lambda tree: (tree / "dir/file").chmod(0o600),
        lambda tree: (tree / "dir").chmod(0o700),
        lambda tree: tree.chmod(0o711),
        lambda tree: (tree / "dir/file").rename(tree / "file"),
        lambda tree: (tree / "link").unlink() or (tree / "link").symlink_to("dir/filE"),
        lambda tree: (tree / "link").unlink() or (tree / "link").write_text("dir/file"),
        lambda tree: os.utime(tree / "dir/file", (1, 1)),
        lambda tree: os.utime(tree / "dir", (1, 1)),
    ],
)
def test_every_change_shows(tree: Path, change: Callable[[Path], object]) -> None:
    before = tree_hash(tree)
    change(tree)
    assert tree_hash(tree) != before


def test_what_does_not_count(tree: Path) -> None:
    before = tree_hash(tree)
    os.utime(tree, (1, 1))
    (tree / "mark").write_text("not hashed")
    # ctime is the host's own: no volume gets it.
    (tree / "dir/file").chmod(0o644)
    tree.rename(tree.with_name("elsewhere"))
    assert tree_hash(tree.with_name("elsewhere"), without="mark") == before
    assert tree_hash(tree.with_name("elsewhere")) != before


def test_only_the_topmost_is_left_out(tree: Path) -> None:
    before = tree_hash(tree, without="mark")
    (tree / "dir/mark").write_text("hashed")
    assert tree_hash(tree, without="mark") != before


def test_the_order_of_many_files_is_that_of_their_names(tmp_path: Path) -> None:
    names = [f"{n:04}" for n in range(300)]
    for place in ("up", "down"):
        (tmp_path / place).mkdir()

    def make() -> None:
        for place, order in (("up", names), ("down", names[::-1])):
            for name in order:
                (tmp_path / place / name).write_text(name)

    make()
    for path in tmp_path.glob("*/*"):
        os.utime(path, (1, 1))
    assert tree_hash(tmp_path / "up") == tree_hash(tmp_path / "down")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tree_hash(tmp_path / "none")


def test_the_order_is_depth_first_by_name(tree: Path) -> None:
    (tree / "dir.d/sub").mkdir(parents=True)
    top = os.fsencode(tree)
    names = [path[len(top) :] for path, _ in walk(top, tree.stat().st_dev)]
    assert names == [b"", b"/-first", b"/dir", b"/dir/file", b"/dir.d", b"/dir.d/sub", b"/large", b"/link"]


@pytest.mark.parametrize(("depth", "name"), DEEP)
def test_a_deep_tree(tmp_path: Path, depth: int, name: str) -> None:
    """Deeper than Python recurses, and with paths longer than the kernel takes."""
    hashes = []
    for number, last in enumerate(("file", "file", "other")):
        nest(tmp_path / str(number), depth, name, last)
        with little_recursion():
            hashes.append(tree_hash(tmp_path / str(number)))
        remove_tree(tmp_path / str(number))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_value_that_looks_like_another_attribute(tmp_path: Path) -> None:
    """Both trees are the giver's: with one hash he would have a checked one taken for the other."""
    for name, attributes in (
        ("one", {"user.a": b"1\0user.b\x002"}),
        ("two", {"user.a": b"1", "user.b": b"2"}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"")
        for key, value in attributes.items():
            os.setxattr(tmp_path / name / "file", key, value)
        os.utime(tmp_path / name / "file", (1, 1))
    assert tree_hash(tmp_path / "one") != tree_hash(tmp_path / "two")


def test_a_name_that_is_the_description_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second name is followed by the first one's; a file more, whose description reads like that, must not be the same.

    Such a description is found in 70 000 tries of other content; here it is just said.
    """
    name = b"\xe9" * 30
    described = treehash._described

    def pretend(path: bytes, top: bytes, device: int, mounted_s: int | None) -> tuple[os.stat_result, bytes]:
        status, description = described(path, top, device, mounted_s)
        return status, b"/" + name + b"\0" if path.endswith("\U0010ffff\U0010ffff".encode()) else description

    monkeypatch.setattr(treehash, "_described", pretend)
    for tree in (tmp_path / "linked", tmp_path / "more"):
        tree.mkdir()
        first = tree / os.fsdecode(name)
        first.write_bytes(b"same")
        if tree.name == "linked":
            os.link(first, tree / "\U0010ffff")
        else:
            (tree / "\U0010ffff").write_bytes(b"same")
            (tree / "\U0010ffff").with_name("\U0010ffff\U0010ffff").write_bytes(b"")
        for each in tree.iterdir():
            os.utime(each, (1, 1))
    assert tree_hash(tmp_path / "linked") != tree_hash(tmp_path / "more")
