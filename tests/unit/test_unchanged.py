"""Files that grow, shrink or are replaced while we read them: a copy has exactly the bytes that were announced."""

from __future__ import annotations

import filecmp
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.artefact.audit import given
from quickstart.artefact.audit.given import _look_at
from quickstart.artefact.manifest import read_manifest
from quickstart.engines import boot as pipeline
from quickstart.errors import BadInputError, HostLacksError
from quickstart.host import door, unchanged
from quickstart.host.holes import data_size
from quickstart.host.unchanged import copy_exactly, digest_of, digest_of_data, exactly, seen
from quickstart.image import ext4
from quickstart.inspect.foreign.pump import pumped
from quickstart.launch import jail
from quickstart.launch.accel import tcg
from quickstart.launch.archive import join_initrd
from quickstart.launch.qemu import QemuGuest
from quickstart.model.machine import by_firmware, machine
from quickstart.model.words import Firmware
from quickstart.pack import packing
from quickstart.store import treehash
from quickstart.store.treehash import tree_hash
from tests.unit.outs import SUPERBLOCK, write_manifest

SAID = "changed while it was read"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3000)
    return path


@pytest.mark.parametrize("size_bytes", [0, 2999, 3001, 9000])
def test_a_copy_has_the_size_that_was_said(file: Path, size_bytes: int) -> None:
    copy = io.BytesIO()
    with file.open("rb") as source, pytest.raises(BadInputError, match=SAID):
        copy_exactly(source.fileno(), copy, file, size_bytes)
    assert len(copy.getvalue()) <= size_bytes


def test_a_file_that_grows_for_ever_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written to after each piece of it that was read."""
    monkeypatch.setattr(unchanged, "_CHUNK_BYTES", 1000)
    taken = 0
    with file.open("rb") as source, pytest.raises(BadInputError, match=SAID):
        for piece in exactly(source.fileno(), 3000, file):
            taken += len(piece)
            with file.open("ab") as more:
                more.write(b"y" * 5000)
    assert taken == 3000


@pytest.mark.parametrize("digest_of", [digest_of, digest_of_data])
def test_a_file_that_is_written_to_while_it_is_hashed(
    file: Path, monkeypatch: pytest.MonkeyPatch, digest_of: Callable[[int, Path], str]
) -> None:
    real = os.pread

    def read(fd: int, count: int, offset: int) -> bytes:
        found = real(fd, count, offset)
        # In place: its size is the same.
        with file.open("r+b") as other:
            other.write(b"z")
        os.utime(file, (1, 1))
        return found

    with file.open("rb") as source:
        before = digest_of(source.fileno(), file)
        monkeypatch.setattr(os, "pread", read)
        with pytest.raises(BadInputError, match=SAID):
            digest_of(source.fileno(), file)
        monkeypatch.undo()
        assert digest_of(source.fileno(), file) != before


def test_a_hole_counts_as_zeros_and_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a stranger's disk says any size."""

    def digest(name: str, size_bytes: int, *pieces: tuple[int, bytes]) -> str:
        with (tmp_path / name).open("w+b") as file:
            file.truncate(size_bytes)
            for offset, data in pieces:
                file.seek(offset)
                file.write(data)
            file.flush()
            return digest_of_data(file.fileno(), tmp_path / name)

    mib = 1 << 20
    same = digest("holes", 4 * mib, (mib, b"x")), digest("zeros", 4 * mib, (0, bytes(4 * mib)), (mib, b"x"))
    others = [
        digest("longer", 5 * mib, (mib, b"x")),
        digest("elsewhere", 4 * mib, (2 * mib, b"x")),
        digest("other", 4 * mib, (mib, b"y")),
        digest("empty", 4 * mib),
    ]
    assert same[0] == same[1]
    assert len({*same, *others}) == 5
    reads: list[int] = []
    real = os.pread

    def read(fd: int, count: int, offset: int) -> bytes:
        reads.append(offset)
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", read)
    digest("huge", 1 << 40, (1 << 39, b"x"))
    assert reads == [1 << 39]


def test_another_file_of_that_name(file: Path) -> None:
    before = seen(file)
    with unchanged.unchanged(file, before):
        pass
    with pytest.raises(BadInputError, match=SAID), unchanged.unchanged(file, before):
        data = file.read_bytes()
        file.rename(file.with_name("old"))
        file.write_bytes(data)
        os.utime(file, ns=(1, before.mtime_ns))
    file.unlink()
    with pytest.raises(BadInputError, match=SAID):
        unchanged.check_unchanged(file, before)


