"""Which disks `build --image` takes, and which words of their boot loader it keeps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from quickstart.engines import ownsystem
from quickstart.engines.image import ImageOptions, build_image
from quickstart.engines.ownsystem import examined
from quickstart.errors import BadInputError, GuestError
from quickstart.host.holes import CHUNK_BYTES, copy_range
from quickstart.host.progress import Quiet
from quickstart.host.unchanged import digest_of_data
from quickstart.inspect.disk.facts import disk_facts
from quickstart.inspect.disk.own import check_image_disk, entry_line, kernel_path, own_words
from quickstart.inspect.disk.records import parse_records
from quickstart.inspect.disk.verdict import inspected
from quickstart.model.disk import BootEntry, InitramfsMaker, Inspected, Loader
from quickstart.model.words import Early
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.unit.diskrecords import RECORDS, said

FOUND = inspected(disk_facts(parse_records(said(RECORDS))))
DISK = Path("/images/debian.raw")


def with_line(line: str) -> Inspected:
    assert isinstance(FOUND.entry, BootEntry)
    return dataclasses.replace(FOUND, entry=dataclasses.replace(FOUND.entry, command_line=line))


def test_a_cloud_image_is_taken() -> None:
    check_image_disk(DISK, FOUND)


def with_root(kind: str) -> Inspected:
    partitions = tuple(
        dataclasses.replace(each, kind=kind) if each.number == FOUND.root else each
        for each in FOUND.facts.partitions
    )
    return dataclasses.replace(FOUND, facts=dataclasses.replace(FOUND.facts, partitions=partitions))


def with_btrfs(flags: str, record: bytes = b"@rootfs\n", **changes: Any) -> Inspected:
    """A root in a subvolume, that the default entry names by ``flags``."""
    kind = RECORDS["blkid 1"].replace(b"TYPE=ext4", b"TYPE=btrfs")
    menu = RECORDS["file 1 ./boot/grub/grub.cfg"].replace(b" ro console", f" ro {flags} console".encode())
    records = {**RECORDS, "blkid 1": kind, "file 1 ./boot/grub/grub.cfg": menu}
    if record:
        records["subvolume 1"] = record
    return dataclasses.replace(inspected(disk_facts(parse_records(said(records)))), **changes)


REFUSED = {
    "jfs": (
        with_root("jfs"),
        "the root file system is jfs, and `build --image` knows only ext4, xfs and btrfs",
    ),
    "flags": (
        with_line("root=/dev/vda1 rootflags=noatime"),
        "has rootflags=noatime, with which init boots the stock way",
    ),
    "grub on btrfs": (with_btrfs("rootflags=subvol=@rootfs"), "GRUB cannot write to btrfs"),
    "another subvolume": (
        with_btrfs("rootflags=subvol=/@other"),
        "in the subvolume @rootfs, and the command line of the default entry names the subvolume @other",
    ),
    "the last subvolume": (
        with_btrfs("rootflags=subvol=@rootfs,subvol=@b"),
        "in the subvolume @rootfs, and the command line of the default entry names the subvolume @b",
    ),
    "no flags": (
        with_btrfs(""),
        "in the subvolume @rootfs, and the command line of the default entry names no subvolume",
    ),
    "two flags": (
        with_btrfs("rootflags=subvol=@rootfs rootflags=ro"),
        "has rootflags=subvol=@rootfs rootflags=ro, with",
    ),
    "no such subvolume": (
        with_btrfs("rootflags=subvol=@", b""),
        "in no subvolume, and the command line of the default entry names the subvolume @",
    ),
    "boot": (dataclasses.replace(FOUND, boot=15), "the file system of /boot is vfat"),
    "menu": (dataclasses.replace(FOUND, boot=14), "GRUB's menu is not in the partition of /boot"),
    "loader": (dataclasses.replace(FOUND, loaders=(Loader.UKI,)), "the boot loader is uki, and"),
    "loaders": (
        dataclasses.replace(FOUND, loaders=(Loader.GRUB_BIOS, Loader.SYSTEMD_BOOT)),
        "the boot loader is grub-bios and systemd-boot, and",
    ),
    "machine-id": (with_line("root=/dev/vda1 systemd.machine_id=1"), "has systemd.machine_id="),
    "maker": (
        dataclasses.replace(FOUND, initramfs_maker=InitramfsMaker.NONE),
        "neither initramfs-tools nor dracut makes the initramfs",
    ),
    "dracut": (with_line("root=/dev/vda1 rd.luks=0"), "has rd.luks=0, with which"),
    "quotes": (with_line('root=/dev/vda1 dyndbg="file x +p"'), "special characters: dyndbg="),
    "code": (with_line("root=/dev/vda1 a;reboot"), "special characters: a;reboot"),
    "stranger": (dataclasses.replace(FOUND, refusals=("the disk is odd",)), "the disk is odd"),
}


@pytest.mark.parametrize(
    "flags", ["rootflags=subvol=@rootfs", "rootflags=compress=zstd,subvol=/@rootfs,noatime"]
)
def test_a_subvolume_with_systemd_boot(flags: str) -> None:
    """Its menu is on the EFI system partition."""
    check_image_disk(DISK, with_btrfs(flags, loaders=(Loader.SYSTEMD_BOOT,)))


def test_an_option_of_xfs() -> None:
    line = with_line("root=/dev/vda1 rootflags=prjquota")
    partitions = with_root("xfs").facts.partitions
    check_image_disk(
        DISK, dataclasses.replace(line, facts=dataclasses.replace(line.facts, partitions=partitions))
    )


@pytest.mark.parametrize("name", [b"", b"..\n", b"@rootfs/../x\n", b"@home\n", b"@rootfs\n\n"])
def test_a_subvolume_that_no_appliance_says(name: bytes) -> None:
    records = {**RECORDS, "subvolume 1": name}
    with pytest.raises(GuestError, match="names no known subvolume"):
        disk_facts(parse_records(said(records)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    found, said_of_it = REFUSED[name]
    with pytest.raises(BadInputError) as caught:
        check_image_disk(DISK, found)
    assert any(said_of_it in line for line in caught.value.details)


def test_the_kernel_of_a_separate_boot() -> None:
    """GRUB's paths begin at the root of the partition."""
    entry = FOUND.entry
    assert isinstance(entry, BootEntry)
    assert kernel_path(FOUND) == PurePosixPath("/boot/vmlinuz-6.1.0-1")
    own = dataclasses.replace(entry, partition=2, kernel="/vmlinuz-6.1.0-1")
    partition = dataclasses.replace(FOUND.facts.partitions[0], number=2)
    facts = dataclasses.replace(FOUND.facts, partitions=(*FOUND.facts.partitions, partition))
    apart = dataclasses.replace(FOUND, facts=facts, boot=2, entry=own)
    assert kernel_path(apart) == PurePosixPath("/boot/vmlinuz-6.1.0-1")
    check_image_disk(DISK, apart)
    inside = dataclasses.replace(own, kernel="/boot/vmlinuz-6.1.0-1")
    with pytest.raises(BadInputError) as caught:
        check_image_disk(DISK, dataclasses.replace(apart, entry=inside))
    assert any("not a kernel in /boot with one" in line for line in caught.value.details)


