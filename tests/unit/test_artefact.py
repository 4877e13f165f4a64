"""OUT on disk is read back and checked. It is never half written, and a used one is never thrown away."""

from __future__ import annotations

import dataclasses
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quickstart.artefact.directory import check_output, keep_disk, load
from quickstart.errors import ArtefactError, BadInputError, OutputExistsError
from quickstart.host.files import copy_as_open
from quickstart.image.ext4 import parse_superblock
from tests.unit.outs import BUILD_KEY, change, write_manifest

DISK_BYTES = 4096


def superblock(mounts: int = 0) -> bytes:
    block = bytearray(1024)
    struct.pack_into("<HHHH", block, 0x34, mounts, 0, 0xEF53, 1)
    return bytes(block)


def write_disk(out: Path, mounts: int = 0) -> None:
    (out / "root.raw").write_bytes((bytes(1024) + superblock(mounts)).ljust(DISK_BYTES, b"\0"))


def qcow2(*changes: tuple[int, str, int], extensions: bytes = b"", version: int = 3) -> bytes:
    """A header of 64 KiB clusters, with ``changes`` (place, format, value) and behind it ``extensions``."""
    header = bytearray(104 if version == 3 else 72)
    struct.pack_into(">4sIQIIQ", header, 0, b"QFI\xfb", version, 0, 0, 16, DISK_BYTES)
    if version == 3:
        struct.pack_into(">II", header, 96, 4, 104)
    for at, form, value in changes:
        struct.pack_into(form, header, at, value)
    return bytes(header) + extensions + bytes(8)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    write_disk(out)
    write_manifest(out, superblock=dataclasses.asdict(parse_superblock(superblock(), "")))
    (out / "start-set.json").write_text("{}")
    return out


def test_load(out: Path) -> None:
    artefact = load(out)
    assert (artefact.profile_name, artefact.build_key, artefact.disk) == ("app", BUILD_KEY, out / "root.raw")
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
        lambda manifest: manifest.update(early="perhaps"),
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


@pytest.mark.parametrize("force", [False, True])
def test_a_link_that_leads_nowhere(tmp_path: Path, force: bool) -> None:
    """No directory can be renamed to it: that was a traceback, once all was built."""
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(OutputExistsError, match="leads nowhere"):
        check_output(tmp_path / "out", "key", force)


def test_what_would_be_built_is_there(out: Path) -> None:
    found = check_output(out, BUILD_KEY, force=False)
    assert found is not None
    assert found.build_key == BUILD_KEY


def test_what_would_be_built_is_there_and_was_used(out: Path) -> None:
    write_disk(out, mounts=1)
    assert check_output(out, BUILD_KEY, force=False) is not None


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
    (out / "root.qcow2").write_bytes(qcow2())
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
    assert check_output(out, BUILD_KEY, False) is not None
    if name == "start-set.json":
        (out / name).unlink()
    else:
        (out / name).write_text("x" * len(name))
    with pytest.raises(OutputExistsError, match=rf"is damaged: .*{name}"):
        check_output(out, BUILD_KEY, False)
    assert check_output(out, BUILD_KEY, True) is None


def test_a_damaged_artefact_is_replaced_by_force(out: Path) -> None:
    (out / "manifest.json").write_text("{")
    with pytest.raises(OutputExistsError, match="is damaged"):
        check_output(out, BUILD_KEY, False)
    assert check_output(out, BUILD_KEY, True) is None


def test_what_somebody_put_into_out_is_not_removed(out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputExistsError, match=r"holds more than an artefact: notes\.txt"):
            check_output(out, BUILD_KEY, force)


def test_what_somebody_put_into_out_begins_no_line(out: Path) -> None:
    for number in range(100):
        (out / f"{number}\n  run `x`").touch()
    with pytest.raises(OutputExistsError) as caught:
        check_output(out, BUILD_KEY, force=True)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 1000


# ---------------------------------------------------------------- links, pipes, devices


def as_link(path: Path) -> None:
    path.rename(path.parent.parent / "victim")
    path.symlink_to(path.parent.parent / "victim")


def as_link_to_zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize("name", ["manifest.json", "vmlinuz", "initrd.img", "initramfs.img", "root.raw"])
@pytest.mark.parametrize("turn", [as_link, as_link_to_zeros, as_pipe, as_directory])
def test_a_file_that_is_not_a_plain_one_is_refused(
    out: Path, name: str, turn: Callable[[Path], None]
) -> None:
    turn(out / name)
    with pytest.raises(BadInputError, match=rf"{name} is (a symbolic link|a pipe|a directory)") as caught:
        load(out)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    with pytest.raises(OutputExistsError):
        check_output(out, BUILD_KEY, force=False)


def test_out_itself_may_be_a_link(out: Path, tmp_path: Path) -> None:
    (tmp_path / "web").symlink_to(out)
    assert load(tmp_path / "web").disk == tmp_path / "web/root.raw"


