"""`build --image` of disks with other partitions or boot loaders than Debian's cloud images have."""

from __future__ import annotations

import pytest

from quickstart.model.words import Firmware
from tests.images.layouts import Layout
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.imaging import CHANGE_MENU, CHOOSE_STOCK, NEW_KERNEL, Made, on_esp, rebuild, with_layout

pytestmark = pytest.mark.full

_UNIFIED = "/boot/efi/EFI/Linux/debian-*.efi"
NEW_UNIFIED = on_esp(
    NEW_KERNEL,
    f"objcopy --update-section .linux=$(ls /boot/vmlinuz-*) {_UNIFIED}",
)


@with_layout(Layout.APART)
def test_a_partition_for_boot_an_mbr_and_labels(layout_disk: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the entry that somebody has chosen for one boot."""
    layout_disk.boots_fast_again(Firmware.BIOS, "")
    layout_disk.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    layout_disk.boots_stock(Firmware.BIOS)
    assert layout_disk.state() == ""


@with_layout(Layout.SYSTEMD_BOOT)
def test_systemd_boot(layout_disk: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a stock boot, and this by one more
    try. A changed menu takes the entry away at the end of the boot.
    """
    disk = layout_disk
    disk.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    disk.comes_back()
    disk.execute(CHANGE_MENU)
    disk.boots_fast(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    disk.boots_stock(Firmware.UEFI)


@with_layout(Layout.UNIFIED)
def test_a_unified_kernel_image(layout_disk: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a boot of the unified kernel image.
    When an upgrade has replaced this image, the next boot takes the entry away at its end, until a rebuild. The bench measures
    the disk that `rebuild` has layout_disk.
    """
    layout_disk.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    layout_disk.comes_back()
    layout_disk.execute(NEW_UNIFIED)
    layout_disk.boots_fast(Firmware.UEFI)
    assert layout_disk.state() == "quickstart.off"
    layout_disk.boots_stock(Firmware.UEFI)
    rebuild(layout_disk)
    out = layout_disk.artefact.directory
    kind = ("--disk", out, "--firmware", "uefi", "--clock", "virtual", "--storage", "local", "--runs", "1")
    both = ("--configuration", "standard", "--configuration", "quickstart")
    measured = quickstart("bench", *kind, *both, "-o", out.parent / "bench", "--json", timeout_s=BUILD_S)
    assert measured.status == 0, measured.err
    assert measured.result["valid"]
    layout_disk.boots_fast(Firmware.UEFI)
