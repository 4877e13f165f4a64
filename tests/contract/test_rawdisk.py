"""A stranger's qcow2 is converted in a jail, and is not written larger than it is."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError, BadInputError, HostLacksError
from quickstart.host import door
from quickstart.image.qcow2 import Form
from quickstart.launch import jail, rawdisk
from quickstart.launch.rawdisk import made_raw
from quickstart.model import MIB
from tests.contract.ordinary import is_host_root
from tests.unit.test_qcow2 import CLUSTER, image

LIMIT_S = 60.0
DISK_BYTES = 24 * MIB + 1024


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with path.open("wb") as file:
        file.write(os.urandom(MIB))
        file.seek(7 * MIB)
        file.write(b"text " * MIB)
        file.truncate(DISK_BYTES)
    return path


def converted(raw: Path, *options: str) -> Path:
    disk = raw.with_name("root.qcow2")
    door.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, raw, disk], timeout_s=LIMIT_S)
    disk.chmod(0o600)
    return disk


def test_the_raw_disk_is_the_same(raw: Path, place: Path) -> None:
    made = made_raw(converted(raw), place)
    assert made.read_bytes() == raw.read_bytes()
    status = made.lstat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o600)
    assert status.st_blocks * 512 < 8 * MIB
    assert list((place / "machine").iterdir()) == []


def test_a_disk_that_a_machine_has_written_to(raw: Path, place: Path) -> None:
    """Data in new places, overwritten and discarded ones, zeros with and without a place of their own; and then
    the user has enlarged it.
    """
    disk = converted(raw)
    commands = (
        "write -P 3 4M 1M",
        "write -P 4 0 192k",
        "write -z 7M 64k",
        "write -z -u 8M 1M",
        "discard 9M 2M",
    )
    words = [word for command in commands for word in ("-c", command)]
    door.run(["qemu-io", "-f", "qcow2", "-d", "unmap", *words, disk], timeout_s=LIMIT_S)
    door.run(["qemu-img", "resize", "-f", "qcow2", disk, "1T"], timeout_s=LIMIT_S)
    with raw.open("r+b") as file:
        for at, data in ((4 * MIB, b"\3" * MIB), (0, b"\4" * 192 * 1024), (7 * MIB, bytes(1 << 16))):
            file.seek(at)
            file.write(data)
        file.seek(8 * MIB)
        file.write(bytes(3 * MIB))
    made = made_raw(disk, place)
    assert made.stat().st_size == 1 << 40 and made.stat().st_blocks * 512 < 16 * MIB
    with made.open("rb") as file:
        assert file.read(DISK_BYTES) == raw.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-c",), "has compressed data"),
        (("-o", "extended_l2=on"), "features that build does not use"),
        (("-o", "lazy_refcounts=on"), "features that build does not use"),
        (("-o", "cluster_size=2M"), "clusters of 64 KiB"),
        (("-o", "compat=0.10"), "of version 3"),
    ],
)
def test_what_build_does_not_make(raw: Path, place: Path, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ArtefactError, match=said):
        made_raw(converted(raw, *options), place)


@pytest.mark.parametrize(
    "options",
    [
        ("-c",),
        ("-c", "-o", "compat=0.10"),
        ("-c", "-o", "compression_type=zstd"),
        ("-c", "-o", "cluster_size=512"),
        ("-o", "compat=0.10,cluster_size=2M"),
        ("-o", "lazy_refcounts=on,refcount_bits=64"),
    ],
    ids=" ".join,
)
def test_what_vendors_make_and_users_give(raw: Path, place: Path, options: tuple[str, ...]) -> None:
    """Debian's cloud images are compressed, and Ubuntu's also have version 2."""
    disk = converted(raw, *options)
    made = made_raw(disk, place, Form.GIVEN)
    assert made.read_bytes() == raw.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "extended_l2=on"), "features that build does not use"),
        (("-o", "data_file=other,data_file_raw=on"), "rests on another file"),
        (("-F", "raw", "-b", "source"), "rests on another file"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1],
)
def test_what_users_may_not_give_either(raw: Path, place: Path, options: tuple[str, ...], said: str) -> None:
    disk = raw.with_name("given.qcow2")
    argv: list[str | Path] = ["qemu-img", "create", "-f", "qcow2", *options, disk, "24M"]
    door.run(argv, timeout_s=LIMIT_S, cwd=raw.parent)
    with pytest.raises(BadInputError, match=said) as error:
        made_raw(disk, place, Form.GIVEN)
    assert not isinstance(error.value, ArtefactError) and "qemu-img convert" in str(error.value.hint)


def test_few_compressed_bytes_for_gigabytes(tmp_path: Path, place: Path) -> None:
    """Every entry of every table names the same compressed data."""
    disk = tmp_path / "given.qcow2"
    disk.write_bytes(image([1 << 62 | 3 * CLUSTER] * 8192, size_bytes=6 << 30, first=[2 * CLUSTER | 1 << 63]))
    with pytest.raises(BadInputError, match="more than 1032 times its file"):
        made_raw(disk, place, Form.GIVEN)
    assert list((place / "machine").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [(("snapshot", "-c", "one"), "has snapshots"), (("bitmap", "--add"), "has dirty bitmaps")],
)
def test_what_a_user_may_have_added(raw: Path, place: Path, words: tuple[str, ...], said: str) -> None:
    disk = converted(raw)
    name = () if words[0] == "snapshot" else ("one",)
    door.run(["qemu-img", *words, disk, *name], timeout_s=LIMIT_S)
    with pytest.raises(ArtefactError, match=said):
        made_raw(disk, place)


def test_qemu_img_runs_in_the_jail(raw: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, real = converted(raw), jail.limited

    def limited(words: Sequence[str], file_bytes: int, *, tool: str, memory_bytes: int) -> tuple[str, ...]:
        assert tool == "qemu-img" and file_bytes == DISK_BYTES
        assert f"--as={memory_bytes}" in real(words, file_bytes, tool=tool, memory_bytes=memory_bytes)
        said = (
            "cat /proc/self/status /proc/self/limits; echo heaps $MALLOC_ARENA_MAX; readlink /proc/self/ns/net; "
            "cp disk raw; cat ../../root.qcow2"
        )
        return ("sh", "-c", f"{{ {said}; }} >said 2>&1")

    alone: list[bool] = []
    may_be_alone = rawdisk._may_be_alone
    monkeypatch.setattr(
        rawdisk,
        "_may_be_alone",
        lambda cell: alone.append(may_be_alone(cell)) or alone[0],  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(jail, "limited", limited)
    with pytest.raises(ArtefactError, match="cannot be converted"):
        made_raw(disk, place)
    said = (place / "machine" / "said").read_text()
    facts = dict(re.findall(r"^(\w+):\s+(\w+)", said, re.MULTILINE))
    assert {int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert facts["NoNewPrivs"] == "1"
    # Its threads for a large compressed image would not have room for their stacks and heaps.
    assert re.search(r"^Max stack size +1048576 ", said, re.MULTILINE)
    assert "heaps 1\n" in said
    assert (str(Path("/proc/self/ns/net").readlink()) in said) != alone[0]
    if is_host_root():
        assert (place / "machine").stat().st_uid != 0
        assert "root.qcow2: Permission denied" in said


def test_what_it_may_write_is_limited(raw: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the header of the copy said."""
    monkeypatch.setattr(rawdisk, "virtual_bytes", lambda fd, form: 4 * MIB)
    with pytest.raises(ArtefactError, match="cannot be converted"):
        made_raw(converted(raw), place)
    assert not (place / "root.raw").exists()
    assert all(each.stat().st_size <= 16 * MIB for each in (place / "machine").iterdir())


