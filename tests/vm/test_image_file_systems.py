"""`build --image` of disks whose root file system is not ext4."""

from __future__ import annotations

import pytest

from quickstart.model.words import Firmware
from tests.images.layouts import Layout
from tests.vm.conftest import quickstart
from tests.vm.imaging import CHOOSE_STOCK, ON_ROOT, Made, rebuild, with_layout

pytestmark = pytest.mark.full

TOUCH_LIBRARY = ON_ROOT.format("touch /usr/lib/x86_64-linux-gnu/libc.so.6")


def is_stale_until_rebuild(made: Made) -> None:
    """A changed library makes the next boot a stock one."""
    made.execute(TOUCH_LIBRARY)
    assert b"libc.so.6 is not as it was packed" in made.boot(Firmware.BIOS)
    rebuild(made)
    made.boots_fast(Firmware.BIOS)


@with_layout(Layout.XFS)
def test_xfs(layout_disk: Made) -> None:
    """It boots by itself, fast, and again: init compares the packed files on each boot. Then GRUB starts the stock entry.
    A changed library makes the next boot a stock one, until a rebuild. `verify` counts the requests.
    """
    layout_disk.boots_fast_again(Firmware.BIOS, "")
    layout_disk.boots_fast(Firmware.UEFI)
    layout_disk.execute(CHOOSE_STOCK.format(":", ":"))
    layout_disk.boots_stock(Firmware.UEFI)
    assert layout_disk.state() == ""
    is_stale_until_rebuild(layout_disk)
    verified = quickstart("verify", layout_disk.artefact.directory, "--json")
    assert "only on ext4" in verified.result["unattributed"]


@with_layout(Layout.BTRFS)
def test_a_subvolume_of_btrfs(layout_disk: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the stock entry. A changed library makes the next boot a stock
    one, until a rebuild.
    """
    layout_disk.boots_fast_again(Firmware.BIOS, "")
    layout_disk.execute(CHOOSE_STOCK.format("mount /boot", "umount /boot"))
    layout_disk.boots_stock(Firmware.BIOS)
    assert layout_disk.state() == ""
    is_stale_until_rebuild(layout_disk)
