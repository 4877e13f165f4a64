"""Files in a directory that a stranger may have filled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.host.beneath import check_plain_name, open_regular, opened_regular, read_bounded, read_judged


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert read_bounded(tmp_path / "a", 7) == b"content"


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(BadInputError, match="7 bytes; at most 6"):
        read_bounded(tmp_path / "a", 6)


@pytest.mark.parametrize(("target", "said"), [("other", "a symbolic link"), ("/dev/zero", "a symbolic link")])
def test_a_link_is_refused(tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "a").symlink_to(target)
    with pytest.raises(BadInputError, match=said):
        open_regular(tmp_path / "a")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(BadInputError, match=r"a pipe \(FIFO\)"):
        open_regular(tmp_path / "a")


def test_devices_and_directories_are_refused(tmp_path: Path) -> None:
    for path, said in ((Path("/dev/zero"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(BadInputError, match=said):
            open_regular(path)


def test_a_file_with_two_names_is_read_but_never_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"x")
    (tmp_path / "a").hardlink_to(tmp_path / "victim")
    with opened_regular(tmp_path / "a") as fd:
        assert os.read(fd, 1) == b"x"
    with pytest.raises(BadInputError, match="2 names"):
        open_regular(tmp_path / "a", writable=True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(BadInputError):
        check_plain_name(name)


# Of the directories above: root, who is nobody to a user namespace of an ordinary user's (tests/conftest.py).
OWNER = Path("/").stat().st_uid


@pytest.fixture
def way(tmp_path: Path) -> Path:
    """A file that only we can write, three directories down."""
    file = tmp_path / "a/b/file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"ours")
    for path in (file, file.parent, file.parent.parent):
        path.chmod(0o700)
    return file


@pytest.mark.parametrize(
    ("where", "mode", "doubted"),
    [("", 0o700, False), ("b/file", 0o620, True), ("b/file", 0o602, True), ("b/file", 0o1602, True), ("b", 0o720, True),
     ("", 0o777, True), ("", 0o1777, False)],
)  # fmt: skip
def test_who_could_have_written_a_file_is_said(way: Path, where: str, mode: int, doubted: bool) -> None:
    changed = way.parent.parent / where
    changed.chmod(mode)
    assert read_judged(way, 100, OWNER) == (b"ours", str(changed) if doubted else "")


def test_that_of_another_user_is_his(way: Path) -> None:
    _, doubt = read_judged(way, 100, OWNER + 1)
    assert (doubt == "") == (OWNER == 0)


def test_what_is_read_is_what_is_judged(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts his own file in its place at each step: either that is what is read and doubted, or it is not read."""
    theirs = way.parent / "theirs"
    open_at: Callable[..., int] = os.open
    found = []
    for step in range(len(way.parts) + 1):
        theirs.write_bytes(b"theirs")
        theirs.chmod(0o666)
        way.unlink(missing_ok=True)
        way.write_bytes(b"ours")
        way.chmod(0o600)
        left = step

        def opened(name: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
            nonlocal left
            fd = open_at(name, flags, *more, dir_fd=dir_fd)
            left -= 1
            if left == 0:
                theirs.rename(way)
            return fd

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opened)
            found.append(read_judged(way, 100, OWNER))
    assert set(found) == {(b"ours", ""), (b"theirs", str(way))}


@pytest.mark.parametrize("name", ["b", "b/fifo"])
def test_only_a_file_is_judged(way: Path, name: str) -> None:
    os.mkfifo(way.parent / "fifo")
    with pytest.raises(BadInputError, match="not a regular file"):
        read_judged(way.parent.parent / name, 100)
    with pytest.raises(BadInputError, match="at most 3"):
        read_judged(way, 3)
