"""What the tests of `build --image` share: a disk that it has made, and the boots of this disk by its own boot loader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from quickstart.artefact.directory import load
from quickstart.cli.firmware import free_port
from quickstart.cli.output import Display, Plain
from quickstart.engines.boot import machine_of
from quickstart.engines.image import ImageOptions, build_image
from quickstart.engines.ownsystem import ImageDisk, examined, execute_in, look_into, prepared
from quickstart.host import door
from quickstart.host.files import remove_tree
from quickstart.inspect.disk.systemdboot import ENTRIES
from quickstart.launch.forward import status_line
from quickstart.model import Artefact
from quickstart.model.machine import by_firmware
from quickstart.model.words import Firmware
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.guests import launched
from tests.images.layouts import Layout
from tests.images.lookalike import look_alike
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.test_inspect import digest

BOOT_S = 900.0
FAST = b"hand-off: nginx.service was started from /fast"
_ON_ESP = """\
set -ex
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -n -o remount,rw /
mount /boot/efi
{}
umount /boot/efi
sync
mount -n -o remount,ro /
"""


def on_esp(*lines: str) -> str:
    """A script for `Made.execute` that changes the EFI system partition by ``lines``."""
    return _ON_ESP.format("\n".join(lines))


# What systemd-boot leaves of a boot that does not come to its end.
_ENTRY = "/boot/efi/loader/entries/quickstart"
BREAK_ENTRY = on_esp(f"mv {_ENTRY}+1.conf {_ENTRY}+0-1.conf")
_STOCK_ENTRY = "/boot/efi/loader/entries/debian-*.conf"
CHANGE_MENU = on_esp(f"sed -i 's/ ro / ro audit=0 /' {_STOCK_ENTRY}", f"grep -q 'audit=0' {_STOCK_ENTRY}")
ON_ROOT = """\
set -e
mount -n -o remount,rw /
{}
sync
mount -n -o remount,ro /
"""
# With what comes before and after it, such as mounting /boot.
CHOOSE_STOCK = ON_ROOT.format("{}\ngrub-reboot 0\n{}")
# Debian's security updates often keep the version in the kernel's name. A byte at the end leaves a kernel that starts.
NEW_KERNEL = "for kernel in /boot/vmlinuz-*; do printf x >>$kernel; done"
PROFILE = """\
schema = 1
name = "web"
description = "nginx of a disk that somebody else has made"
suite = "bookworm"
packages = ["nginx-light"]
unit = "nginx.service"

[start]
pre = false
early = "always"

[ready]
kind = "http"
port = 80
path = "/"
status = 200
timeout_s = 900

[memory]
machine_mib = 1024
budget_mib = 48
"""


class Made:
    """A disk of `build --image`, with the disk that it was made of."""

    def __init__(self, artefact: Artefact, image: ImageDisk, store: Store) -> None:
        self.artefact, self.image, self.store = artefact, image, store
        self.context = Context(store, Display(Plain(stderr=True)))

    def boot(self, firmware: Firmware, until: bytes = b" login:") -> bytes:
        """The console of a boot that answers the profile's request, and then shows ``until``. The machine is shut
        down in order. Without an answer, the console until the machine ended by itself.
        """
        port = free_port()
        machine = by_firmware(machine_of(self.artefact, stock=False, snapshot=False, port=port), firmware)
        with launched(machine, None, self.store) as guest:
            answered, end_s = False, time.monotonic() + BOOT_S
            while time.monotonic() < end_s:
                said = guest.console.read(0).data
                answered = answered or " 200" in status_line(port, "/")
                if guest.wait(0.5) or (answered and until in said):
                    break
            else:
                raise AssertionError(guest.console_tail())
            if answered:
                assert guest.power_off(BOOT_S)
            return guest.console.read(0).data

    def boots_fast(self, firmware: Firmware) -> bytes:
        """The console of a boot of our entry, which started early and handed over."""
        console = self.boot(firmware)
        assert FAST in console
        assert b"fallback" not in console
        return console

    def boots_stock(self, firmware: Firmware) -> None:
        """A boot of the system's own entry."""
        console = self.boot(firmware)
        assert b" login:" in console
        assert b"hand-off" not in console

    def boots_fast_again(self, firmware: Firmware, state: str) -> None:
        """Two boots of our entry, each of which leaves ``state``."""
        for _ in range(2):
            self.boots_fast(firmware)
            assert self.state() == state

    def comes_back(self) -> None:
        """With systemd-boot: after a boot of our entry that fails, the stock system comes, and then our entry has one more try."""
        self.execute(BREAK_ENTRY)
        self.boots_stock(Firmware.UEFI)
        assert self.state() == "quickstart+1-1.conf"

    def state(self) -> str:
        """What GRUB has noted of the last try. With systemd-boot, the name of our entry."""
        found = look_into(self.artefact.disk, self.context)
        assert found.entry is not None
        place = found.partition(found.entry.partition)
        assert place is not None
        assert place.content is not None
        if found.entry.is_unified or found.entry.config.startswith(ENTRIES):
            (name,) = (each for each in place.content.boot if each.startswith(f"{ENTRIES}quickstart"))
            return name.removeprefix(ENTRIES)
        lines = place.content.files[found.entry.config.replace("grub.cfg", "grubenv")].decode().splitlines()
        return next((each.partition("=")[2] for each in lines if each.startswith("quickstart_state=")), "")

    def execute(self, script: str, files: Mapping[str, bytes] | None = None) -> None:
        """Run a script in the disk's own system, as `build --image` does. It has to end with status 0. ``files`` are
        beside it, in /run/quickstart-image.
        """
        given = {"script": script.encode(), **(files or {})}
        execute_in(self.artefact.disk, self.image.system, "script", given, self.context)


@contextmanager
def image_made(store: Store, place: Path, layout: Layout, profile: str = PROFILE) -> Iterator[Made]:
    """`build --image` of a look-alike with nginx, in ``place``. The look-alike stays as it was."""
    (place / "profile.toml").write_text(profile)
    context = Context(store, Display(Plain(stderr=True)))
    disk = look_alike(context, layout).disk
    if layout is Layout.APART:
        # In the format of Ubuntu's cloud images, whose layout this is.
        raw, disk = disk, place / "given.img"
        form = ("-f", "raw", "-O", "qcow2", "-c", "-o", "compat=0.10")
        door.run(["qemu-img", "convert", *form, raw, disk], timeout_s=BOOT_S)
    before = digest(disk)
    options = ImageOptions(image=disk, out=place / "out")
    built = build_image(load_profile(str(place)), options, context)
    assert not build_image(load_profile(str(place)), options, context).made
    with examined(disk, context, is_given=True) as image:
        entry = prepared(image, context).path.parent
        try:
            yield Made(built.artefact, image, store)
        finally:
            # A copy of a whole disk, which no other test needs.
            remove_tree(entry)
    assert digest(disk) == before


def with_layout(layout: Layout) -> pytest.MarkDecorator:
    """The test's ``layout_disk`` is of this layout."""
    return pytest.mark.parametrize("layout_disk", [layout], indirect=True)


def rebuild(made: Made) -> None:
    """`quickstart rebuild` of the disk."""
    out = made.artefact.directory
    called = quickstart("rebuild", out, "--profile", out.parent, "--json", timeout_s=BUILD_S)
    assert called.result["made"], called.err
    made.artefact = load(out)