def test_the_words_that_each_boot_needs() -> None:
    line = "BOOT_IMAGE=/vmlinuz root=PARTUUID=1 ro quiet console=tty0 console=ttyS0,115200 net.ifnames=0 init=/bin/x"
    assert own_words(with_line(line)) == ("net.ifnames=0",)


def test_the_line_of_the_entry() -> None:
    line = "root=PARTUUID=1 ro quiet console=tty0 net.ifnames=0 panic=0"
    assert entry_line(line, "1-2") == "root=UUID=1-2 ro quiet console=tty0 net.ifnames=0 panic=10"


@pytest.mark.parametrize("begin_bytes", [0, CHUNK_BYTES, CHUNK_BYTES + 512])
@pytest.mark.parametrize("size_bytes", [512, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 512])
def test_a_range_is_copied_with_its_holes(tmp_path: Path, begin_bytes: int, size_bytes: int) -> None:
    data = os.urandom(CHUNK_BYTES) + bytes(2 * CHUNK_BYTES) + os.urandom(3 * CHUNK_BYTES)
    (tmp_path / "disk").write_bytes(data)
    with (tmp_path / "disk").open("rb") as source, (tmp_path / "part").open("xb") as target:
        copy_range(source.fileno(), begin_bytes, size_bytes, target.fileno())
    assert (tmp_path / "part").read_bytes() == data[begin_bytes : begin_bytes + size_bytes]
    if begin_bytes == 0 and size_bytes > 2 * CHUNK_BYTES:
        assert (tmp_path / "part").stat().st_blocks * 512 < size_bytes


