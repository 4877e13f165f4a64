"""What `rebuild` believes: an artefact is up to date only if we have made it ourselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.artefact.useddisk import UsedDisk
from quickstart.engines import made
from quickstart.engines import rebuild as rebuilding
from quickstart.engines.boot import Built
from quickstart.host import door
from quickstart.host.progress import Quiet
from quickstart.host.unchanged import seen
from quickstart.model import Profile
from quickstart.model.words import KernelOptions
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.unit.outs import SUPERBLOCK, change, write_manifest

PROFILE = load_profile("nginx")


class Bench:
    """An OUT whose rebuild makes everything but guests and archives: ``packed`` counts them."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.out, self.packed = place, place / "out", 0
        self.out.mkdir()
        (self.out / "start-set.json").write_text("{}")
        write_manifest(self.out, profile="nginx")
        (self.out / "root.raw").chmod(0o600)
        used = UsedDisk(
            path=self.out / "root.raw",
            digest="digest",
            superblock=SUPERBLOCK,
            seen=seen(self.out / "root.raw"),
        )
        self.key = rebuilding._key(PROFILE, used, KernelOptions.STOCK)
        monkeypatch.setattr(rebuilding, "examine_disk", lambda disk: used)
        monkeypatch.setattr(rebuilding, "read_superblock", lambda disk: SUPERBLOCK)
        monkeypatch.setattr(door, "need_root", lambda what: None)
        monkeypatch.setattr(door, "need_tools", lambda *names: None)
        monkeypatch.setattr(rebuilding, "_packing", lambda *_: None)
        monkeypatch.setattr(made, "pack", lambda packing, path: self.pack(path))
        monkeypatch.setattr(rebuilding, "made_of", lambda packed, **facts: SimpleNamespace(**facts))
        monkeypatch.setattr(artefacts, "write", self.write)

    def pack(self, path: Path) -> None:
        self.packed += 1
        path.write_text("ours")

    def write(self, directory: Path, facts: Any) -> None:
        for name in ("vmlinuz", "initrd.img", "run.sh", "start-set.json"):
            (directory / name).write_text("ours")
        write_manifest(directory, profile="nginx", build_key=facts.build_key)

    def rebuild(self, profile: Profile = PROFILE) -> Built:
        with Store(self.place / "store") as store:
            return rebuilding.rebuild(self.out, profile, Context(store, Quiet()))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_what_we_have_rebuilt_is_up_to_date(bench: Bench) -> None:
    assert bench.rebuild().made
    assert not bench.rebuild().made
    (bench.out / "run.sh").write_text("as one likes")
    assert not bench.rebuild().made
    assert bench.packed == 1


def test_a_key_that_somebody_else_has_computed_is_not_believed(bench: Bench) -> None:
    change(bench.out, lambda manifest: manifest.update(build_key=bench.key))
    assert bench.rebuild().made
    assert (bench.out / "initramfs.img").read_text() == "ours"


def other_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, other_byte) for name in ("initramfs.img", "vmlinuz", "initrd.img", "start-set.json")),
        ("start-set.json", Path.unlink),
    ],
)
def test_what_was_changed_since_is_made_again(
    bench: Bench, name: str, damage: Callable[[Path], None]
) -> None:
    bench.rebuild()
    damage(bench.out / name)
    assert bench.rebuild().made
    assert (bench.out / "initramfs.img").read_text() == "ours"


def test_another_command_line_is_made_again(bench: Bench) -> None:
    bench.rebuild()
    change(bench.out, lambda manifest: manifest.update(mac="52:54:00:00:00:09"))
    assert bench.rebuild().made


def test_a_lost_or_damaged_record_is_none(bench: Bench) -> None:
    bench.rebuild()
    (record,) = (bench.place / "store/made").glob("*/entry.json")
    (record.parent / "more").touch()
    assert bench.rebuild().made
    assert not bench.rebuild().made


class Noted(Quiet):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_build_notes_what_this_store_has_not_made(bench: Bench) -> None:
    bench.rebuild()
    with Store(bench.place / "store") as store:
        noted = Noted()
        assert made.up_to_date(bench.out, bench.key, False, Context(store, noted))
        assert made.up_to_date(bench.out, "other", True, Context(store, noted)) is None
        assert noted.notes == []
    with Store(bench.place / "other") as store:
        assert made.up_to_date(bench.out, bench.key, False, Context(store, noted))
    (note,) = noted.notes
    assert "--force makes it anew" in note
