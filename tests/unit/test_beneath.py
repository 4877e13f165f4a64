"""Files of a directory that a stranger may have filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.host.beneath import check_plain_name, open_regular, opened_regular, read_bounded


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
