"""A failure is a full disk's when it says so, or when nothing is free."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quickstart.errors import (
    BadInputError,
    CommandError,
    MissingToolError,
    QuickStartError,
    ReferenceImageError,
)
from quickstart.host import files
from quickstart.host.files import full_disk_named
from quickstart.model import MIB


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Path, int]:
    """What is free by directory; the temporary one is `tmp`."""
    free = {tmp_path: 5 * MIB, Path("/tmp"): 100 * MIB}
    monkeypatch.setattr(files, "free_bytes", lambda path: free[path])
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
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


def test_free_bytes_of_what_is_not_there_yet(tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path / "a/b") > 0
