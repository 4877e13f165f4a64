"""`quickstart inspect` reads disks with the appliance."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import pytest

from quickstart.cli.output import Display, Plain
from quickstart.host.holes import data_chunks
from quickstart.image.gpt import ROOT_X86_64, GptPartition, gpt
from quickstart.model import MIB
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.images.layouts import ROOT_PART
from tests.images.lookalike import look_alike
from tests.vm.conftest import host, quickstart

INSPECT_S = 600.0
DISK = uuid.UUID("5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0c02")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_a_root_in_a_partition_and_a_hostile_one(artefact: Path, tmp_path: Path) -> None:
    """Linux and libblkid read the table that we write. The second partition has a file system whose superblock is
    damaged: the first one is found all the same. The disk is a qcow2 image as Ubuntu's are (version 2, compressed). It is
    not changed.
    """
    source, raw, disk = artefact / "root.raw", tmp_path / "disk.raw", tmp_path / "disk.img"
    root_bytes, other_mib = source.stat().st_size, 64
    partitions = (
        GptPartition(
            number=1,
            begin_bytes=MIB,
            size_bytes=root_bytes,
            type_id=ROOT_X86_64,
            identifier=DISK,
            name="root",
        ),
        GptPartition(
            number=2,
            begin_bytes=MIB + root_bytes,
            size_bytes=other_mib * MIB,
            type_id=ROOT_X86_64,
            identifier=uuid.uuid5(DISK, "2"),
            name="\x1b[2J",
        ),
    )
    disk_bytes = root_bytes + (other_mib + 2) * MIB
    table = gpt(partitions, disk_bytes, DISK)
    with raw.open("xb", buffering=0) as file, source.open("rb") as root:
        file.truncate(disk_bytes)
        file.write(table.first)
        file.seek(-len(table.last), os.SEEK_END)
        file.write(table.last)
        for offset, chunk in data_chunks(root.fileno(), root_bytes):
            file.seek(MIB + offset)
            file.write(chunk)
        root.seek(0)
        file.seek(MIB + root_bytes)
        # The superblock alone: its block groups are nowhere.
        file.write(root.read(4096))
    host("qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compat=0.10", raw, disk)
    before = digest(disk)
    called = quickstart("inspect", disk, "--json", timeout_s=INSPECT_S)
    found = called.result
    assert called.status == 1
    assert [each["size_bytes"] for each in found["partitions"]] == [root_bytes, other_mib * MIB]
    # libblkid's notation for what a terminal would obey.
    assert [each["name"] for each in found["partitions"]] == ["root", "^[[2J"]
    assert [each["roles"] for each in found["partitions"]] == [["root"], []]
    assert found["partitions"][0]["part_uuid"] == str(DISK)
    assert found["system"].startswith("Debian GNU/Linux 12")
    assert any(reason.startswith("partition 2 (ext4) cannot be mounted") for reason in found["refusals"])
    assert any("no boot loader" in reason for reason in found["refusals"])
    assert digest(disk) == before


def test_a_file_system_that_was_not_unmounted_and_misleads(tmp_path: Path) -> None:
    """Its journal is not replayed. Its names and links lead to files that would never end, and to the appliance's own; its menu is
    slow to read for who looks for its end at each blank.
    """
    tree, disk = tmp_path / "tree", tmp_path / "disk.raw"
    files = {
        "etc/os-release": 'PRETTY_NAME="Some system"\n',
        "etc/fstab": "/dev/vda / ext4 rw 0 1\n",
        "usr/lib/systemd/systemd": "",
        "boot/grub/grub.cfg": f"menuentry 'x' {{\nlinux /a b{' ' * 1_000_000}c\n}}\n",
        "etc/netplan/a\ny": "",
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.mkfifo(tree / "y")
    (tree / "etc/systemd").mkdir()
    (tree / "etc/systemd/network").symlink_to("/proc")
    host("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(disk), "64M")
    host("debugfs", "-w", "-R", "feature needs_recovery", str(disk))
    called = quickstart("inspect", disk, "--json", timeout_s=INSPECT_S)
    found = called.result
    assert called.status == 1
    (partition,) = found["partitions"]
    assert (partition["clean"], partition["roles"], found["system"]) == (False, ["root"], "Some system")
    assert any("the file system was not unmounted" in reason for reason in found["refusals"])
    assert found["entry"] is None


@pytest.mark.full
def test_a_disk_as_debian_s_cloud_images(store: Store) -> None:
    """Its boot loaders were installed by the system itself."""
    made = look_alike(Context(store, Display(Plain(stderr=True))))
    before = digest(made.disk)
    called = quickstart("inspect", made.disk, "--json", timeout_s=INSPECT_S)
    found = called.result
    assert (called.status, found["refusals"]) == (0, [])
    assert found["root"] == f"PARTUUID={ROOT_PART}"
    assert found["loaders"] == ["grub-bios", "grub-uefi"]
    assert found["entry"]["kernel"].startswith("/boot/vmlinuz-")
    assert found["initramfs_maker"] == "initramfs-tools"
    assert (found["cloud_init"], found["grows_root"]) == (True, True)
    assert digest(made.disk) == before
