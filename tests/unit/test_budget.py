"""The initramfs's budget: what cannot fit is refused before it is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs.build import Recipe, write_initramfs
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import (
    MIB,
    ReferenceImage,
    RootDisk,
    StartSet,
    Superblock,
)
from quickstart.profile import load_profile
from tests.unit.imagebuilder import programs_in
from tests.unit.startfiles import start_file

LARGE = PurePosixPath("/var/lib/app/large")


def test_a_start_set_over_the_budget_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tree = tmp_path / "image"
    tree.mkdir()
    profile = dataclasses.replace(load_profile("nginx"), budget_mib=5)
    origin = ("debootstrap", "0")
    reference = ReferenceImage(
        tree=tree,
        image_hash="0",
        kernel=tree / "vmlinuz",
        initrd=tree / "initrd",
        kernel_version="6.1",
        volume_uuid="0",
        volume_label="root",
        origin=origin,
    )
    superblock = Superblock(
        uuid="11111111-2222-3333-4444-555555555555",
        mount_count=0,
        write_time_s=0,
        clean=True,
        needs_recovery=False,
        has_errors=False,
    )
    unit = UnitStart(
        unit="app.service", type="simple", pid_file=None, start_pre=(), start=UnitCommand("/a", ("/a",))
    )
    target = tmp_path / "initramfs.img"
    # The image has no such file, nor an fstab: to read anything of it would be another error.
    file = start_file(LARGE, size_bytes=5 * MIB + 1)
    with pytest.raises(
        StartSetError, match=r"the start set alone has 5\.0 MiB, the profile's budget is 5 MiB"
    ) as caught:
        disk = RootDisk(tmp_path / "root.raw", MIB, superblock)
        ours = programs_in(tmp_path)
        write_initramfs(
            Recipe(
                profile=profile,
                reference=reference,
                disk=disk,
                interface="ens3",
                start_set=StartSet((file,), ()),
                unit=unit,
                programs=ours,
            ),
            target,
        )
    assert str(LARGE) in caught.value.message
    assert "budget_mib" in (caught.value.hint or "")
    assert not target.exists()
