"""The store: an entry is made once, a failure leaves nothing, and keys depend on the inputs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import BadInputError, HostLacksError
from quickstart.store import kept as keeping
from quickstart.store.kept import check_place, discard, kept, opened_stage
from quickstart.store.store import MARK, Store, default_root, key_of, source_digest
from quickstart.store.treehash import tree_hash
from tests.unit.deep import DEEP, little_recursion, nest
from tests.unit.storing import INPUTS, fail, fill


def test_made_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.find("s", INPUTS) is None
    first = store.get_or_make("s", INPUTS, fill)
    second = store.get_or_make("s", INPUTS, fail)
    assert (first.made, second.made) == (True, False)
    assert first.path == second.path == store.find("s", INPUTS)
    assert (first.path / "result").read_text() == "made"
    mark = json.loads((first.path / MARK).read_text())
    assert mark == {"stage": "s", "inputs": INPUTS, "tree_hash": tree_hash(first.path, without=MARK)}


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
    assert sorted(path.name for path in entry.path.iterdir()) == [MARK, "result"]


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
        source_digest(name)
        for name in ("quickstart.trace", "quickstart.trace.strace", "quickstart.inspect.elf")
    }
    assert len(digests) == 3
    assert source_digest("quickstart.inspect.elf") in digests


def test_entries_and_their_removal(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        made = [store.get_or_make("stage", {"n": n}, fill) for n in (1, 2)]
    entries = store.entries()
    assert {entry.path for entry in entries} == {entry.path for entry in made}
    assert all(entry.stage == "stage" and entry.size_bytes >= 4096 for entry in entries)
    assert store.remove(entries[0])
    assert [entry.path for entry in store.entries()] == [entries[1].path]
    assert sorted(path.name for path in (tmp_path / "stage").iterdir()) == [
        entries[1].key,
        f"{entries[1].key}.lock",
    ]


def test_an_entry_that_is_a_link_or_a_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root would walk through all that the link leads to, once for each of any number of links."""
    root = tmp_path / "store"
    with Store(root) as store:
        made = store.get_or_make("stage", INPUTS, fill)
    (tmp_path / "big").mkdir()
    for number in range(20):
        (root / f"stage/{number:032x}").symlink_to(tmp_path / "big")
        (root / f"stage/{number:032x}.partial").symlink_to(tmp_path / "big")
    (root / f"stage/{'f' * 32}").write_text("")
    measured: list[Path] = []

    def counted(path: Path) -> int:
        measured.append(path)
        return 0

    monkeypatch.setattr(keeping, "_allocated_bytes", counted)
    assert [each.path for each in store.entries()] == [made.path]
    assert store.leftovers() == ()
    assert measured == [made.path]


