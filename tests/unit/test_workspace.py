"""A workspace is removed at the end of its run, or by the next run after a kill. Those of others, and kept ones, stay."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from quickstart.host.workspace import room_for_sockets, workspace

PREFIX = "quickstart-test-"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def orphan(place: Path, name: str = f"{PREFIX}orphan") -> Path:
    """What a run that was killed leaves: nobody has the lock."""
    path = place / name
    (path / "deep").mkdir(parents=True)
    (path / "deep/console.log").write_text("")
    (path / "owner").write_text("")
    return path


def test_it_is_ones_own_and_gone_afterwards(place: Path) -> None:
    with workspace(PREFIX) as made:
        assert made.parent == place
        assert made.stat().st_mode & 0o777 == 0o700
        (made / "file").write_text("")
    with pytest.raises(KeyboardInterrupt), workspace(PREFIX):
        raise KeyboardInterrupt
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("length", "stays"), [(91, True), (92, False), (200, False)])
def test_a_socket_s_path_has_at_most_107_bytes(length: int, stays: bool) -> None:
    directory = Path("/" + "x" * (length - 1))
    with room_for_sockets(directory) as made:
        assert (made == directory) is stays
        assert len(str(made / ("n" * 15))) <= 107
    assert not made.exists()


def test_what_a_killed_run_left_goes_with_the_next(place: Path) -> None:
    orphan(place)
    with workspace(PREFIX) as made:
        assert list(place.iterdir()) == [made]


def test_what_is_in_use_or_kept_stays(place: Path) -> None:
    with workspace(PREFIX) as used, workspace(PREFIX, keep=True) as kept:
        with workspace(PREFIX), workspace(PREFIX):
            assert used.is_dir()
        with workspace(PREFIX):
            pass
        assert sorted(place.iterdir()) == sorted([used, kept])
    with workspace(PREFIX):
        pass
    assert list(place.iterdir()) == [kept]


def test_what_is_not_ours_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = orphan(place, "elsewhere")
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}file").write_text("")
    (place / f"{PREFIX}unmarked").mkdir()
    before = sorted(place.rglob("*"))
    with workspace(PREFIX):
        pass
    assert sorted(place.rglob("*")) == before
    others = orphan(place)
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    with workspace(PREFIX):
        assert others.is_dir()


def test_without_locks_nothing_is_taken_for_an_orphan(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    left = orphan(place)
    with workspace(PREFIX) as first, workspace(PREFIX) as second:
        assert sorted(place.iterdir()) == sorted([left, first, second])
    monkeypatch.undo()
    assert list(place.iterdir()) == [left]
