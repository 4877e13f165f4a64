"""The store: made once, nothing kept of a failure, keys that follow the inputs."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from quickstart.errors import HostLacksError
from quickstart.store import Store, default_root, key_of, source_digest

INPUTS = {"a": 1, "b": ["x", "y"]}


def fill(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    (directory / "result").write_text("made")


def fail(directory: Path) -> None:
    (directory / "half").write_text("half")
    raise RuntimeError("stopped")


def test_made_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.find("s", INPUTS) is None
    first = store.get_or_make("s", INPUTS, fill)
    second = store.get_or_make("s", INPUTS, fail)
    assert (first.made, second.made) == (True, False)
    assert first.path == second.path == store.find("s", INPUTS)
    assert (first.path / "result").read_text() == "made"
    assert json.loads((first.path / "inputs.json").read_text()) == {"stage": "s", "inputs": INPUTS}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match="stopped"):
        store.get_or_make("s", INPUTS, fail)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [f"{key_of('s', INPUTS)}.lock"]
    assert store.get_or_make("s", INPUTS, fill).made


def test_what_a_killed_maker_left_is_removed(tmp_path: Path) -> None:
    partial = tmp_path / "s" / f"{key_of('s', INPUTS)}.partial"
    (partial / "deep").mkdir(parents=True)
    entry = Store(tmp_path).get_or_make("s", INPUTS, fill)
    assert not partial.exists()
    assert sorted(path.name for path in entry.path.iterdir()) == ["inputs.json", "result"]


def test_keys_follow_stage_and_inputs() -> None:
    keys = {
        key_of("s", {"a": 1, "b": 2}),
        key_of("t", {"a": 1, "b": 2}),
        key_of("s", {"a": 2, "b": 1}),
        key_of("s", {"a": "1", "b": 2}),
        key_of("s", {"a": 1}),
    }
    assert len(keys) == 5
    assert key_of("s", {"b": 2, "a": 1}) in keys


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostLacksError, match="cannot be written") as caught:
        Store(tmp_path / "file").get_or_make("s", INPUTS, fill)
    assert caught.value.hint is not None
    assert "QUICKSTART_CACHE" in caught.value.hint


def test_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("QUICKSTART_CACHE", raising=False)
    assert default_root() == Path("/h/.cache/quickstart")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_root() == Path("/x/quickstart")
    monkeypatch.setenv("QUICKSTART_CACHE", "/q")
    assert default_root() == Path("/q")


def test_source_digest() -> None:
    digests = {
        source_digest(name) for name in ("quickstart.trace", "quickstart.trace.strace", "quickstart.elf")
    }
    assert len(digests) == 3
    assert source_digest("quickstart.elf") in digests


def test_entries_and_their_removal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [store.get_or_make("stage", {"n": n}, fill) for n in (1, 2)]
    entries = store.entries()
    assert {entry.path for entry in entries} == {entry.path for entry in made}
    assert all(entry.stage == "stage" and entry.size_bytes >= 4096 for entry in entries)
    assert store.remove(entries[0])
    assert [entry.path for entry in store.entries()] == [entries[1].path]


def test_asking_for_an_entry_counts_as_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.get_or_make("stage", {}, lambda path: None).path
    os.utime(path / "inputs.json", (1, 1))
    assert store.entries()[0].used_s == 1
    store.get_or_make("stage", {}, lambda path: None)
    assert store.entries()[0].used_s > 1


def test_an_entry_that_is_being_made_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.get_or_make("stage", {}, lambda path: None)
    (entry,) = store.entries()
    with (tmp_path / "stage" / f"{entry.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not store.remove(entry)
    assert entry.path.is_dir()