def test_the_entries_of_a_store_that_others_may_change(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(HostLacksError, match="can be written by others"):
        Store(tmp_path).entries()


def test_asking_for_an_entry_counts_as_use(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.get_or_make("stage", {}, fill).path
    os.utime(path / MARK, (1, 1))
    (old,) = store.entries()
    assert old.used_s == 1
    with Store(tmp_path) as user:
        assert not user.get_or_make("stage", {}, fail).made
    assert store.entries()[0].used_s > 1
    assert not store.remove(old)


def test_an_entry_without_a_mark_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "stage" / key_of("stage", {})
    path.mkdir(parents=True)
    (path / "inputs.json").write_text("{}")
    store = Store(tmp_path)
    assert store.find("stage", {}) is None
    (entry,) = store.entries()
    assert entry.path == path
    assert store.remove(entry)
    assert not path.exists()


def test_use_makes_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        assert store.use("s", INPUTS) is None
        assert not (tmp_path / "store").exists()
    with Store(tmp_path) as maker:
        path = maker.get_or_make("s", INPUTS, fill).path
    (entry,) = maker.entries()
    with Store(tmp_path) as store:
        assert store.use("s", INPUTS) == store.use("s", INPUTS) == path
        assert list(store.marks("s")) == [(path, INPUTS)]
        assert not Store(tmp_path).remove(entry)
    (path / "result").write_text("mAde")
    with Store(tmp_path) as store, pytest.raises(BadInputError, match="is damaged") as caught:
        store.use("s", INPUTS)
    assert caught.value.hint == "a build makes it again"
    assert (path / "result").read_text() == "mAde"


def test_nobody_else_looks_into_what_is_of_an_image(tmp_path: Path) -> None:
    def stages_of_others() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077}

    for stage in ("base", "reference", "disk", "trace", "agent"):
        Store(tmp_path).get_or_make(stage, {}, fill)
    assert stages_of_others() == {"agent"}
    (tmp_path / "reference").chmod(0o755)
    assert not Store(tmp_path).get_or_make("reference", {}, fail).made
    assert stages_of_others() == {"agent"}


# ---------------------------------------------------------------- damage


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def edit_mark(path: Path, **changes: object) -> None:
    mark = json.loads((path / MARK).read_text())
    (path / MARK).write_text(json.dumps({**mark, **changes}))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda path: rewrite(path / "result", "mAde"), "its files are not what was made"),
        (lambda path: rewrite(path / "result", "mad"), "its files are not what was made"),
        (lambda path: rewrite(path / "more", ""), "its files are not what was made"),
        (lambda path: (path / "result").unlink(), "its files are not what was made"),
        (lambda path: (path / "result").chmod(0o600), "its files are not what was made"),
        (lambda path: edit_mark(path, tree_hash="0"), "its files are not what was made"),
        (lambda path: edit_mark(path, inputs={}), "its entry.json is another entry's"),
        (lambda path: edit_mark(path, tree_hash=None), "its files are not what was made"),
        (lambda path: rewrite(path / MARK, '{"stage": "s", "inputs": {}}'), "its entry.json cannot be read"),
        (lambda path: rewrite(path / MARK, "[]"), "its entry.json cannot be read"),
        (lambda path: (path / MARK).write_bytes(b"\xff"), "its entry.json cannot be read"),
        (lambda path: (path / MARK).write_bytes(b""), "its entry.json cannot be read"),
        (lambda path: (path / MARK).write_bytes(b"[" * 100_000), "its entry.json cannot be read"),
        (lambda path: replace_by_pipe(path / MARK), "its entry.json cannot be read"),
        (lambda path: os.truncate(path / MARK, 1 << 40), "its entry.json cannot be read"),
        (lambda path: (path / MARK).rename(path / "inputs.json"), "it has no entry.json"),
        (replace_by_file, "its entry.json cannot be read"),
    ],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: Callable[[Path], object], what: str) -> None:
    with Store(tmp_path) as store:
        path = store.get_or_make("s", INPUTS, fill).path
    damage(path)
    heard: list[str] = []
    with Store(tmp_path, heard.append) as store:
        entry = store.get_or_make("s", INPUTS, fill)
        assert entry.made
        assert not store.get_or_make("s", INPUTS, fail).made
    assert heard == [f"store entry s/{entry.key} is damaged ({what}): made again"]
    assert sorted(each.name for each in path.iterdir()) == [MARK, "result"]
    assert (path / "result").read_text() == "made"
    assert sorted(each.name for each in path.parent.iterdir()) == [entry.key, f"{entry.key}.lock"]
    with Store(tmp_path, heard.append) as store:
        assert not store.get_or_make("s", INPUTS, fail).made
    assert len(heard) == 1


