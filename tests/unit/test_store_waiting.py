"""Several processes want the same entry of the store: one makes it, and the others wait."""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import HostLacksError
from quickstart.store import ownfiles
from quickstart.store.store import Entry, Store, key_of
from tests.unit.storing import INPUTS, fail, fill

LIMIT_S = 30.0


class Asker(threading.Thread):
    """Another build that wants the entry, as a thread with a store of its own; `waits` is set when it has to wait."""

    def __init__(self, root: Path, make: Callable[[Path], None]) -> None:
        super().__init__(daemon=True)
        self.waits = threading.Event()
        self.notes: list[str] = []
        self.entry: Entry | None = None
        self.store = Store(root, self._hear)
        self._make = make
        self.start()

    def _hear(self, text: str) -> None:
        self.notes.append(text)
        if text.startswith("waiting for another quickstart"):
            self.waits.set()

    def run(self) -> None:
        self.entry = self.store.get_or_make("s", INPUTS, self._make)

    def answer(self) -> Entry:
        self.join(LIMIT_S)
        assert self.entry is not None
        return self.entry


def test_who_wants_what_is_being_made_waits_for_it(tmp_path: Path) -> None:
    others: list[Asker] = []

    def make(directory: Path) -> None:
        others.extend(Asker(tmp_path, fail) for _ in range(2))
        assert all(other.waits.wait(LIMIT_S) for other in others)
        fill(directory)

    with Store(tmp_path) as store:
        path = store.get_or_make("s", INPUTS, make).path
        assert [(other.answer().path, other.answer().made) for other in others] == [(path, False)] * 2
    for other in others:
        other.store.close()


def test_a_damaged_entry_in_use_is_made_again_when_its_user_ends(tmp_path: Path) -> None:
    with Store(tmp_path) as user:
        path = user.get_or_make("s", INPUTS, fill).path
        (path / "result").write_text("broken")
        other = Asker(tmp_path, fill)
        assert other.waits.wait(LIMIT_S)
        assert (path / "result").read_text() == "broken"
        assert user.get_or_make("s", INPUTS, fail).path == path
    assert other.answer().made
    assert (path / "result").read_text() == "made"
    other.store.close()


def test_many_who_find_an_entry_damaged_make_it_once(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.get_or_make("s", INPUTS, fill).path
        (path / "result").write_text("broken")
        # They all hold the shared lock or wait for the exclusive one while we keep ours.
        others = [Asker(tmp_path, fill) for _ in range(4)]
        assert all(other.waits.wait(LIMIT_S) for other in others)
    assert sorted(other.answer().made for other in others) == [False, False, False, True]
    assert (path / "result").read_text() == "made"
    for other in others:
        other.store.close()


def test_many_who_miss_an_entry_make_it_once_and_use_it_at_once(tmp_path: Path) -> None:
    others = [Asker(tmp_path, fill) for _ in range(6)]
    assert sorted(other.answer().made for other in others) == [False] * 5 + [True]
    for other in others:
        other.store.close()


def test_a_lock_file_that_is_removed_while_somebody_waits_for_it_is_no_lock(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.get_or_make("s", INPUTS, fill).path
    lock = path.with_name(f"{path.name}.lock")
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = Asker(tmp_path, fill)
        assert other.waits.wait(LIMIT_S)
        shutil.rmtree(path)
        lock.unlink()
    assert other.answer().made
    (entry,) = store.entries()
    assert not store.remove(entry)
    other.store.close()
    assert store.remove(entry)


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_that_others_can_open_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Who may read root's stage `agent` can lock its lock files, and keep them locked."""
    monkeypatch.setattr(ownfiles, "_LIMIT_S", 0.2)
    (stage := tmp_path / "agent").mkdir(mode=0o755)
    key = key_of("agent", INPUTS)
    (lock := stage / f"{key}.lock").touch()
    with lock.open("rb") as held:
        fcntl.flock(held, kind)
        with (
            Store(tmp_path) as store,
            pytest.raises(HostLacksError, match="locked by another process") as caught,
        ):
            store.get_or_make("agent", INPUTS, fill)
    assert "lslocks" in (caught.value.hint or "")
    # Another quickstart that makes the entry may take its time, which ends, too: a killed one leaves the same.
    monkeypatch.setattr(ownfiles, "_MAKING_LIMIT_S", 0.5)
    (stage / f"{key}.partial").mkdir()
    began_s = time.monotonic()
    with lock.open("rb") as held:
        fcntl.flock(held, kind)
        with Store(tmp_path) as store, pytest.raises(HostLacksError, match="locked by another process"):
            store.get_or_make("agent", INPUTS, fill)
    assert time.monotonic() - began_s > 0.5
    with Store(tmp_path) as store:
        assert store.get_or_make("agent", INPUTS, fill).made