def test_a_copy_takes_no_more_room_than_the_data(tmp_path: Path) -> None:
    """A disk with one byte in many places would otherwise fill the file system of its copy."""
    source, target = tmp_path / "disk", tmp_path / "copy"
    with source.open("xb") as file:
        for number in range(64):
            os.pwrite(file.fileno(), b"x", number * CHUNK_BYTES + 5000)
        os.ftruncate(file.fileno(), 64 * CHUNK_BYTES)
    with source.open("rb") as disk, target.open("xb") as copy:
        copy_range(disk.fileno(), 0, 64 * CHUNK_BYTES, copy.fileno())
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks


class Appliance:
    """In place of the appliance. While it looks, somebody else writes ``content`` into the disk at ``source``."""

    def __init__(self, source: Path, content: bytes = b"") -> None:
        self.source, self.content = source, content

    @contextmanager
    def __call__(self, disk: Path, context: Context) -> Iterator[None]:
        if self.content:
            before = self.source.stat()
            self.source.write_bytes(self.content)
            os.utime(self.source, ns=(before.st_atime_ns, before.st_mtime_ns))
        yield


def examining(monkeypatch: pytest.MonkeyPatch, appliance: Appliance, found: Inspected = FOUND) -> Context:
    monkeypatch.setattr(ownsystem, "_appliance", appliance)
    monkeypatch.setattr(ownsystem, "look", lambda guest: found)
    monkeypatch.setattr(ownsystem, "fetch", lambda *_: None)
    monkeypatch.setattr(ownsystem, "read_superblock", lambda *_: None)
    return Context(cast(Store, None), Quiet())


def test_a_disk_that_its_owner_changes_meanwhile_is_the_one_that_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, the store would keep the owner's disk under the hash of another one, from which somebody may build later."""
    size_bytes, disk = FOUND.facts.size_bytes, tmp_path / "disk"
    disk.write_bytes(b"good")
    os.truncate(disk, size_bytes)
    context = examining(monkeypatch, Appliance(disk, b"evil"))
    with examined(disk, context) as image:
        assert disk.read_bytes()[:4] == b"evil"
        with image.path.open("rb") as copy:
            assert copy.read(4) == b"good"
            assert digest_of_data(copy.fileno(), image.path) == image.digest
        assert image.path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_is_written_to_during_the_copy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(b"good")
    os.truncate(disk, FOUND.facts.size_bytes)
    context = examining(monkeypatch, Appliance(disk))

    def copy(*words: Any) -> None:
        copy_range(*words)
        disk.write_bytes(b"a machine runs from it")

    monkeypatch.setattr(ownsystem, "copy_range", copy)
    with pytest.raises(BadInputError, match="changed while it was read"), examined(disk, context):
        pass


def test_a_link_to_a_disk_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"of root")
    (tmp_path / "disk").symlink_to("secret")
    context = examining(monkeypatch, Appliance(tmp_path / "disk"))
    with pytest.raises(BadInputError), examined(tmp_path / "disk", context):
        pass


def test_places_beyond_the_disk_are_none_of_the_appliance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, FOUND.facts.size_bytes - 512)
    context = examining(monkeypatch, Appliance(disk))
    with pytest.raises(GuestError, match="beyond the disk"), examined(disk, context):
        pass


def test_a_profile_that_never_starts_early_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    profile = dataclasses.replace(load_profile("nginx"), early=Early.NEVER)
    options = ImageOptions(image=tmp_path / "none", out=tmp_path / "out")
    with pytest.raises(BadInputError, match="never"):
        build_image(profile, options, cast(Context, None))


def test_a_write_that_stops_in_the_middle_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pwrite(2) writes what there is room for, and says only the next time that the disk is full."""
    data, real = os.urandom(10_000), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, offset: real(fd, piece[:4096], offset))
    (tmp_path / "source").write_bytes(data)
    with (tmp_path / "source").open("rb") as source, (tmp_path / "copy").open("xb") as target:
        copy_range(source.fileno(), 0, len(data), target.fileno())
    assert (tmp_path / "copy").read_bytes() == data
