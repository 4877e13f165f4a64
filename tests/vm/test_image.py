"""`build --image`: a disk as Debian's cloud images are boots by itself, fast, and finds its way back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from quickstart.cli.firmware import free_port
from quickstart.cli.output import Display, Plain
from quickstart.engines import image as images
from quickstart.engines.boot import machine_of
from quickstart.engines.image import ImageDisk, ImageOptions, build_image
from quickstart.launch.forward import status_line
from quickstart.model import Artefact
from quickstart.model.machine import by_firmware
from quickstart.model.words import Firmware
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.guests import launched
from tests.images.lookalike import look_alike
from tests.vm.conftest import quickstart
from tests.vm.test_inspect import digest

pytestmark = pytest.mark.full

BOOT_S = 900.0
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
TRUNCATE = (
    "mount -n -o remount,rw /; truncate -s 1M /boot/quickstart/initramfs.img; sync; mount -n -o remount,ro /"
)


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

    def state(self) -> str:
        """What GRUB has noted of the last try."""
        found = images._look(self.artefact.disk, self.context)
        content = next(each for each in found.facts.partitions if each.number == found.root).content
        assert content is not None
        lines = content.files["/boot/grub/grubenv"].decode().splitlines()
        return next((each.partition("=")[2] for each in lines if each.startswith("quickstart_state=")), "")

    def damage(self, script: str) -> None:
        """Run a script in the disk's own system, as `build --image` does."""
        images._in_own_system(
            self.artefact.disk, self.image, "damage", {"damage": script.encode()}, self.context
        )


@pytest.fixture(scope="module")
def made(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    place = tmp_path_factory.mktemp("image")
    (place / "profile.toml").write_text(PROFILE)
    context = Context(store, Display(Plain(stderr=True)))
    disk = look_alike(context).disk
    before = digest(disk)
    options = ImageOptions(image=disk, out=place / "out")
    built = build_image(load_profile(str(place)), options, context)
    yield Made(built.artefact, images.examine(disk, context), store)
    assert digest(disk) == before


def test_it_boots_by_itself_fast_and_again(made: Made) -> None:
    """Each boot is confirmed: GRUB's note is gone."""
    for firmware in (Firmware.BIOS, Firmware.UEFI):
        console = made.boot(firmware)
        assert b"hand-off: nginx.service was started from /fast" in console
        assert b"fallback" not in console
        assert made.state() == ""


def test_an_entry_that_is_broken_gives_way_to_the_stock_system(made: Made) -> None:
    """After one boot that fails, the stock system comes by itself. It comes to its end, so that GRUB tries once more;
    then it is off, until `quickstart enable`.
    """
    made.damage(TRUNCATE)
    states = []
    for _ in range(4):
        console = made.boot(Firmware.BIOS)
        states.append((b" login:" in console, made.state()))
    assert states == [(False, "tried"), (True, "again"), (False, "retried"), (True, "off")]


def test_the_other_verbs_say_what_they_do_not_know(made: Made) -> None:
    out = made.artefact.directory
    for words in (("rebuild", out, "--profile", out.parent), ("verify", out)):
        called = quickstart(*words)
        assert called.status == 2
        assert "is of `build --image`" in called.err
    assert quickstart("ls", out).status == 0
