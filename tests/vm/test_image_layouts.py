"""`build --image` of disks with other partitions, boot loaders or initramfs files than Debian's cloud images have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quickstart.artefact.directory import load
from quickstart.model.words import Firmware
from quickstart.store.store import Store
from tests.images.layouts import Layout
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.imaging import CHANGE_MENU, Made, image_made, on_esp

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
_ON_ROOT = """\
set -e
mount -n -o remount,rw /
{}
sync
mount -n -o remount,ro /
"""
TOUCH_LIBRARY = _ON_ROOT.format("touch /usr/lib/x86_64-linux-gnu/libc.so.6")
# Debian's security updates often keep the version in the kernel's name. A byte at the end leaves a kernel that starts.
_NEW_KERNEL = "for kernel in /boot/vmlinuz-*; do printf x >>$kernel; done"
NEW_KERNEL = _ON_ROOT.format(f"{_NEW_KERNEL}\ndracut --quiet --force --regenerate-all\nupdate-grub")
_UNIFIED = "/boot/efi/EFI/Linux/debian-*.efi"
NEW_UNIFIED = on_esp(
    _NEW_KERNEL,
    f"objcopy --update-section .linux=$(ls /boot/vmlinuz-*) {_UNIFIED}",
)


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    """The disk of `build --image` of a look-alike with the layout that the test names."""
    with image_made(store, tmp_path_factory.mktemp(request.param), request.param) as made:
        yield made


def rebuild(made: Made) -> None:
    out = made.artefact.directory
    called = quickstart("rebuild", out, "--profile", out.parent, "--json", timeout_s=BUILD_S)
    assert called.result["made"], called.err
    made.artefact = load(out)


def is_stale_until_rebuild(made: Made) -> None:
    """A changed library makes the next boot a stock one."""
    made.execute(TOUCH_LIBRARY)
    assert b"libc.so.6 is not as it was packed" in made.boot(Firmware.BIOS)
    rebuild(made)
    made.boots_fast(Firmware.BIOS)


def with_layout(layout: Layout) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", [layout], indirect=True)


@with_layout(Layout.APART)
def test_a_partition_for_boot_an_mbr_and_labels(made: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the entry that somebody has chosen for one boot."""
    made.boots_fast_again(Firmware.BIOS, "")
    made.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    made.boots_stock(Firmware.BIOS)
    assert made.state() == ""


@with_layout(Layout.SYSTEMD_BOOT)
def test_systemd_boot(made: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a stock boot, and this by one more
    try. A changed menu takes the entry away at the end of the boot.
    """
    disk = made
    disk.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    disk.comes_back()
    disk.execute(CHANGE_MENU)
    disk.boots_fast(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    disk.boots_stock(Firmware.UEFI)


@with_layout(Layout.DRACUT)
def test_dracut(made: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry, with dracut's initramfs. A kernel of an upgrade
    starts the stock way, until a rebuild.
    """
    made.boots_fast_again(Firmware.UEFI, "")
    made.boots_fast(Firmware.BIOS)
    made.execute(CHOOSE_STOCK.format(":", ":"))
    made.boots_stock(Firmware.UEFI)
    assert made.state() == ""
    made.execute(NEW_KERNEL)
    made.boots_stock(Firmware.BIOS)
    rebuild(made)
    made.boots_fast(Firmware.BIOS)


@with_layout(Layout.UNIFIED)
def test_a_unified_kernel_image(made: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a boot of the unified kernel image.
    When an upgrade has replaced this image, the next boot takes the entry away at its end, until a rebuild. The bench measures
    the disk that `rebuild` has made.
    """
    made.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    made.comes_back()
    made.execute(NEW_UNIFIED)
    made.boots_fast(Firmware.UEFI)
    assert made.state() == "quickstart.off"
    made.boots_stock(Firmware.UEFI)
    rebuild(made)
    out = made.artefact.directory
    kind = ("--disk", out, "--firmware", "uefi", "--clock", "virtual", "--storage", "local", "--runs", "1")
    both = ("--configuration", "standard", "--configuration", "quickstart")
    measured = quickstart("bench", *kind, *both, "-o", out.parent / "bench", "--json", timeout_s=BUILD_S)
    assert measured.status == 0, measured.err
    assert measured.result["valid"]
    made.boots_fast(Firmware.UEFI)


@with_layout(Layout.XFS)
def test_xfs(made: Made) -> None:
    """It boots by itself, fast, and again: init compares the packed files on each boot. Then GRUB starts the stock entry.
    A changed library makes the next boot a stock one, until a rebuild. `verify` counts the requests.
    """
    made.boots_fast_again(Firmware.BIOS, "")
    made.boots_fast(Firmware.UEFI)
    made.execute(CHOOSE_STOCK.format(":", ":"))
    made.boots_stock(Firmware.UEFI)
    assert made.state() == ""
    is_stale_until_rebuild(made)
    verified = quickstart("verify", made.artefact.directory, "--json")
    assert "only on ext4" in verified.result["unattributed"]


@with_layout(Layout.BTRFS)
def test_a_subvolume_of_btrfs(made: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry. A changed library makes the next boot a stock
    one, until a rebuild.
    """
    made.boots_fast_again(Firmware.BIOS, "")
    made.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    made.boots_stock(Firmware.BIOS)
    assert made.state() == ""
    is_stale_until_rebuild(made)
