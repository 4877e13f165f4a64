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