def test_what_goes_through_the_pump_is_what_was_hashed(file: Path) -> None:
    with file.open("rb") as source:
        digest = digest_of(source.fileno(), file)
        with pumped(source.fileno(), file, digest) as reading, os.fdopen(os.dup(reading), "rb") as end:
            assert end.read() == b"x" * 3000
        file.write_bytes(b"y" * 3000)
        with pytest.raises(BadInputError, match=SAID), pumped(source.fileno(), file, digest) as reading:
            assert os.read(reading, 3000) == b"y" * 3000


def test_a_pump_that_nobody_empties_ends(tmp_path: Path) -> None:
    """Its pipe is full long before."""
    large = tmp_path / "large"
    large.write_bytes(bytes(1 << 20))
    with large.open("rb") as source:
        digest = digest_of(source.fileno(), large)
        with pumped(source.fileno(), large, digest):
            pass
        with pytest.raises(InterruptedError), pumped(source.fileno(), large, digest):
            raise InterruptedError


def test_the_initramfs_is_as_long_as_the_manifest_says(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "joined"
    join_initrd((file,), b"cpio", target, {file: 3000})
    assert target.stat().st_size == 3072 + 512
    with file.open("ab") as more:
        more.write(b"more")
    with pytest.raises(BadInputError, match=SAID):
        join_initrd((file,), b"cpio", target, {file: 3000})


def test_holes_of_an_out_take_no_room_and_stay_where_they_are(tmp_path: Path) -> None:
    """A kernel and an initramfs of a stranger: kilobytes on his disk, gigabytes of zeros."""
    (tmp_path / "place").mkdir()
    kernel, initramfs, mib = tmp_path / "vmlinuz", tmp_path / "initramfs.img", 1 << 20
    for path, size_bytes in ((kernel, 200 * mib), (initramfs, 1 << 30)):
        with path.open("wb") as file:
            file.write(b"begin")
            file.seek(100 * mib + 1)
            file.write(b"middle")
            file.truncate(size_bytes)
    joined = tmp_path / "joined"
    join_initrd((initramfs, initramfs), b"cpio", joined, {initramfs: 1 << 30})
    with jail.made_jail(tmp_path / "place") as cell:
        copy = cell.directory / jail.put_kernel(cell, kernel, 200 * mib)
        assert copy.stat().st_size == 200 * mib
        assert filecmp.cmp(copy, kernel, shallow=False)
        assert copy.stat().st_blocks * 512 < 2 * mib
    assert joined.stat().st_size == (2 << 30) + 512
    assert joined.stat().st_blocks * 512 < 4 * mib
    with joined.open("rb") as file:
        for begin in (0, 1 << 30):
            for offset, data in ((0, b"begin\0"), (100 * mib, b"\0middle\0")):
                file.seek(begin + offset)
                assert file.read(len(data)) == data
        file.seek(2 << 30)
        assert file.read().rstrip(b"\0") == b"cpio"


def test_a_copy_of_a_file_that_is_written_to(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread

    def read(fd: int, count: int, offset: int) -> bytes:
        with file.open("ab") as more:
            more.write(b"y" * 100)
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", read)
    copy = tmp_path / "copy"
    with file.open("rb") as source, copy.open("xb") as target, pytest.raises(BadInputError, match=SAID):
        copy_exactly(source.fileno(), target, file, 3000)
    assert copy.read_bytes() == b"x" * 3000


def test_an_audit_hashes_no_file_of_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of run.sh is free, and its holes may be terabytes."""

    def digest(source: int, path: Path) -> str:
        raise AssertionError(path)

    write_manifest(tmp_path)
    os.truncate(tmp_path / "vmlinuz", 1 << 40)
    monkeypatch.setattr(given, "digest_of", digest)
    assert _look_at(tmp_path / "vmlinuz", read_manifest(tmp_path)).sha256 == ""


def test_a_machine_takes_what_the_manifest_said(tmp_path: Path) -> None:
    out, place = tmp_path / "out", tmp_path / "place"
    out.mkdir()
    place.mkdir()
    write_manifest(out)
    described = pipeline.machine_of(artefacts.load(out), stock=False, snapshot=True, port=None)
    with jail.made_jail(place) as cell:
        kernel, initrd = QemuGuest(described, tcg("in a test"), b"", keep=None)._copied(cell)
        assert (cell.directory / kernel).read_bytes() == (out / "vmlinuz").read_bytes()
        assert (cell.directory / initrd).read_bytes().rstrip(b"\0") == (out / "initramfs.img").read_bytes()


@pytest.mark.parametrize("firmware", [None, *Firmware])
def test_a_machine_has_no_more_memory_than_the_host(tmp_path: Path, firmware: Firmware | None) -> None:
    """A stranger's manifest says how much it has. The guest could use all of it."""
    plain = machine(
        "huge",
        disk=None,
        kernel=tmp_path / "vmlinuz",
        initrds=(),
        cmdline="",
        memory_mib=1 << 24,
        mac="52:54:00:71:73:01",
    )
    asked = by_firmware(plain, firmware) if firmware else plain
    with jail.made_jail(tmp_path) as cell, pytest.raises(HostLacksError, match="16777216 MiB of memory"):
        QemuGuest(asked, tcg("in a test"), b"", keep=None)._copied(cell)


@pytest.mark.parametrize("name", ["vmlinuz", "initramfs.img"])
@pytest.mark.parametrize("size_bytes", [3, 300])
def test_a_machine_takes_only_what_the_manifest_said(tmp_path: Path, name: str, size_bytes: int) -> None:
    """A file of OUT that got another size after OUT was read, and before the launch took its copy."""
    out, place = tmp_path / "out", tmp_path / "place"
    out.mkdir()
    place.mkdir()
    write_manifest(out)
    artefact = artefacts.load(out)
    described = pipeline.machine_of(artefact, stock=False, snapshot=True, port=None)
    os.truncate(out / name, size_bytes)
    with jail.made_jail(place) as cell, pytest.raises(BadInputError, match=SAID):
        QemuGuest(described, tcg("in a test"), b"", keep=None)._copied(cell)


def test_an_audit_of_a_file_that_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(tmp_path)
    kernel, real = tmp_path / "vmlinuz", os.pread

    def read(fd: int, count: int, offset: int) -> bytes:
        with kernel.open("ab") as more:
            more.write(b"y")
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(BadInputError, match=SAID):
        _look_at(kernel, read_manifest(tmp_path))


def test_a_tree_that_is_written_to_while_it_is_hashed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def read(fd: int, count: int, offset: int) -> bytes:
        with file.open("ab") as more:
            more.write(b"y")
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(OSError, match=SAID):
        tree_hash(file.parent)


def test_a_file_that_became_a_pipe(file: Path) -> None:
    """Nobody waits for its other end."""
    before = file.lstat()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match=SAID):
        treehash._content(os.fsencode(file), before)


def test_the_hash_of_a_copy_is_without_sockets(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("a")
    whole, copied = tree_hash(tree), tree_hash(tree, as_copied_s=1)
    assert whole == copied
    os.mknod(tree / "socket", stat.S_IFSOCK | 0o600)
    assert tree_hash(tree) != whole
    assert tree_hash(tree, as_copied_s=1) == copied


# ---------------------------------------------------------------- what makes a disk is in the keys


def test_the_disks_are_of_the_mke2fs_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"recipe": "r", "mke2fs": "mke2fs 9.9", "mke2fs.conf": "c"}
    monkeypatch.setattr(pipeline, "disk_recipe", lambda: recipe)
    monkeypatch.setattr(packing, "disk_recipe", lambda: recipe)

    image = SimpleNamespace(image_hash="x", volume_uuid="x", volume_label="x", disk_mib=1)
    disk = SimpleNamespace(superblock=SUPERBLOCK, size_bytes=1)
    packed = SimpleNamespace(reference=image, disk=disk)
    foreseen = SimpleNamespace(arranged=((), (), ()))
    assert recipe.items() <= pipeline._disk_inputs(image, image).items()  # type: ignore[arg-type]
    assert recipe.items() <= packing.arranged_inputs(packed, foreseen).items()  # type: ignore[arg-type]


def test_the_recipe_of_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = [b"mke2fs 1.47.0", b"mke2fs 1.47.2"]

    class Done:
        def __init__(self) -> None:
            self.stderr = said.pop(0)

    monkeypatch.setattr(door, "run", lambda argv, timeout_s: Done())
    settings = tmp_path / "mke2fs.conf"
    monkeypatch.setattr(ext4, "_SETTINGS", settings)
    monkeypatch.setattr(ext4, "source_digest", lambda *packages: " ".join(packages))
    made = ext4.disk_recipe.__wrapped__
    first = made()
    assert first["recipe"] == "quickstart.image"
    assert first["mke2fs"] == "mke2fs 1.47.0"
    settings.write_text("[defaults]\n")
    second = made()
    assert all(first[name] != second[name] for name in ("mke2fs", "mke2fs.conf"))


def test_the_data_of_a_file_with_holes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"x" * 4096)
        file.seek(1 << 20)
        file.write(b"y" * 8192)
        file.truncate(1 << 30)
    with path.open("rb") as file:
        assert data_size(file.fileno(), 1 << 30) == 12288
        assert data_size(file.fileno(), 2048) == 2048
        assert data_size(file.fileno(), (1 << 20) + 4096) == 8192
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert data_size(file.fileno(), 0) == 0
