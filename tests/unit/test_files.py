"""A failure counts as a full disk's when its error says so, or when no space is free."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quickstart.errors import (
    BadInputError,
    CommandError,
    HostLacksError,
    MissingToolError,
    QuickStartError,
    ReferenceImageError,
)
from quickstart.host import files
from quickstart.host.files import full_disk_named, remove_tree
from quickstart.model import MIB
from tests.unit.deep import DEEP, little_recursion, nest


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Path, int]:
    """What is free by directory; the temporary one is `tmp`."""
    free = {tmp_path: 5 * MIB, Path("/tmp"): 100 * MIB}
    monkeypatch.setattr(files, "free_bytes", lambda path: free[path])
    monkeypatch.delenv("TMPDIR", raising=False)
    return free


def raised(directory: Path, error: BaseException) -> BaseException:
    with pytest.raises(BaseException) as caught, full_disk_named(directory, "the store", "make room"):
        raise error
    return caught.value


def wrapped(tail: str) -> Exception:
    error = ReferenceImageError("installing failed")
    error.__cause__ = CommandError(["dpkg"], 1, tail)
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        CommandError(["cp"], 1, "cp: error writing 'x': No space left on device\n"),
        wrapped("E: Write error - write (28: No space left on device)"),
        wrapped("E: You don't have enough free space in /var/cache/apt/archives/."),
    ],
)
def test_what_says_so(free: dict[Path, int], tmp_path: Path, error: Exception) -> None:
    found = raised(tmp_path, error)
    assert isinstance(found, QuickStartError)
    assert found.exit_code == 3
    assert found.message.startswith(
        f"no space left for the store {tmp_path} ({5 * MIB} bytes free on its file system): "
    )
    assert str(error).partition("\n")[0] in found.message
    assert found.hint == "make room"


@pytest.mark.parametrize("error", [CommandError(["apt-get"], 100, ""), BadInputError("no such package: x")])
def test_nothing_is_free(free: dict[Path, int], tmp_path: Path, error: QuickStartError) -> None:
    free[tmp_path] = MIB - 1
    found = raised(tmp_path, error)
    assert isinstance(found, QuickStartError)
    assert (found.exit_code, f"({MIB - 1} bytes free" in found.message) == (3, True)


def test_the_temporary_directory_is_named_when_it_is_the_fuller_one(
    free: dict[Path, int], tmp_path: Path
) -> None:
    free[Path("/tmp")] = 0
    found = raised(tmp_path, CommandError(["qemu-system-x86_64"], 1, ""))
    assert str(found).startswith("no space left for the temporary directory /tmp (0 bytes free")


@pytest.mark.parametrize(
    ("left", "error"),
    [
        (5 * MIB, CommandError(["cp"], 1, "cp: x: Permission denied")),
        (5 * MIB, BadInputError("x")),
        (5 * MIB, OSError(errno.EIO, "Input/output error")),
        (0, OSError(errno.EIO, "Input/output error")),
        (0, MissingToolError("cp", "coreutils")),
        (0, KeyboardInterrupt()),
        (0, RuntimeError("ours")),
    ],
)
def test_other_errors_pass(free: dict[Path, int], tmp_path: Path, left: int, error: BaseException) -> None:
    free[tmp_path] = left
    assert raised(tmp_path, error) is error


def test_the_temporary_directory_is_found_without_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", full)
    monkeypatch.setattr(files, "free_bytes", lambda path: 0)
    monkeypatch.delenv("TMPDIR", raising=False)
    error = OSError(errno.ENOSPC, "No space left on device")
    assert str(raised(tmp_path, error)).startswith("no space left for the store")
    assert files.temporary_directory() == Path("/tmp")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert files.temporary_directory() == Path("/tmp")
    for none in ("/dev/null/tmp", f"/{'x' * 300}"):
        monkeypatch.setenv("TMPDIR", none)
        assert files.temporary_directory() == Path("/tmp")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert files.temporary_directory() == tmp_path


@pytest.mark.parametrize(("depth", "name"), DEEP)
def test_a_deep_tree_is_removed(tmp_path: Path, depth: int, name: str) -> None:
    nest(tmp_path / "deep", depth, name)
    with little_recursion():
        remove_tree(tmp_path / "deep")
    assert list(tmp_path.iterdir()) == []


def test_what_a_removed_tree_points_at_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("")
    tree = tmp_path / "tree"
    (tree / "a/b/empty").mkdir(parents=True)
    (tree / "a/b/link").symlink_to(tmp_path / "kept")
    (tree / "link").symlink_to("../kept")
    os.mkfifo(tree / "a/fifo")
    (tmp_path / "top").symlink_to("tree")
    remove_tree(tmp_path / "top")
    assert tree.is_dir()
    remove_tree(tree)
    remove_tree(tree)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "kept", tmp_path / "kept/file"]


def test_a_mount_whose_name_has_a_blank_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b/mnt").mkdir(parents=True)
    line = b"36 35 98:0 / %s/a\\040b/mnt rw - ext4 /dev/sda1 rw" % os.fsencode(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", lambda self: line)
    with pytest.raises(HostLacksError, match="a b/mnt is mounted in what is to be removed"):
        remove_tree(tmp_path / "a b")
    assert (tmp_path / "a b/mnt").is_dir()


def test_free_bytes_of_what_is_not_there_yet(tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path / "a/b") > 0
