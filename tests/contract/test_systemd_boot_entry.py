"""The script that counts the tries of our entry in systemd-boot's menu, in a /boot of its own (as root: it mounts)."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

pytestmark = pytest.mark.host_root

KERNEL = "debian/6.1.0-28/linux"
STOCK = "title Debian\nsort-key debian\nlinux /debian/6.1.0-28/linux\noptions root=UUID=1 ro\n"
FAST = "initrd=\\quickstart\\initramfs.img root=UUID=1 ro panic=10 quickstart.entry"
# As QEMU's -kernel gives it.
STOCK_BOOT = "initrd=\\debian\\initrd.img root=UUID=1 ro quickstart.entry2"
BEGIN = """\
set -e
mount --bind "$1/boot" /boot
mount --bind "$1/cmdline" /proc/cmdline
exec sh "$1/script" "$2"
"""


class Disk:
    def __init__(self, place: Path) -> None:
        if os.geteuid() != 0:
            pytest.fail("run the contract tests as root: they mount")
        self.place, self.esp, self.said = place, place / "boot/efi", ""
        self.entries = self.esp / "loader/entries"
        for each in (self.entries, self.esp / "EFI/Linux", self.esp / KERNEL, place / "boot/quickstart"):
            (each.parent if each.name == "linux" else each).mkdir(parents=True)
        (self.esp / KERNEL).write_text("kernel")
        (self.esp / "loader/loader.conf").write_text("timeout 3\n")
        (self.entries / "debian.conf").write_text(STOCK)
        (self.entries / "quickstart+1.conf").write_text("title QuickStart\n")
        (place / "boot/quickstart/esp").write_text("/boot/efi\n")
        (place / "boot/quickstart/entry").write_text(f"/boot/efi/{KERNEL}\nroot=UUID=1\n/{KERNEL} ro\n")
        script = resources.files("quickstart.image.targets.disk").joinpath("systemd-boot").read_text()
        (place / "script").write_text(script)
        self.call("record")

    def call(self, verb: str, cmdline: str = FAST) -> str:
        (self.place / "cmdline").write_text(f"{cmdline}\n")
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", BEGIN, "sh", str(self.place), verb],
            capture_output=True,
            timeout=60,
            check=True,
        )
        self.said = done.stderr.decode() or self.said
        return done.stdout.decode().strip()

    @property
    def name(self) -> str:
        """The name of our entry. There is one."""
        (name,) = (each.name for each in self.entries.iterdir() if each.name.startswith("quickstart"))
        assert self.call("state") == name
        return name

    def boots(self) -> bool:
        """What systemd-boot does with the menu: the result says whether it starts our entry, which it then renames."""
        counter = self.name.removeprefix("quickstart+").removesuffix(".conf")
        if counter not in ("1", "1-1"):
            return False
        after = {"1": "0-1", "1-1": "0-2"}[counter]
        (self.entries / self.name).rename(self.entries / f"quickstart+{after}.conf")
        return True


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_a_boot_that_comes_to_its_end(disk: Disk) -> None:
    for _ in range(2):
        assert disk.boots()
        disk.call("confirm")
        assert disk.name == "quickstart+1.conf"
        disk.call("ended")
        assert disk.name == "quickstart+1.conf"


def test_a_boot_that_is_ended_in_order(disk: Disk) -> None:
    assert disk.boots()
    disk.call("ended")
    assert disk.name == "quickstart+1.conf"


def test_two_boots_that_fail(disk: Disk) -> None:
    """The stock system after each; after the second one until `quickstart enable`."""
    assert disk.boots()
    assert not disk.boots()
    disk.call("confirm", STOCK_BOOT)
    disk.call("ended", STOCK_BOOT)
    assert disk.name == "quickstart+1-1.conf"
    assert disk.boots()
    for _ in range(2):
        assert not disk.boots()
        disk.call("confirm", STOCK_BOOT)
        disk.call("ended", STOCK_BOOT)
        assert disk.name == "quickstart+0-2.conf"
    disk.call("enable", STOCK_BOOT)
    assert disk.name == "quickstart+1.conf"


def test_a_second_try_that_succeeds(disk: Disk) -> None:
    disk.boots()
    disk.call("confirm", STOCK_BOOT)
    assert disk.boots()
    disk.call("confirm")
    assert disk.name == "quickstart+1.conf"


def test_a_failed_stock_boot_does_not_count(disk: Disk) -> None:
    disk.boots()
    assert not disk.boots()
    assert disk.name == "quickstart+0-1.conf"


def test_a_choice_of_the_stock_entry_does_not_count(disk: Disk) -> None:
    disk.call("confirm", STOCK_BOOT)
    disk.call("ended", STOCK_BOOT)
    assert disk.name == "quickstart+1.conf"


CHANGES = {
    "another option": ("loader/entries/debian.conf", STOCK.replace(" ro", " ro lockdown=integrity")),
    "one more kernel": ("loader/entries/debian-2.conf", STOCK),
    "in capitals": ("loader/entries/DEBIAN-2.CONF", STOCK),
    "a default": ("loader/loader.conf", "timeout 3\ndefault debian\n"),
    "a unified kernel image": ("EFI/Linux/debian.efi", "image"),
}


@pytest.mark.parametrize("verb", ["look", "confirm", "ended"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_menu(disk: Disk, name: str, verb: str) -> None:
    disk.boots()
    disk.call("confirm")
    place, text = CHANGES[name]
    former = (disk.esp / place).read_text() if (disk.esp / place).exists() else None
    (disk.esp / place).write_text(text)
    disk.call(verb)
    assert disk.name == "quickstart.off"
    assert "no fast start, because the menu of systemd-boot has changed" in disk.said
    disk.call("enable")
    assert disk.name == "quickstart.off"
    (disk.esp / place).unlink()
    if former:
        (disk.esp / place).write_text(former)
    disk.call("confirm")
    assert disk.name == "quickstart.off"
    disk.call("enable")
    assert disk.name == "quickstart+1.conf"


def test_the_looks_of_the_menu_do_not_count(disk: Disk) -> None:
    (disk.esp / "loader/loader.conf").write_text("# mine\nTIMEOUT 0\nconsole-mode keep\neditor no\nbeep no\n")
    disk.call("ended")
    assert disk.name == "quickstart+1.conf"


@pytest.mark.parametrize("verb", ["look", "confirm", "ended"])
@pytest.mark.parametrize("content", [b"other", None])
def test_a_changed_kernel(disk: Disk, content: bytes | None, verb: str) -> None:
    (disk.esp / KERNEL).unlink()
    if content:
        (disk.esp / KERNEL).write_bytes(content)
    disk.boots()
    disk.call(verb)
    assert disk.name == "quickstart.off"
    assert "because the kernel has changed" in disk.said
    disk.call("enable")
    assert disk.name == "quickstart.off"
    assert "still no fast start" in disk.said


def test_a_look_says_nothing_of_a_try(disk: Disk) -> None:
    """dpkg may run in a boot that does not come to its end."""
    disk.boots()
    disk.call("look")
    assert disk.name == "quickstart+0-1.conf"


def test_it_is_removed(disk: Disk) -> None:
    (disk.esp / "quickstart").mkdir()
    disk.call("remove")
    assert sorted(each.name for each in disk.entries.iterdir()) == ["debian.conf"]
    assert not (disk.esp / "quickstart").exists()
    assert disk.call("state") == ""
    for verb in ("confirm", "ended", "enable"):
        disk.call(verb)