def test_a_start_set_that_is_a_pipe_is_not_up_to_date(out: Path) -> None:
    as_pipe(out / "start-set.json")
    with pytest.raises(OutputExistsError, match="a pipe"):
        check_output(out, BUILD_KEY, force=False)


def test_the_disk_that_goes_on_is_never_what_a_link_leads_to(out: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    as_link(out / "root.raw")
    with pytest.raises(BadInputError, match="a symbolic link"):
        keep_disk(out / "root.raw", tmp_path / "new")
    assert (tmp_path / "victim").stat().st_nlink == 1


# ---------------------------------------------------------------- qcow2


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)


@pytest.mark.parametrize(
    ("disk", "said"),
    [
        (qcow2((8, ">Q", 104)), "rests on another file"),
        (qcow2((16, ">I", 9)), "rests on another file"),
        (qcow2((72, ">Q", 4)), "rests on another file"),
        (qcow2((32, ">I", 1)), "is encrypted"),
        (qcow2((0, ">I", 0)), "no qcow2"),
        (qcow2((4, ">I", 1)), "no qcow2"),
        (qcow2((20, ">I", 30)), "no qcow2"),
        (qcow2((24, ">Q", 512)), "missing or cut"),
        (qcow2((100, ">I", 1 << 31)), "header is damaged"),
        (b"", "no qcow2"),
        (qcow2()[:100], "no qcow2"),
        (qcow2(extensions=extension(0xE2792ACA, b"raw")), "format of a backing file"),
        (qcow2(extensions=extension(0x44415441, b"/etc/shadow")), "external data file"),
        (qcow2(extensions=extension(0x0537BE77, bytes(16))), "is encrypted"),
        (
            qcow2(extensions=extension(0x6803F857, bytes(48)) + extension(0x44415441, b"x")),
            "external data file",
        ),
        (qcow2(version=2), "no qcow2"),
        (qcow2((20, ">I", 12)), "no qcow2"),
        # Each is memory for QEMU: 512 MiB for one bitmap of a file of 0.5 MB.
        (qcow2(extensions=extension(0x23852875, bytes(24))), "dirty bitmaps"),
        (qcow2(extensions=extension(0x11223344, b"")), "never writes .0x11223344"),
        (qcow2((60, ">I", 1)), "has snapshots"),
        (qcow2((64, ">Q", 1 << 16)), "has snapshots"),
        # Dirty, corrupt, a way of compression, subclusters, one that there is not; lazy counts; bitmaps.
        *((qcow2((72, ">Q", bit)), "features that build does not use") for bit in (1, 2, 8, 16, 1 << 40)),
        (qcow2((80, ">Q", 1)), "features that build does not use"),
        (qcow2((88, ">Q", 1)), "dirty bitmaps"),
        (qcow2((88, ">Q", 2)), "features that build does not use"),
        (qcow2((96, ">I", 6)), "features that build does not use"),
        (qcow2((100, ">I", 112), extensions=b"\1" + bytes(7)), "way of compression"),
        (qcow2((100, ">I", 120), extensions=bytes(16)), "header is damaged"),
    ],
)
def test_a_qcow2_that_build_never_makes(out: Path, disk: bytes, said: str) -> None:
    entry = {"name": "root.qcow2", "format": "qcow2", "size_bytes": DISK_BYTES}
    change(out, lambda manifest: manifest.update(disk=entry))
    (out / "root.qcow2").write_bytes(qcow2(extensions=extension(0x6803F857, bytes(48))))
    assert load(out).disk_format == "qcow2"
    (out / "root.qcow2").write_bytes(disk)
    with pytest.raises(ArtefactError, match=said):
        load(out)


def test_a_raw_disk_that_looks_like_a_qcow2_is_raw(out: Path) -> None:
    """Its guest may have written that. QEMU is told the format."""
    (out / "root.raw").write_bytes(qcow2((8, ">Q", 104)).ljust(DISK_BYTES, b"\0"))
    assert load(out).disk_format == "raw"


@pytest.mark.parametrize(
    ("mode", "above", "wanted"),
    [
        (0o644, 0o755, 0o644),
        (0o600, 0o755, 0o600),
        (0o640, 0o755, 0o600),
        (0o444, 0o755, 0o644),
        (0o644, 0o700, 0o600),
    ],
)
def test_an_initramfs_that_the_image_has_closed_stays_closed(
    tmp_path: Path, mode: int, above: int, wanted: int
) -> None:
    """An administrator who puts keys into it sets UMASK=0077 (initramfs.conf(5)), and OUT is open to all."""
    root = tmp_path / "root"
    source, target = root / "boot/initrd", tmp_path / "initrd.img"
    source.parent.mkdir(parents=True)
    root.chmod(0o755)
    source.write_bytes(b"key")
    source.chmod(mode)
    source.parent.chmod(above)
    copy_as_open(source, target, root)
    assert target.read_bytes() == b"key"
    assert stat.S_IMODE(target.stat().st_mode) == wanted
