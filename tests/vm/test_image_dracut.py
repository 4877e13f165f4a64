"""`build --image` of a disk whose initramfs dracut has made."""

from __future__ import annotations

import pytest

from quickstart.model.words import Firmware
from tests.images.layouts import Layout
from tests.vm.imaging import CHOOSE_STOCK, NEW_KERNEL, ON_ROOT, Made, rebuild, with_layout

pytestmark = pytest.mark.full

UPGRADE = ON_ROOT.format(f"{NEW_KERNEL}\ndracut --quiet --force --regenerate-all\nupdate-grub")


@with_layout(Layout.DRACUT)
def test_dracut(layout_disk: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry, with dracut's initramfs. A kernel of an upgrade
    starts the stock way, until a rebuild.
    """
    layout_disk.boots_fast_again(Firmware.UEFI, "")
    layout_disk.boots_fast(Firmware.BIOS)
    layout_disk.execute(CHOOSE_STOCK.format(":", ":"))
    layout_disk.boots_stock(Firmware.UEFI)
    assert layout_disk.state() == ""
    layout_disk.execute(UPGRADE)
    layout_disk.boots_stock(Firmware.BIOS)
    rebuild(layout_disk)
    layout_disk.boots_fast(Firmware.BIOS)
