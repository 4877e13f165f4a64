"""`build --target disk`: a disk of ours boots by itself, fast, and finds its way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.output import Display, Plain
from quickstart.engines.ownsystem import examined, look_into
from quickstart.model.words import Firmware
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.imaging import Made

pytestmark = pytest.mark.full
FAST = b"hand-off: nginx.service was started from /fast"
# What the boot loaders leave of a boot that does not come to its end.
BREAK_ENTRY = """\
set -ex
mount -n -o remount,rw /
mount /boot/efi
mv /boot/efi/loader/entries/quickstart+1.conf /boot/efi/loader/entries/quickstart+0-1.conf
umount /boot/efi
sync
mount -n -o remount,ro /
"""
BREAK_GRUB = """\
set -ex
mount -n -o remount,rw /
grub-editenv /boot/grub/grubenv set quickstart_state=tried
sync
mount -n -o remount,ro /
"""


@contextmanager
def built(store: Store, out: Path, *words: str) -> Iterator[Made]:
    """`build --target disk` of nginx at ``out``. A second build does nothing."""
    line: tuple[str | Path, ...] = (
        "build",
        "--profile",
        "nginx",
        "--target",
        "disk",
        *words,
        "-o",
        out,
        "--json",
    )
    called = quickstart(*line, timeout_s=BUILD_S)
    assert called.status == 0, called.err
    assert called.result["made"]
    assert not quickstart(*line, timeout_s=BUILD_S).result["made"]
    artefact = artefacts.load(out)
    with examined(artefact.disk, Context(store, Display(Plain(stderr=True)))) as image:
        yield Made(artefact, image, store)


@pytest.fixture(scope="module")
def with_systemd_boot(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with built(store, tmp_path_factory.mktemp("uefi") / "out") as made:
        yield made


@pytest.fixture(scope="module")
def with_grub(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with built(store, tmp_path_factory.mktemp("bios") / "out", "--bios") as made:
        yield made


def test_systemd_boot_starts_it(with_systemd_boot: Made) -> None:
    """It boots by itself, fast, and again. After a boot that fails, the stock system comes."""
    disk = with_systemd_boot
    for _ in range(2):
        console = disk.boot(Firmware.UEFI)
        assert FAST in console
        assert b"fallback" not in console
        assert disk.state() == "quickstart+1.conf"
    disk.execute(BREAK_ENTRY)
    console = disk.boot(Firmware.UEFI)
    assert b" login:" in console
    assert b"hand-off" not in console
    assert disk.state() == "quickstart+1-1.conf"


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
REMOVE = """\
set -ex
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -n -o remount,rw /
mount /boot/efi
quickstart remove
[ ! -e /usr/lib/quickstart ]
umount /boot/efi
sync
mount -n -o remount,ro /
"""


def test_rebuild_takes_a_changed_menu_over_and_remove_leaves_nothing(with_systemd_boot: Made) -> None:
    """After the test before, the machine is to try the entry once more. That boot finds the changed menu at its end."""
    disk = with_systemd_boot
    disk.execute(CHANGE_MENU)
    assert FAST in disk.boot(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    rebuilt = quickstart("rebuild", disk.artefact.directory, "--json", timeout_s=BUILD_S)
    assert rebuilt.status == 0, rebuilt.err
    console = disk.boot(Firmware.UEFI)
    assert FAST in console
    assert b"audit=0" in console
    assert disk.state() == "quickstart+1.conf"
    disk.execute(REMOVE)
    console = disk.boot(Firmware.UEFI)
    assert b" login:" in console
    assert b"hand-off" not in console
    found = look_into(disk.artefact.disk, disk.context)
    assert not [
        name
        for each in found.facts.partitions
        if each.content
        for name in each.content.boot
        if "quickstart" in name
    ]


def test_a_bios_and_uefi_start_it(with_grub: Made) -> None:
    for firmware in Firmware:
        console = with_grub.boot(firmware)
        assert FAST in console
        assert b"fallback" not in console
        assert with_grub.state() == ""
    with_grub.execute(BREAK_GRUB)
    console = with_grub.boot(Firmware.BIOS)
    assert b" login:" in console
    assert b"hand-off" not in console
    assert with_grub.state() == "again"