def test_its_memory_is_limited(raw: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would take it for. With 24 MiB, qemu-img starts, but has no room for its first stack; with 64 MiB,
    a fast host may convert this disk.
    """
    monkeypatch.setattr(rawdisk, "_MEMORY_BYTES", 24 * MIB)
    with pytest.raises(ArtefactError, match="cannot be converted"):
        made_raw(converted(raw), place)


def test_clusters_that_are_many_parts_of_the_disk(tmp_path: Path, place: Path) -> None:
    """390 KB would be 6 GiB: every entry of every table names the same data."""
    disk = tmp_path / "root.qcow2"
    disk.write_bytes(image([3 * CLUSTER] * 8192, size_bytes=6 << 30, first=[2 * CLUSTER] * 12))
    with pytest.raises(ArtefactError, match="two parts of the disk are in one place of the file") as error:
        made_raw(disk, place)
    assert error.value.exit_code == 2
    assert list((place / "machine").iterdir()) == []


def test_data_for_which_there_is_no_room(
    tmp_path: Path, place: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may have a hole where the data are."""
    disk = tmp_path / "root.qcow2"
    disk.write_bytes(image([each * CLUSTER for each in range(3, 3 + 8192)]))
    os.truncate(disk, (3 + 8192) * CLUSTER)
    monkeypatch.setattr(rawdisk, "free_bytes", lambda path: 128 * MIB)
    with pytest.raises(HostLacksError, match="too little space"):
        made_raw(disk, place)
    (place / "second").mkdir()
    monkeypatch.setattr(rawdisk, "free_bytes", lambda path: 100 * MIB)
    made_raw(converted(raw), place / "second")


def test_a_large_compressed_image(tmp_path: Path, place: Path) -> None:
    """qemu-img starts many threads for it. A third of these conversions failed when each had a heap and a stack of its own."""
    half = os.urandom(512 << 10)
    raw = tmp_path / "source"
    with raw.open("wb") as file:
        for number in range(256):
            file.write(half if number % 2 else bytes(each & 0x3F for each in half[: 1 << 14]) * 32)
    made = made_raw(converted(raw, "-c"), place, Form.GIVEN)
    with made.open("rb") as found, raw.open("rb") as wanted:
        assert hashlib.file_digest(found, "sha256").digest() == hashlib.file_digest(wanted, "sha256").digest()


def test_what_qemu_img_refuses(tmp_path: Path, place: Path) -> None:
    disk = tmp_path / "root.qcow2"
    disk.write_bytes(image([7]))
    with pytest.raises(ArtefactError, match=r"root.qcow2 cannot be converted: qemu-img: \S.*"):
        made_raw(disk, place)
