"""What the reference boot has to mount as /."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.model.started import RootMount
from tests.unit.accounts import booted, refused


@pytest.mark.parametrize(
    ("roots", "shown"),
    [
        ((RootMount("/", "overlay"),), "/ of overlay"),
        ((RootMount("/@rootfs", "ext4"),), "/@rootfs of ext4"),
        ((RootMount("/", "ext4"), RootMount("/", "tmpfs")), "/ of ext4, then / of tmpfs"),
    ],
)
def test_another_root(tmp_path: Path, roots: tuple[RootMount, ...], shown: str) -> None:
    boot = booted()
    hidden = replace(boot, loaded=replace(boot.loaded, roots=roots))
    assert f"the image's own initramfs mounts {shown} as /" in refused(tmp_path, hidden)


@pytest.mark.parametrize(
    ("root", "subvolume", "is_taken"),
    [
        (RootMount("/@rootfs", "btrfs"), "@rootfs", True),
        (RootMount("/@other", "btrfs"), "@rootfs", False),
        (RootMount("/", "btrfs"), "@rootfs", False),
        (RootMount("/", "btrfs"), "", True),
        (RootMount("/@rootfs", "btrfs"), "", False),
        (RootMount("/", "xfs"), "", True),
        (RootMount("/@rootfs", "xfs"), "@rootfs", False),
    ],
)
def test_a_subvolume(tmp_path: Path, root: RootMount, subvolume: str, is_taken: bool) -> None:
    boot = booted()
    mounted = replace(boot, loaded=replace(boot.loaded, roots=(root,)))
    assert ("mounts" not in refused(tmp_path, mounted, subvolume=subvolume)) == is_taken
