"""`build --image` of disks with other partitions than Debian's cloud images have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quickstart.model.words import Firmware
from quickstart.store.store import Store
from tests.images.lookalike import Layout
from tests.vm.imaging import Made, image_made

pytestmark = pytest.mark.full

CHOOSE_STOCK = """\
set -e
mount -n -o remount,rw /
mount /boot
grub-reboot 0
umount /boot
sync
mount -n -o remount,ro /
"""
# What systemd-boot leaves of a boot that does not come to its end.
BREAK_ENTRY = """\
set -ex
mount -n -o remount,rw /
mount /boot/efi
mv /boot/efi/loader/entries/quickstart+1.conf /boot/efi/loader/entries/quickstart+0-1.conf
umount /boot/efi
sync
mount -n -o remount,ro /
"""


@pytest.fixture(scope="module")
def apart(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("apart"), Layout.APART) as made:
        yield made


def test_a_partition_for_boot_an_mbr_and_labels(apart: Made) -> None:
    """It boots by itself, fast, and again. Then GRUB starts the entry that somebody has chosen for one boot."""
    for _ in range(2):
        console = apart.boot(Firmware.BIOS)
        assert b"hand-off: nginx.service was started from /fast" in console
        assert b"fallback" not in console
        assert apart.state() == ""
    apart.execute(CHOOSE_STOCK)
    console = apart.boot(Firmware.BIOS)
    assert b" login:" in console
    assert b"hand-off" not in console
    assert apart.state() == ""


CHANGE_MENU = """\
set -ex
mount -n -o remount,rw /
mount /boot/efi
sed -i 's/ ro / ro audit=0 /' /boot/efi/loader/entries/debian-*.conf
grep -q 'audit=0' /boot/efi/loader/entries/debian-*.conf
umount /boot/efi
sync
mount -n -o remount,ro /
"""


@pytest.fixture(scope="module")
def with_systemd_boot(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("systemd-boot"), Layout.SYSTEMD_BOOT) as made:
        yield made


def test_systemd_boot(with_systemd_boot: Made) -> None:
    """It boots by itself, fast, and again. A boot of the entry that fails is followed by a stock boot, and this by one more
    try. A changed menu takes the entry away at the end of the boot.
    """
    disk = with_systemd_boot
    for _ in range(2):
        console = disk.boot(Firmware.UEFI)
        assert b"hand-off: nginx.service was started from /fast" in console
        assert b"fallback" not in console
        assert disk.state() == "quickstart+1.conf"
    disk.execute(BREAK_ENTRY)
    console = disk.boot(Firmware.UEFI)
    assert b" login:" in console
    assert b"hand-off" not in console
    assert disk.state() == "quickstart+1-1.conf"
    disk.execute(CHANGE_MENU)
    assert b"hand-off: nginx.service was started from /fast" in disk.boot(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    console = disk.boot(Firmware.UEFI)
    assert b"hand-off" not in console
