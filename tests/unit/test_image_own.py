"""Which disks `build --image` takes, and which words of their boot loader it keeps."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import cast

import pytest

from quickstart.engines.image import ImageOptions, build_image
from quickstart.errors import BadInputError
from quickstart.host.holes import CHUNK_BYTES, copy_range
from quickstart.inspect.disk.facts import disk_facts
from quickstart.inspect.disk.own import check_image_disk, entry_line, own_words
from quickstart.inspect.disk.records import parse_records
from quickstart.inspect.disk.verdict import inspected
from quickstart.model.disk import BootEntry, InitramfsMaker, Inspected, Loader
from quickstart.model.words import Early
from quickstart.profile import load_profile
from quickstart.store.context import Context
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


REFUSED = {
    "xfs": (with_root("xfs"), "the root file system is xfs"),
    "boot": (dataclasses.replace(FOUND, boot=2), "/boot is a partition of its own"),
    "loader": (dataclasses.replace(FOUND, loaders=(Loader.UKI,)), "the boot loader is not GRUB"),
    "dracut": (
        dataclasses.replace(FOUND, initramfs_maker=InitramfsMaker.DRACUT),
        "initramfs-tools does not make the initramfs (dracut)",
    ),
    "quotes": (with_line('root=/dev/vda1 dyndbg="file x +p"'), "special characters: dyndbg="),
    "code": (with_line("root=/dev/vda1 a;reboot"), "special characters: a;reboot"),
    "stranger": (dataclasses.replace(FOUND, refusals=("the disk is odd",)), "the disk is odd"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    found, said_of_it = REFUSED[name]
    with pytest.raises(BadInputError) as caught:
        check_image_disk(DISK, found)
    assert any(said_of_it in line for line in caught.value.details)


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


def test_a_profile_that_never_starts_early_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    profile = dataclasses.replace(load_profile("nginx"), early=Early.NEVER)
    options = ImageOptions(image=tmp_path / "none", out=tmp_path / "out")
    with pytest.raises(BadInputError, match="never"):
        build_image(profile, options, cast(Context, None))
