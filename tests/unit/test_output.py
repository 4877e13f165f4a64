"""OUT is complete or unchanged, even when another build works on it or was killed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from quickstart.artefact import output
from quickstart.artefact.output import check_unused, in_use, new_directory, settled
from quickstart.errors import ArtefactError, BadInputError, HostLacksError, OutputExistsError
from quickstart.host.exchange import exchange
from quickstart.host.files import remove_tree


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "place" / "out"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text("{}")
    return out


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_new_directory(tmp_path: Path) -> None:
    with new_directory(tmp_path / "out") as directory:
        (directory / "a").write_text("a")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out/a").read_text() == "a"


def test_it_replaces_the_old_one(out: Path) -> None:
    with new_directory(out) as directory:
        (directory / "a").write_text("a")
        assert (out / "manifest.json").exists()
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ArtefactError("x"), KeyboardInterrupt()])
def test_an_error_leaves_all_as_it_was(out: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), new_directory(out) as directory:
        (directory / "a").write_text("a")
        raise error
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "manifest.json").exists()


def test_no_such_parent(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a directory"), new_directory(tmp_path / "a/b"):
        pass


def test_what_another_build_made_meanwhile_stays_when_it_is_as_good(out: Path) -> None:
    asked = []

    def keep() -> bool:
        asked.append(out.exists())
        return True

    with new_directory(out, keep) as directory:
        (directory / "a").write_text("a")
    assert asked == [True]
    assert names(out.parent) == ["out"]
    assert names(out) == ["manifest.json"]


def test_what_another_build_made_meanwhile_stays_when_it_has_been_used(out: Path) -> None:
    def keep() -> bool:
        raise BadInputError("used")

    with pytest.raises(BadInputError, match="used"), new_directory(out, keep):
        pass
    assert names(out.parent) == ["out"]
    assert names(out) == ["manifest.json"]


def test_two_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_directory(out) as first, new_directory(out) as second:
        (first / "first").write_text("")
        (second / "second").write_text("")
    assert names(tmp_path) == ["out"]
    assert names(out) == ["first"]


def test_an_old_out_whose_replacer_was_killed_comes_back(out: Path) -> None:
    out.rename(out.with_name(".out.00000000.old"))
    (out.parent / ".out.11111111.partial").mkdir()
    with settled(out):
        assert names(out.parent) == ["out"]
        assert names(out) == ["manifest.json"]


def test_an_old_out_that_was_replaced_goes(out: Path) -> None:
    old = out.with_name(".out.00000000.old")
    old.mkdir()
    (old / "root.raw").write_text("")
    with settled(out):
        assert names(out.parent) == ["out"]
    assert names(out) == ["manifest.json"]


def test_an_old_out_of_somebody_else_never_becomes_out(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others may write, too, its name alone would make it ours; and a link would be anything."""
    others = out.parent / "theirs"
    out.rename(others)
    (out.parent / ".out.00000000.old").symlink_to(others)
    (out.parent / ".out.11111111.partial").symlink_to(others)
    with settled(out):
        assert not out.exists()
    assert names(out.parent) == [".out.00000000.old", ".out.11111111.partial", "theirs"]
    assert names(others) == ["manifest.json"]
    (out.parent / ".out.00000000.old").unlink()
    (out.parent / ".out.00000000.old").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: out.parent.stat().st_uid + 1)
    with settled(out):
        assert not out.exists()


def test_what_is_not_a_leftover_of_this_out_stays(out: Path) -> None:
    others = [
        ".out.partial",
        ".out.0000000g.old",
        ".outer.00000000.partial",
        "x.out.00000000.old",
        ".o.t.00000000.old",
    ]
    for name in others:
        (out.parent / name).mkdir()
    (out.parent / ".out.22222222.partial").write_text("a file")
    with settled(out):
        pass
    assert names(out.parent) == sorted([*others, ".out.22222222.partial", "out"])


