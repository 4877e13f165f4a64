"""`build --image` of disks with other partitions, boot loaders or initramfs files than Debian's cloud images have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quickstart.artefact.directory import load
from quickstart.model.words import Firmware
from quickstart.store.store import Store
from tests.images.lookalike import Layout
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.imaging import CHANGE_MENU, Made, image_made

pytestmark = pytest.mark.full

CHOOSE_STOCK = """\
set -e
mount -n -o remount,rw /
{}
grub-reboot 0
{}
sync
mount -n -o remount,ro /
"""
TOUCH_LIBRARY = """\
set -e
mount -n -o remount,rw /
touch /usr/lib/x86_64-linux-gnu/libc.so.6
sync
mount -n -o remount,ro /
"""


@pytest.fixture(scope="module")
def apart(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("apart"), Layout.APART) as made:
        yield made


def test_a_partition_for_boot_an_mbr_and_labels(apart: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the entry that somebody has chosen for one boot."""
    apart.boots_fast_again(Firmware.BIOS, "")
    apart.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    apart.boots_stock(Firmware.BIOS)
    assert apart.state() == ""


@pytest.fixture(scope="module")
def with_systemd_boot(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("systemd-boot"), Layout.SYSTEMD_BOOT) as made:
        yield made


def test_systemd_boot(with_systemd_boot: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a stock boot, and this by one more
    try. A changed menu takes the entry away at the end of the boot.
    """
    disk = with_systemd_boot
    disk.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    disk.comes_back()
    disk.execute(CHANGE_MENU)
    disk.boots_fast(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    disk.boots_stock(Firmware.UEFI)


@pytest.fixture(scope="module")
def with_dracut(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("dracut"), Layout.DRACUT) as made:
        yield made


def test_dracut(with_dracut: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry, with dracut's initramfs."""
    with_dracut.boots_fast_again(Firmware.UEFI, "")
    with_dracut.execute(CHOOSE_STOCK.format(":", ":"))
    with_dracut.boots_stock(Firmware.UEFI)
    assert with_dracut.state() == ""


@pytest.fixture(scope="module")
def unified(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("unified"), Layout.UNIFIED) as made:
        yield made


def test_a_unified_kernel_image(unified: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a boot of the unified kernel image."""
    unified.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    unified.comes_back()


@pytest.fixture(scope="module")
def with_xfs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("xfs"), Layout.XFS) as made:
        yield made


def test_xfs(with_xfs: Made) -> None:
    """It boots by itself, fast, and again: init compares the packed files on each boot. Then GRUB starts the stock entry.
    A changed library makes the next boot a stock one, until a rebuild. `verify` counts the requests.
    """
    with_xfs.boots_fast_again(Firmware.BIOS, "")
    with_xfs.execute(CHOOSE_STOCK.format(":", ":"))
    with_xfs.boots_stock(Firmware.UEFI)
    assert with_xfs.state() == ""
    with_xfs.execute(TOUCH_LIBRARY)
    console = with_xfs.boot(Firmware.BIOS)
    assert b"libc.so.6 is not as it was packed" in console
    out = with_xfs.artefact.directory
    called = quickstart("rebuild", out, "--profile", out.parent, "--json", timeout_s=BUILD_S)
    assert called.result["made"], called.err
    with_xfs.artefact = load(out)
    with_xfs.boots_fast(Firmware.BIOS)
    assert "only on ext4" in quickstart("verify", out, "--json").result["unattributed"]


@pytest.fixture(scope="module")
def with_btrfs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("btrfs"), Layout.BTRFS) as made:
        yield made


def test_a_subvolume_of_btrfs(with_btrfs: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry."""
    with_btrfs.boots_fast_again(Firmware.BIOS, "")
    with_btrfs.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    with_btrfs.boots_stock(Firmware.BIOS)
    assert with_btrfs.state() == ""
