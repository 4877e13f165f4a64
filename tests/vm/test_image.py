"""`build --image`: a disk as Debian's cloud images are boots by itself, fast, and finds its way back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.artefact.directory import load
from quickstart.host.door import tool_path
from quickstart.launch import arguments
from quickstart.model import MIB
from quickstart.model.machine import Machine
from quickstart.model.words import Firmware, ReadyKind
from quickstart.profile import load_profile
from quickstart.store.store import Store
from tests.images.layouts import Layout
from tests.images.lookalike import ROOT_MIB, look_alike
from tests.vm.conftest import host, quickstart
from tests.vm.imaging import Made, image_made
from tests.vm.test_inspect import digest

BUILD_S = 3600.0
TRUNCATE = (
    "mount -n -o remount,rw /; truncate -s 1M /boot/quickstart/initramfs.img; sync; mount -n -o remount,ro /"
)
# The first program of a broken initramfs.
FALSE = "#!/busybox sh\nexit 1\n"
PANIC = "#!/busybox sh\n/busybox mount -t proc proc /proc\necho c >/proc/sysrq-trigger\n"
BREAK = """\
set -e
mount -n -o remount,rw /
cp /run/quickstart-image/initramfs.img /boot/quickstart/
"""
# As after a move of the root to a file system with another UUID, without a call of update-grub.
MOVE = """\
set -e
mount -n -o remount,rw /
sed -i '/--id quickstart/,/^}/s/root=UUID=[^ ]*/root=UUID=5a1f3a60-0000-4f6e-9d2f-5d1a7f3f0a01/' /boot/grub/grub.cfg
grep -q root=UUID=5a1f3a60-0000 /boot/grub/grub.cfg
"""
TRY_AGAIN = """\
grub-editenv /boot/grub/grubenv unset quickstart_state
sync
mount -n -o remount,ro /
"""
FAULTS = {
    "init is false": (BREAK, FALSE),
    "the kernel panics": (BREAK, PANIC),
    "the root has moved": (MOVE, ""),
}
# The disk is larger than its table says by this.
MORE_MIB = 512
# journald keeps what init writes into the kernel's log. Each of the two boots was like this.
UNCHANGED_AND_LARGER = f"""\
set -e
[ $(($(stat -f -c '%S * %b' /) >> 20)) -gt {ROOT_MIB + MORE_MIB * 3 // 4} ]
journalctl -q -D /var/log/journal -o cat SYSLOG_IDENTIFIER=quickstart | grep '^the root volume is' >/run/said
sort /run/said | uniq -c
[ "$(grep -c 'as stamped' /run/said)" = 2 ]
! grep -v 'as stamped' /run/said
"""


@pytest.fixture(scope="module")
def made(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with image_made(store, tmp_path_factory.mktemp("image"), Layout.CLOUD) as made:
        yield made


def test_it_boots_by_itself_fast_and_again(made: Made) -> None:
    """Each boot is confirmed: GRUB's note is gone. No boot, not even the first, compares the packed files. The first
    one enlarges the root.
    """
    disk = made.artefact.disk
    os.truncate(disk, disk.stat().st_size + MORE_MIB * MIB)
    for firmware in (Firmware.BIOS, Firmware.UEFI):
        console = made.boot(firmware)
        assert b"hand-off: nginx.service was started from /fast" in console
        assert b"fallback" not in console
        assert made.state() == ""
    made.execute(UNCHANGED_AND_LARGER)


# What QEMU attaches the disk by, in place of virtio-blk; a firmware boots from each. Debian's cloud kernel has no driver for AHCI.
CONTROLLERS = {
    "nvme": ("nvme,drive=root,serial=1,addr=4,bootindex=0",),
    "virtio-scsi": ("virtio-scsi-pci,id=scsi,addr=4", "scsi-hd,drive=root,bus=scsi.0,bootindex=0"),
    "ide": ("piix3-ide,id=ide,addr=4", "ide-hd,drive=root,bus=ide.0,bootindex=0"),
}


@pytest.mark.full
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_another_disk_controller(made: Made, controller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part A has its driver, though no traced boot has needed it."""
    plain = arguments._disk_arguments

    def attached(machine: Machine, fd: int | None) -> tuple[str, ...]:
        *drive, device, _ = plain(machine, fd)
        return (*drive, *(word for each in CONTROLLERS[controller] for word in (device, each)))

    # What looks into the disk afterwards has it by virtio-blk.
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "_disk_arguments", attached)
        made.boots_fast(Firmware.UEFI if controller == "nvme" else Firmware.BIOS)
    assert made.state() == ""


@pytest.mark.full
def test_an_entry_that_is_broken_gives_way_to_the_stock_system(made: Made) -> None:
    """After one boot that fails, the stock system comes by itself. It comes to its end, so that GRUB tries once more;
    then it is off, until `quickstart enable`.
    """
    made.execute(TRUNCATE)
    states = []
    for _ in range(4):
        console = made.boot(Firmware.BIOS)
        states.append((b" login:" in console, made.state()))
    assert states == [(False, "tried"), (True, "again"), (False, "retried"), (True, "off")]


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_after_one_boot_that_fails_the_stock_system_comes(made: Made, fault: str, tmp_path: Path) -> None:
    """Nobody does anything: the kernel or our init reboots the machine, and GRUB chooses."""
    script, init = FAULTS[fault]
    made.execute(script + TRY_AGAIN, {"initramfs.img": initramfs(init, tmp_path)})
    console = made.boot(Firmware.BIOS)
    assert b" login:" not in console
    assert made.state() == "tried"
    assert b" login:" in made.boot(Firmware.BIOS)


def initramfs(init: str, place: Path) -> bytes:
    """An archive with this script as its first program."""
    tree = place / "tree"
    (tree / "proc").mkdir(parents=True)
    host("cp", tool_path("busybox"), tree / "busybox")
    (tree / "init").write_text(init)
    (tree / "init").chmod(0o755)
    host("sh", "-c", 'cd "$1" && find . | cpio --quiet -o -H newc >../initramfs.img', "sh", tree)
    return (place / "initramfs.img").read_bytes()


@pytest.mark.full
def test_a_rebuild_makes_the_disk_fast_again(made: Made) -> None:
    """It starts from the state that the tests above have left: GRUB does not try the entry any more. A second rebuild
    finds that nothing has changed.
    """
    out, profile = made.artefact.directory, made.artefact.directory.parent
    made.execute("mount -n -o remount,rw /; touch /srv/data; sync; mount -n -o remount,ro /")
    for is_made in (True, False):
        called = quickstart("rebuild", out, "--profile", profile, "--json", timeout_s=BUILD_S)
        assert json.loads(called.out)["result"]["made"] is is_made, called.err
    made.artefact = load(out)
    assert made.state() == ""
    console = made.boot(Firmware.BIOS)
    assert b"hand-off: nginx.service was started from /fast" in console
    assert made.state() == ""
    made.execute("[ -e /srv/data ]")


@pytest.mark.full
def test_every_request_has_an_owner(made: Made) -> None:
    """In a boot from the whole disk, some requests are outside of the root volume."""
    called = quickstart("verify", made.artefact.directory, "--json")
    found = json.loads(called.out)["result"]
    assert found["fallback"] in ("", None)
    assert found["unexplained"] == 0
    assert "outside of the root volume" in found["by_kind"]


@pytest.mark.full
def test_the_other_verbs(made: Made) -> None:
    called = quickstart("verify", made.artefact.directory, "--until-clean")
    assert called.status == 2
    assert "a disk that boots by itself" in called.err
    assert quickstart("ls", made.artefact.directory).status == 0


@pytest.mark.full
def test_a_profile_for_a_service_of_the_disk(made: Made, tmp_path: Path) -> None:
    """`profile new --image` finds the package and the readiness itself. What it writes is a profile for the disk."""
    disk = look_alike(made.context).disk
    before = digest(disk)
    words = ("profile", "new", "app", "--image", disk, "--unit", "nginx", "--timeout", "900")
    called = quickstart(*words, "-o", tmp_path / "app", "--json", timeout_s=BUILD_S)
    assert called.status == 0, called.err
    assert digest(disk) == before
    profile = load_profile(str(tmp_path / "app"))
    assert profile.packages == ("nginx-common",)
    assert (profile.ready.kind, profile.ready.port, profile.ready.status) == (ReadyKind.HTTP, 80, 200)
    assert profile.disk_mib == ROOT_MIB
    asks = 'a first boot starts early if the machine brings no user data for cloud-init (early = "ask")'
    assert asks in called.err
    assert "`quickstart build` needs it too (`--image`)" in (tmp_path / "app/README.md").read_text()