def test_out_is_there_at_each_moment(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that is killed leaves nothing but what the next one removes."""
    seen: list[list[str]] = []
    monkeypatch.setattr(output, "sync_directory", lambda directory: seen.append(names(directory)))
    with new_directory(out) as new:
        (new / "new").write_text("")
    assert [(len(each), each[0][-8:], each[1]) for each in seen] == [(2, ".partial", "out")]
    assert (names(out.parent), names(out)) == (["out"], ["new"])


def test_an_old_out_that_cannot_be_removed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in it is somebody else's; the new one is there all the same."""

    def remove(path: Path) -> None:
        raise PermissionError(1, "no", str(path))

    monkeypatch.setattr(output, "remove_tree", remove)
    with new_directory(out) as new:
        (new / "new").write_text("")
    assert (len(names(out.parent)), names(out)) == (2, ["new"])


def test_a_file_system_that_cannot_exchange(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        number = errno.EINVAL

        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(self.number)
            return -1

    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", lambda *_, **__: Library())
        assert exchange(out, out.parent) is False
        patched.setattr(Library, "number", errno.ENOENT)
        with pytest.raises(FileNotFoundError):
            exchange(out, out.parent)
        patched.setattr(ctypes, "CDLL", lambda *_, **__: object())
        assert exchange(out, out.parent) is False
    monkeypatch.setattr(output, "exchange", lambda one, other: False)
    with new_directory(out) as new:
        (new / "new").write_text("")
    assert (names(out.parent), names(out)) == (["out"], ["new"])


def test_an_error_between_the_renames_brings_the_old_out_back(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def second_fails(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial") and target == out:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(output, "exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(KeyboardInterrupt), new_directory(out):
        pass
    assert names(out.parent) == ["out"]
    assert names(out) == ["manifest.json"]


def test_a_directory_that_somebody_keeps_locked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LIMIT_S", 0.0)
    fd = os.open(out.parent, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        with pytest.raises(HostLacksError, match="is locked by another process"), settled(out):
            pass
    finally:
        os.close(fd)


# ---------------------------------------------------------------- while a machine runs


def test_what_a_machine_runs_from_is_not_replaced(out: Path) -> None:
    with in_use(out), in_use(out):
        with settled(out), pytest.raises(OutputExistsError, match="is in use by a running machine"):
            check_unused(out)
        with pytest.raises(OutputExistsError, match="is in use by a running machine"), new_directory(out):
            pass
        assert names(out.parent) == ["out"]
        assert names(out) == ["manifest.json"]
    with new_directory(out):
        pass
    assert names(out) == []


def test_what_would_be_made_again_stays_while_a_machine_runs(out: Path) -> None:
    with in_use(out), new_directory(out, lambda: True):
        pass
    assert names(out) == ["manifest.json"]


def test_who_wants_to_run_it_waits_until_it_is_replaced(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the new one, never the one that is removed."""
    seen: list[list[str]] = []

    def use() -> None:
        with in_use(out):
            seen.append(names(out))

    machine = threading.Thread(target=use, daemon=True)

    def slow_removal(path: Path) -> None:
        if (path / "manifest.json").exists():
            machine.start()
        remove_tree(path)

    monkeypatch.setattr(output, "remove_tree", slow_removal)
    with new_directory(out) as directory:
        (directory / "new").write_text("")
    machine.join(30)
    assert seen == [["new"]]


def test_the_one_that_was_just_made_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its maker has put everything away."""
    looked: list[Path] = []

    def look(path: Path) -> None:
        check_unused(tmp_path / "out")
        looked.append(path)

    monkeypatch.setattr(output, "remove_tree", look)
    with new_directory(tmp_path / "out"):
        pass
    assert looked


def linked_beside(out: Path, name: str = ".out.deadbeef.partial") -> Path:
    """What a rebuild makes beside OUT: another name of its disk."""
    (out / "root.raw").write_text("disk")
    left = out.with_name(name)
    left.mkdir()
    os.link(out / "root.raw", left / "root.raw")
    return left


def test_what_a_killed_rebuild_left_is_removed_before_a_machine_runs(out: Path) -> None:
    """QEMU opens no disk for writing that has another name."""
    linked_beside(out)
    with in_use(out):
        assert (out / "root.raw").stat().st_nlink == 1
        assert names(out.parent) == ["out"]


def test_a_machine_waits_for_a_rebuild(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = linked_beside(out)
    fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waited: list[float] = []

    def end_of_rebuild(for_s: float) -> None:
        waited.append(for_s)
        remove_tree(left)

    monkeypatch.setattr("quickstart.artefact.output.time.sleep", end_of_rebuild)
    with in_use(out):
        assert len(waited) == 1
        assert (out / "root.raw").stat().st_nlink == 1
    os.close(fd)


def test_another_name_elsewhere_is_not_ours_to_remove(out: Path) -> None:
    for name in (".other.deadbeef.partial", "copy"):
        linked_beside(out, name)
        (out / "root.raw").unlink()
    left = out.with_name(".out.deadbeef.partial")
    left.mkdir()
    with in_use(out):
        assert names(out.parent) == [".other.deadbeef.partial", left.name, "copy", "out"]


def test_nothing_to_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file", "file/below"):
        with in_use(tmp_path / name):
            check_unused(tmp_path / name)


def test_without_locks_a_machine_runs_and_no_build_replaces(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with in_use(out):
        assert names(out) == ["manifest.json"]
    with pytest.raises(HostLacksError, match="has no locks"), new_directory(out):
        pass
    assert names(out.parent) == ["out"]


def test_a_loss_of_power_after_the_end_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All data reach the disk before the new name does, and that before `build` says that it is done."""
    done: list[str] = []
    renamed = Path.rename

    def rename(self: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return renamed(self, target)

    monkeypatch.setattr(os, "sync", lambda: done.append("sync all"))
    monkeypatch.setattr(output, "sync_directory", lambda directory: done.append(f"sync {directory.name}"))
    monkeypatch.setattr(Path, "rename", rename)
    with output.new_directory(tmp_path / "out"):
        pass
    assert done == ["sync all", "rename to out", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EBUSY, errno.ENOTEMPTY])
def test_an_error_of_the_last_rename(out: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What can only be seen at the end."""

    def fails(one: Path, other: Path) -> bool:
        raise OSError(number, os.strerror(number), str(one))

    monkeypatch.setattr(output, "exchange", fails)
    with pytest.raises(HostLacksError, match="out cannot be replaced") as caught, new_directory(out):
        pass
    assert "choose another -o" in (caught.value.hint or "")
    assert (names(out.parent), names(out)) == (["out"], ["manifest.json"])


def test_a_directory_that_was_replaced_while_it_was_written_does_not_become_out(tmp_path: Path) -> None:
    """Nor is a link of its name followed, to a directory that would then be open to all."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(HostLacksError, match="was replaced"), new_directory(tmp_path / "out") as directory:
        directory.rename(tmp_path / "aside")
        directory.symlink_to(closed)
    assert closed.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in tmp_path.iterdir()) == ["aside", "closed"]
