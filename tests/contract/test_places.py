"""A store that another user may rename and replace, or may write to: what root refuses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from quickstart.errors import HostLacksError
from quickstart.launch import accel
from quickstart.store.store import Store, key_of
from tests.contract.strangers import STRANGER, STRANGER_OUTSIDE


def test_no_store_below_another_users_directory(theirs: Path) -> None:
    (theirs / "roots").mkdir()
    for place in (theirs / "roots/store", theirs / "store"):
        with Store(place) as store:
            with pytest.raises(
                HostLacksError, match=f"belongs to another user .{STRANGER_OUTSIDE}.*is run here"
            ):
                store.get_or_make("agent", {}, lambda directory: None)
            with pytest.raises(HostLacksError, match="is run here"):
                store.find("agent", {})
    assert sorted(theirs.iterdir()) == [theirs / "roots"]
    assert list((theirs / "roots").iterdir()) == []


def test_a_link_to_the_store_that_another_user_made(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "own").mkdir()
    (link := tmp_path / "sticky/store").symlink_to(tmp_path / "own")
    with Store(link) as store:
        assert store.get_or_make("agent", {}, lambda directory: None).made
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with Store(link) as store, pytest.raises(HostLacksError, match="belongs to another user"):
        store.get_or_make("agent", {}, lambda directory: None)


@pytest.mark.parametrize("name", ["store", "store/agent"])
def test_somebody_makes_the_store_before_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In /tmp, after we have looked and before we make it."""
    (sticky := tmp_path / "sticky").mkdir()
    sticky.chmod(0o1777)
    real = Path.mkdir

    def later(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self == sticky / name:
            real(self)
            os.chown(self, STRANGER, STRANGER)
        real(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", later)
    made: list[Path] = []
    with Store(sticky / "store") as store, pytest.raises(HostLacksError, match="is run here"):
        store.get_or_make("agent", {}, made.append)
    assert made == []
    # Not even a lock of root's is in what is theirs.
    assert list((sticky / name).iterdir()) == []


def test_no_store_that_is_open_to_others(tmp_path: Path, theirs: Path) -> None:
    """As /tmp itself: the sticky bit keeps nobody from making an entry that we would run, or one that `cache gc` removes."""
    (tmp_path / "victim" / ("a" * 32)).mkdir(parents=True)
    for mode in (0o1777, 0o1775):
        (place := tmp_path / f"{mode:o}").mkdir()
        place.chmod(mode)
        shutil.copytree(theirs, place / "agent")
        (place / "agent" / ("b" * 32)).mkdir()
        with Store(place) as store:
            for ask in (
                lambda: store.find("agent", {}),
                lambda: store.get_or_make("agent", {}, lambda made: None),
                lambda: store.remove(next(iter(store.entries()))),
                store.remove_locks,
                lambda: list(store.marks("agent")),
            ):
                with pytest.raises(HostLacksError, match=f"{place} can be written by others.*is run here"):
                    ask()
                (place / "agent" / f"{'c' * 32}.lock").touch()
        # One in it is made.
        with Store(place / "ours") as store:
            assert store.get_or_make("agent", {}, lambda made: None).made


def test_the_owner_of_a_given_top_directory_is_the_image_s(tmp_path: Path) -> None:
    def make(directory: Path) -> None:
        (directory / "root").mkdir()
        os.chown(directory / "root", STRANGER, STRANGER)

    for made in (True, False):
        with Store(tmp_path / "store") as store:
            assert store.get_or_make("reference", {"kind": "tar"}, make).made == made
            assert store.find("reference", {"kind": "tar"})
            assert len(list(store.marks("reference"))) == 1
            # Of no other stage, and nothing else of an entry.
            with pytest.raises(HostLacksError, match="belongs to another user"):
                store.get_or_make("disk", {}, make)
                store.find("disk", {})


def test_the_verdict_on_kvm_is_written_through_nobody_s_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another user makes `verdicts` while we try, in a store that was open to others until then."""
    (kernel := tmp_path / "kernel").write_bytes(b"kernel")
    (target := tmp_path / "shadow").write_text("root's\n")
    (place := tmp_path / "store").mkdir()

    def tried(kernel: Path) -> bool:
        (place / "verdicts").mkdir()
        os.chown(place / "verdicts", STRANGER, STRANGER)
        (place / "verdicts" / f"{keys[-1]}.{os.getpid()}").symlink_to(target)
        return True

    keys: list[str] = []

    def noted(stage: str, inputs: Mapping[str, object]) -> str:
        keys.append(key_of(stage, inputs))
        return keys[-1]

    access = os.access
    monkeypatch.setattr(accel, "key_of", noted)
    monkeypatch.setattr(accel, "_try_kvm", tried)
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/kvm" or access(path, mode))
    with Store(place) as store, pytest.raises(HostLacksError, match="is run here"):
        accel.choose(kernel, store)
    assert target.read_text() == "root's\n"
