"""The initramfs's budget: what cannot fit is refused before it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NoReturn

import pytest

from quickstart.errors import BadInputError, StartSetError
from quickstart.initramfs import build
from quickstart.initramfs.build import Recipe, write_initramfs
from quickstart.initramfs.newc import CpioEntry, regular
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.model import MIB, ReferenceImage, StartSet
from quickstart.model.rootdisk import RootDisk
from quickstart.model.superblock import Superblock
from quickstart.model.words import Payload
from quickstart.profile import load_profile
from tests.unit.imagebuilder import programs_in
from tests.unit.startfiles import start_file

LARGE = PurePosixPath("/var/lib/app/large")


def recipe_of(tmp_path: Path, start_set: StartSet) -> Recipe:
    """Of an image without any file, and a budget of 5 MiB."""
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
    return Recipe(
        profile=profile,
        reference=reference,
        disk=RootDisk(path=tmp_path / "root.raw", size_bytes=MIB, superblock=superblock),
        interface="ens3",
        start_set=start_set,
        unit=unit,
        programs=programs_in(tmp_path),
    )


def test_a_start_set_over_the_budget_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "initramfs.img"
    # The image has no such file, nor an fstab: to read anything of it would be another error.
    file = start_file(LARGE, size_bytes=5 * MIB + 1)
    with pytest.raises(
        StartSetError, match=r"the start set alone has 5\.0 MiB, the profile's budget is 5 MiB"
    ) as caught:
        write_initramfs(recipe_of(tmp_path, StartSet((file,), ())), target)
    assert str(LARGE) in caught.value.message
    assert "budget_mib" in (caught.value.hint or "")
    assert not target.exists()


def test_modules_without_an_end_fill_no_disk(tmp_path: Path) -> None:
    """modules.dep is the image's: each module may need some hundred others, of 64 MiB each in some KB of xz."""
    target = tmp_path / "initramfs.img"
    packed = 0

    def modules() -> Iterator[CpioEntry]:
        nonlocal packed
        for packed in range(1000):
            yield regular(f"{packed}.ko", bytes(MIB), 0o644)

    with pytest.raises(StartSetError, match="more than 3 MiB, far more than the profile's budget"):
        build._append(target, modules(), Payload.CPIO, 3 * MIB)
    assert packed == 2
    assert target.stat().st_size <= 3 * MIB


def test_what_is_slow_to_pack_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object) -> NoReturn:
        while True:
            pass

    monkeypatch.setattr(build, "START_SET_LIMIT_S", 0.01)
    monkeypatch.setattr(build, "_S_OF_A_MIB", 0.002)
    monkeypatch.setattr(build, "check_sizes", forever)
    with pytest.raises(
        BadInputError, match=r"reading the image's modules and packed files takes more than 0\.02 s"
    ):
        write_initramfs(recipe_of(tmp_path, StartSet((), ())), tmp_path / "initramfs.img")
