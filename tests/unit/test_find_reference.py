"""Finds the reference image in the store from which an artefact was built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quickstart.cli.shells.reference import find_tree
from quickstart.errors import BadInputError, HostLacksError
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import reference_inputs
from quickstart.reference.rootfs import Rootfs, rootfs_inputs
from quickstart.store.store import Store


def make_entry(root: Path, image_hash: str, **inputs: str) -> Path:
    def make(directory: Path) -> None:
        (directory / "root").mkdir()
        (directory / "image.json").write_text(json.dumps({"image_hash": image_hash}))

    with Store(root) as store:
        return store.get_or_make("reference", {"image": image_hash, **inputs}, make).path


def test_by_its_hash_and_held_until_the_store_is_closed(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name) for name in ("one", "two")]
    with Store(tmp_path) as store:
        assert find_tree(store, "two") == entries[1] / "root"
        kept = {each.path: each for each in Store(tmp_path).entries()}
        assert not Store(tmp_path).remove(kept[entries[1]])
    assert Store(tmp_path).remove(kept[entries[1]])


def test_one_that_the_store_has_no_more(tmp_path: Path) -> None:
    make_entry(tmp_path, "one")
    with Store(tmp_path) as store, pytest.raises(BadInputError, match="no reference image two"):
        find_tree(store, "two")


@pytest.mark.parametrize("mode", [0o777, 0o1775, 0o000])
def test_the_mode_of_a_given_top_directory_is_the_giver_s(tmp_path: Path, mode: int) -> None:
    """As a tar archive has it; nobody else reaches it through the stage's directory."""

    def make(directory: Path) -> None:
        (directory / "root").mkdir()
        (directory / "image.json").write_text(json.dumps({"image_hash": "given"}))
        (directory / "root").chmod(mode)

    inputs = {"kind": "tar"}
    for made in (True, False):
        with Store(tmp_path) as store:
            assert store.get_or_make("reference", inputs, make).made == made
            assert store.find("reference", inputs)
    own = make_entry(tmp_path, "own")
    with Store(tmp_path) as store:
        assert find_tree(store, "own") == own / "root"
        with pytest.raises(BadInputError, match="is a root that was given"):
            find_tree(store, "given")


def test_where_others_reach_it_it_is_judged(tmp_path: Path) -> None:
    inputs = {"image": "one"}
    (make_entry(tmp_path, "one") / "root").chmod(0o777)
    (tmp_path / "reference").chmod(0o755)
    with Store(tmp_path) as store, pytest.raises(HostLacksError, match="root can be written by others"):
        store.find("reference", inputs)


def test_an_entry_that_is_not_trusted_hides_no_other(tmp_path: Path) -> None:
    make_entry(tmp_path, "bad").chmod(0o777)
    good, notes = make_entry(tmp_path, "good"), list[str]()
    with Store(tmp_path, notes.append) as store:
        assert find_tree(store, "good") == good / "root"
        notes.clear()
        assert [path for path, _ in store.marks("reference")] == [good]
    assert len(notes) == 1
    assert "can be written by others" in notes[0]


def test_a_damaged_one_stays_as_it_is(tmp_path: Path) -> None:
    path = make_entry(tmp_path, "one")
    (path / "root/added").write_text("")
    with Store(tmp_path) as store, pytest.raises(BadInputError, match="is damaged"):
        find_tree(store, "one")
    assert (path / "root/added").exists()
    assert [each.path for each in Store(tmp_path).entries()] == [path]


def test_what_else_lies_there_is_passed_by(tmp_path: Path) -> None:
    """Entries that are made or removed now, of another version, damaged, or of the same image by another recipe."""
    path = make_entry(tmp_path, "two")
    for number, document in enumerate(("", "[]", "{}", '{"image_hash": "one"}')):
        odd = make_entry(tmp_path, f"odd {number}")
        (odd / "image.json").write_text(document)
    (make_entry(tmp_path, "odd 5") / "image.json").unlink()
    (make_entry(tmp_path, "odd 6") / "entry.json").write_text("?")
    shutil.copytree(path, path.with_name(f"{path.name}.partial"))
    with Store(tmp_path) as store:
        assert find_tree(store, "two") == path / "root"
        with pytest.raises(BadInputError, match="is damaged"):
            find_tree(store, "one")
        with pytest.raises(BadInputError, match="no reference image odd 5"):
            find_tree(store, "odd 5")


@pytest.mark.parametrize("kind", ["directory", "tar", "disk"])
def test_no_program_of_a_root_that_was_given_runs_here(tmp_path: Path, kind: str) -> None:
    """An OUT says by its manifest which image it wants, and root's shell there would be the giver's program."""
    make_entry(tmp_path, "one", kind=kind)
    with Store(tmp_path) as store, pytest.raises(BadInputError, match=f"was given .{kind}.") as caught:
        find_tree(store, "one")
    assert "--at guest" in str(caught.value.hint)
    own = make_entry(tmp_path, "one")
    with Store(tmp_path) as store:
        assert find_tree(store, "one") == own / "root"


def test_which_roots_say_that_they_were_given() -> None:
    """What of our own making depends on has no such key; else nobody could have a shell in it."""
    assert "kind" not in reference_inputs(load_profile("nginx"))
    assert rootfs_inputs(Rootfs(Path("root.tar"), "tar", "0"))["kind"] == "tar"
