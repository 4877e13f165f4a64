"""OUT on disk: read back and checked, never half made, never thrown away when it has been used."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quickstart.errors import ArtefactError, BadInputError, OutputExistsError
from quickstart.image.artefact import check_output, load
from quickstart.image.ext4 import parse_superblock
from quickstart.model import Readiness

DISK_BYTES = 4096


def superblock(mounts: int = 0) -> bytes:
    block = bytearray(1024)
    struct.pack_into("<HHHH", block, 0x34, mounts, 0, 0xEF53, 1)
    return bytes(block)


def write_disk(out: Path, mounts: int = 0) -> None:
    (out / "root.raw").write_bytes((bytes(1024) + superblock(mounts)).ljust(DISK_BYTES, b"\0"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    write_disk(out)
    for name in ("vmlinuz", "initrd.img", "initramfs.img"):
        (out / name).write_text(name)
    ready = Readiness("http", 80, "/", 200, "", 600)
    manifest: dict[str, Any] = {
        "schema": 1,
        "quickstart": "0",
        "build_key": "key",
        "profile": "app",
        "ready": dataclasses.asdict(ready),
        "cmdline": "ro",
        "memory_mib": 1024,
        "mac": "52:54:00:00:00:01",
        "disk": {"name": "root.raw", "format": "raw", "size_bytes": DISK_BYTES},
        "superblock": dataclasses.asdict(parse_superblock(superblock(), "")),
        "files": {
            n: {"size_bytes": len(n), "sha256": hashlib.sha256(n.encode()).hexdigest()}
            for n in ("vmlinuz", "initrd.img", "initramfs.img")
        },
        "initramfs_bytes": 13,
        "start_set_files": 1,
        "start_set_bytes": 2,
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "start-set.json").write_text("{}")
    return out


def change(out: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    edit(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))


def test_load(out: Path) -> None:
    artefact = load(out)
    assert (artefact.profile_name, artefact.build_key, artefact.disk) == ("app", "key", out / "root.raw")
    assert artefact.ready.port == 80


def test_what_is_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not an artefact"):
        load(tmp_path)
    with pytest.raises(BadInputError, match="is not an artefact"):
        load(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}", "null", "\xff"])
def test_a_damaged_manifest(out: Path, text: str) -> None:
    (out / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtefactError, match=r"manifest\.json is damaged"):
        load(out)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(files={"vmlinuz": {}}),
        lambda manifest: manifest.update(files={"vmlinuz": 5}),
        lambda manifest: manifest.update(disk="root.raw"),
        lambda manifest: manifest["ready"].pop("port"),
        lambda manifest: manifest["superblock"].update(more=1),
        lambda manifest: manifest.pop("mac"),
        lambda manifest: manifest.update(mac="52:54:00:00:00:01,x=y"),
        lambda manifest: manifest.update(memory_mib="1024 -S"),
        lambda manifest: manifest.update(uuid="1 -S"),
        lambda manifest: manifest.update(uuid=5),
        lambda manifest: manifest.update(early="never"),
        lambda manifest: manifest.update(cloud_init="no"),
        lambda manifest: manifest["disk"].update(name="../root.raw"),
        lambda manifest: manifest["disk"].update(format="raw,readonly=off"),
    ],
)
def test_a_manifest_with_a_wrong_field(out: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    change(out, edit)
    with pytest.raises(ArtefactError, match=r"manifest\.json is damaged"):
        load(out)


def test_another_schema(out: Path) -> None:
    change(out, lambda manifest: manifest.update(schema=2))
    with pytest.raises(ArtefactError, match="schema 2"):
        load(out)


@pytest.mark.parametrize("name", ["vmlinuz", "initrd.img", "initramfs.img", "root.raw"])
def test_a_file_that_is_missing_or_cut(out: Path, name: str) -> None:
    (out / name).write_bytes((out / name).read_bytes()[:-1])
    with pytest.raises(ArtefactError, match=f"{name} is missing or cut"):
        load(out)
    (out / name).unlink()
    with pytest.raises(ArtefactError, match=f"{name} is missing"):
        load(out)


def test_a_root_disk_may_have_been_made_larger(out: Path) -> None:
    with (out / "root.raw").open("r+b") as disk:
        disk.truncate(2 * DISK_BYTES)
    assert load(out).disk == out / "root.raw"


def test_how_it_starts_with_cloud_init(out: Path) -> None:
    """An OUT of an earlier quickstart says nothing of it."""
    before = load(out)
    assert (before.cloud_init, before.early, before.uuid) == (False, "always", "")
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    change(out, lambda manifest: manifest.update(cloud_init=True, early="seen", uuid=uuid))
    after = load(out)
    assert (after.cloud_init, after.early, after.uuid) == (True, "seen", uuid)


# ---------------------------------------------------------------- check_output


def test_a_free_place(tmp_path: Path) -> None:
    assert check_output(tmp_path / "none", "key", force=False) is None


def test_what_would_be_built_is_there(out: Path) -> None:
    found = check_output(out, "key", force=False)
    assert found is not None
    assert found.build_key == "key"


def test_what_would_be_built_is_there_and_was_used(out: Path) -> None:
    write_disk(out, mounts=1)
    assert check_output(out, "key", force=False) is not None


def test_another_build_that_was_never_used_may_go(out: Path) -> None:
    assert check_output(out, "other", force=False) is None


def test_another_build_that_was_used_stays(out: Path) -> None:
    write_disk(out, mounts=1)
    with pytest.raises(OutputExistsError, match="may have been used") as caught:
        check_output(out, "other", force=False)
    assert "--force" in (caught.value.hint or "")
    assert check_output(out, "other", force=True) is None


def test_a_rebuilt_one_was_used_before(out: Path) -> None:
    """Its superblock is the manifest's, and its disk a machine's."""
    change(out, lambda manifest: manifest.update(reference={"kind": "disk", "hash": "0"}))
    with pytest.raises(OutputExistsError, match="may have been used"):
        check_output(out, "other", force=False)
    assert check_output(out, "other", force=True) is None


def test_a_qcow2_may_have_been_used(out: Path) -> None:
    change(out, lambda manifest: manifest["disk"].update(name="root.qcow2", format="qcow2"))
    (out / "root.qcow2").write_bytes(struct.pack(">4sI", b"QFI\xfb", 3).ljust(104, b"\0"))
    with pytest.raises(OutputExistsError, match="may have been used"):
        check_output(out, "other", force=False)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_ours_stays(tmp_path: Path, force: bool) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(OutputExistsError, match="is not an artefact"):
            check_output(place, "key", force)


def test_a_directory_that_has_a_manifest_of_its_own(tmp_path: Path) -> None:
    """Browser extensions and web applications have a manifest.json; it is not ours to replace."""
    (tmp_path / "manifest.json").write_text('{"name": "my extension", "schema": 1}')
    (tmp_path / "work.js").write_text("")
    for force in (False, True):
        with pytest.raises(OutputExistsError, match="is not an artefact of quickstart"):
            check_output(tmp_path, "key", force)


@pytest.mark.parametrize("name", ["vmlinuz", "initrd.img", "initramfs.img", "start-set.json"])
def test_what_is_damaged_is_not_up_to_date(out: Path, name: str) -> None:
    assert check_output(out, "key", False) is not None
    if name == "start-set.json":
        (out / name).unlink()
    else:
        (out / name).write_text("x" * len(name))
    with pytest.raises(OutputExistsError, match=rf"is damaged: .*{name}"):
        check_output(out, "key", False)
    assert check_output(out, "key", True) is None


def test_a_damaged_artefact_is_replaced_by_force(out: Path) -> None:
    (out / "manifest.json").write_text("{")
    with pytest.raises(OutputExistsError, match="is damaged"):
        check_output(out, "key", False)
    assert check_output(out, "key", True) is None


def test_what_somebody_put_into_out_is_not_removed(out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputExistsError, match=r"holds more than an artefact: notes\.txt"):
            check_output(out, "key", force)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(8, 104, "rests on another file"), (72, 4, "rests on another file"), (0, 0, "no qcow2")],
)
def test_a_qcow2_that_rests_on_a_file_of_the_host(out: Path, at: int, value: int, said: str) -> None:
    header = bytearray(struct.pack(">4sI", b"QFI\xfb", 3).ljust(104, b"\0"))
    (out / "root.qcow2").write_bytes(header)
    change(out, lambda manifest: manifest.update(disk={"name": "root.qcow2", "format": "qcow2"}))
    assert load(out).disk_format == "qcow2"
    struct.pack_into(">Q", header, at, value)
    (out / "root.qcow2").write_bytes(header)
    with pytest.raises(ArtefactError, match=said):
        load(out)