def test_a_damaged_entry_that_cannot_be_made_again_is_gone(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        path = store.get_or_make("s", INPUTS, fill).path
    (path / "result").unlink()
    with Store(tmp_path) as store, pytest.raises(RuntimeError, match="stopped"):
        store.get_or_make("s", INPUTS, fail)
    assert store.find("s", INPUTS) is None


@pytest.mark.parametrize(("depth", "name"), DEEP)
def test_an_entry_of_any_depth_is_made_found_listed_and_removed(
    tmp_path: Path, depth: int, name: str
) -> None:
    with little_recursion():
        with Store(tmp_path) as store:
            assert store.get_or_make("s", INPUTS, lambda path: nest(path / "deep", depth, name)).made
        with Store(tmp_path) as store:
            assert not store.get_or_make("s", INPUTS, fail).made
        (entry,) = store.entries()
        assert store.remove(entry)
    assert list((tmp_path / "s").iterdir()) == []


# ---------------------------------------------------------------- locks


def test_an_entry_in_use_stays(tmp_path: Path) -> None:
    with Store(tmp_path) as maker:
        maker.get_or_make("stage", {}, fill)
        (entry,) = maker.entries()
        assert not Store(tmp_path).remove(entry)
    with Store(tmp_path) as user, Store(tmp_path) as another:
        user.get_or_make("stage", {}, fail)
        another.get_or_make("stage", {}, fail)
        another.close()
        assert not Store(tmp_path).remove(entry)
        assert entry.path.is_dir()
    (entry,) = user.entries()
    assert Store(tmp_path).remove(entry)
    assert list((tmp_path / "stage").iterdir()) == []


def test_an_entry_that_is_being_made_stays(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.get_or_make("stage", {}, fill)
    (entry,) = store.entries()
    with (tmp_path / "stage" / f"{entry.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not store.remove(entry)
    assert entry.path.is_dir()


def test_leftovers_are_removed_and_live_ones_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def look(directory: Path) -> None:
        assert Store(tmp_path).leftovers() == ()
        fill(directory)

    dead = tmp_path / "s" / f"{key_of('s', {})}.partial"
    dead.mkdir(parents=True)
    (dead / "half").write_text("half")
    assert [(each.path, each.partial) for each in store.leftovers()] == [(dead, True)]
    assert store.remove(store.leftovers()[0])
    assert list((tmp_path / "s").iterdir()) == []
    store.get_or_make("s", INPUTS, look)


def test_lock_files_of_entries_that_are_gone_are_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError):
        store.get_or_make("s", {"n": 1}, fail)
    kept = store.get_or_make("s", {"n": 2}, fill).path
    store.remove_locks()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [kept.name, f"{kept.name}.lock"]


def test_what_a_linked_stage_leads_to_is_not_the_store_s(tmp_path: Path) -> None:
    """A store that somebody else made: each removal would be one of his choice."""
    notes: list[str] = []
    key, store = key_of("s", INPUTS), Store(tmp_path / "store", notes.append)
    for name in (key, f"{key}.partial"):
        (tmp_path / "victim" / name).mkdir(parents=True)
        (tmp_path / "victim" / name / "file").write_text("precious")
    (tmp_path / "victim" / f"{'a' * 32}.lock").write_text("")
    (tmp_path / "victim").chmod(0o755)
    store.root.mkdir()
    (stage := store.root / "s").symlink_to("../victim")
    before = sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*"))
    assert (store.entries(), store.leftovers()) == ((), ())
    store.remove_locks()
    assert notes == [f"{stage} is a link: nothing there is listed or removed"]
    # The name may have become a link since the list was made.
    (found,) = kept([stage / key], MARK)
    for ask in (
        lambda: store.remove(found),
        lambda: store.get_or_make("s", INPUTS, fill),
        lambda: check_place(store.root, stage),
    ):
        with pytest.raises(HostLacksError, match="s is a link"):
            ask()
    assert sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("a symbolic link", lambda lock: lock.symlink_to("../../nologin")),
        ("a pipe", os.mkfifo),
        ("a directory", lambda lock: lock.mkdir()),
    ],
)
def test_a_lock_that_is_no_regular_file_is_not_opened(
    tmp_path: Path, kind: str, make: Callable[[Path], object]
) -> None:
    store = Store(tmp_path / "store")
    lock = store.root / "s" / f"{key_of('s', INPUTS)}.lock"
    lock.parent.mkdir(parents=True)
    make(lock)
    before = sorted(tmp_path.rglob("*"))
    for ask in (store.remove_locks, lambda: store.get_or_make("s", INPUTS, fill)):
        with pytest.raises(HostLacksError, match=f"the lock .* is {kind}") as caught:
            ask()
        assert "remove it" in (caught.value.hint or "")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Store(tmp_path) as store, pytest.raises(HostLacksError, match="has no locks") as caught:
        store.get_or_make("s", INPUTS, fill)
    assert caught.value.hint == "set QUICKSTART_CACHE to a local file system"
    assert store.entries() == ()


def test_a_store_is_ours_alone_whichever_verb_makes_it_with_which_umask(tmp_path: Path) -> None:
    """`doctor` and `run` make it for the verdict on KVM."""
    store = Store(tmp_path / "cache/store")
    before = os.umask(0o002)
    try:
        stage = store.make_stage("verdicts")
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (stage.parent.parent, stage.parent, stage)] == [0o755] * 3
    with store:
        assert store.get_or_make("s", INPUTS, fill).made


def test_an_entry_is_removed_from_the_directory_that_was_judged(tmp_path: Path) -> None:
    """Not from one to which a link of the stage's name leads by now."""
    key = key_of("s", INPUTS)
    with Store(tmp_path / "store") as store:
        stage = store.get_or_make("s", INPUTS, fill).path.parent
    for name in (key, f"{key}.partial"):
        (tmp_path / "victim" / name).mkdir(parents=True)
        (tmp_path / "victim" / name / "file").write_text("precious")
    with opened_stage(store.root, stage) as opened:
        stage.rename(tmp_path / "aside")
        stage.symlink_to(tmp_path / "victim")
        discard(opened, key)
    assert sorted(each.name for each in (tmp_path / "victim").rglob("file")) == ["file", "file"]
    assert [each.name for each in (tmp_path / "aside").iterdir()] == [f"{key}.lock"]
