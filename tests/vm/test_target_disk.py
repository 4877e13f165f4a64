"""`build --target disk`: a disk of ours boots by itself, fast, and finds its way back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.output import Display, Plain
from quickstart.ec2.emulator.faults import Trouble
from quickstart.ec2.machines import launched
from quickstart.engines.ownsystem import examined, look_into
from quickstart.host.progress import Quiet
from quickstart.measure.results import DISK_CONFIGURATIONS
from quickstart.model import MIB
from quickstart.model.words import Firmware
from quickstart.report import document
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.ec2box import emulated, left_in, own
from tests.contract.machinebox import WEB
from tests.vm.conftest import BUILD_S, quickstart
from tests.vm.ec2machines import qemu, settled_console, wait_for_end, wanted_machine
from tests.vm.imaging import CHANGE_MENU, FAST, Made, on_esp

pytestmark = pytest.mark.full
# What GRUB leaves of a boot that does not come to its end.
BREAK_GRUB = """\
set -ex
mount -n -o remount,rw /
grub-editenv /boot/grub/grubenv set quickstart_state=tried
sync
mount -n -o remount,ro /
"""


# A root volume that was restored from a copy of an earlier day may lack it.
LOSE_START_SET = """\
set -ex
mount -n -o remount,rw /
rm /.quickstart-start-set
sync
mount -n -o remount,ro /
"""
NO_START_SET = (
    b"fallback 1: part B of the initramfs is damaged: it is neither in the initramfs nor on the root volume"
)


@contextmanager
def built(store: Store, out: Path, *words: str) -> Iterator[Made]:
    """`build --target disk` of nginx at ``out``. A second build does nothing."""
    kind = ("--profile", "nginx", "--target", "disk", *words)
    line: tuple[str | Path, ...] = ("build", *kind, "-o", out, "--json")
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


def test_the_bench_measures_first_boots_of_it(with_systemd_boot: Made, tmp_path: Path) -> None:
    """The loader's reads and the kernel's are told apart, by both entries. The disk of OUT stays as it was built."""
    artefact = with_systemd_boot.artefact
    words = ("--configuration", "standard", "--configuration", "quickstart", "--storage", "local")
    kind = ("--disk", artefact.directory, "--firmware", "uefi", "--clock", "virtual", "--runs", "1")
    called = quickstart("bench", *kind, *words, "-o", tmp_path / "bench", "--json", timeout_s=BUILD_S)
    assert called.status == 0, called.err
    assert called.result["valid"]
    assert artefacts.is_as_built(artefacts.load(artefact.directory))
    stock, ours = document.load(tmp_path / "bench/results.json").samples
    assert (stock.cell.configuration, ours.cell.configuration) == DISK_CONFIGURATIONS
    for sample in (stock, ours):
        assert sample.censored == ""
        # Nothing is there but what the kernel asks for. What is in flight at ready does not come to a hundredth of it.
        assert abs(sample.volume.requests - sample.guest.requests) <= 16
        assert sample.loader.read_bytes > artefact.kernel.stat().st_size
        assert sample.firmware_ns > 0
        assert [phase.name for phase in sample.phases][:2] == ["loader", "kernel"]
    # The boot loader does not read part B, which init does.
    assert ours.loader.read_bytes < stock.loader.read_bytes - 4 * MIB
    report = (tmp_path / "bench/report.html").read_text()
    assert "Firmware and boot loader" in report


def test_an_ami_of_it_starts_fast_whatever_is_in_the_blocks_that_it_lacks(
    with_systemd_boot: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the emulated EC2: the blocks that the snapshot lacks have noise, and the volume is larger than the disk, because EC2's
    volumes have whole gibibytes. The disk is an NVMe disk, and the card has an address that the disk has never seen.
    """
    artefact = with_systemd_boot.artefact
    trouble = Trouble(throttled=0.01, unavailable=0.01, unknown_for_s=1.0, pending_for_s=1.0)
    with emulated(tmp_path, trouble, hypervisor=qemu(with_systemd_boot.store)) as emulator:
        aws = own(monkeypatch, emulator)
        called = quickstart("ami", "create", artefact.directory, "--name", "web", "--json", timeout_s=BUILD_S)
        assert called.status == 0, called.err
        assert (called.result["boot_mode"], called.result["new"]) == ("uefi", True)
        snapshot = emulator.account.snapshots[called.result["snapshot_id"]]
        # The EFI system partition is nearly empty, and so is a half of the root.
        assert len(snapshot.digests) < called.result["plan"]["blocks"] / 2
        with launched(aws, wanted_machine(called.result["image_id"]), Quiet()) as identifier:
            console = settled_console(aws, identifier)
        assert FAST.decode() in console
        assert "fallback" not in console
        wait_for_end(emulator, identifier)
        assert quickstart("ami", "delete", "web", "--yes").status == 0
        assert left_in(emulator) == []
    assert artefacts.is_as_built(artefacts.load(artefact.directory))


def test_the_bench_measures_it_in_the_emulated_ec2(
    with_systemd_boot: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is a fresh machine, whose agent has only the console to speak to. Nothing is left in the account."""
    artefact, out = with_systemd_boot.artefact, tmp_path / "bench"
    with emulated(tmp_path, hypervisor=qemu(with_systemd_boot.store, "ebs-cold")) as emulator:
        own(monkeypatch, emulator)
        words = ("--configuration", "standard", "--configuration", "quickstart", "--security-group", WEB)
        kind = ("--backend", "ec2", "--disk", artefact.directory, "--runs", "1", "--timeout", "1200")
        called = quickstart("bench", *kind, *words, "-o", out, "--json", timeout_s=BUILD_S)
        assert called.status == 0, called.err
        for instance in tuple(emulator.fleet.instances):
            wait_for_end(emulator, instance)
        assert left_in(emulator) == []
    stock, ours = document.load(out / "results.json").samples
    assert (stock.cell.configuration, ours.cell.configuration) == DISK_CONFIGURATIONS
    for sample in (stock, ours):
        assert sample.censored == ""
        assert sample.cell.clock == "ec2-emulated"
        assert 0 < sample.uptime_ns <= sample.ready_uptime_ns == sample.t_app_ns < sample.t_total_ns
        assert sample.guest.requests > 0
    assert ours.guest.requests < stock.guest.requests
    assert artefacts.is_as_built(artefacts.load(artefact.directory))


def test_systemd_boot_starts_it(with_systemd_boot: Made) -> None:
    """It boots by itself, fast, and again. After a boot that fails, the stock system comes."""
    disk = with_systemd_boot
    disk.boots_fast_again(Firmware.UEFI, "quickstart+1.conf")
    disk.comes_back()


REMOVE = on_esp("quickstart remove", "[ ! -e /usr/lib/quickstart ]", "[ ! -e /.quickstart-start-set ]")


def test_rebuild_takes_a_changed_menu_over_and_remove_leaves_nothing(with_systemd_boot: Made) -> None:
    """After the test before, the machine is to try the entry once more. That boot finds the changed menu at its end."""
    disk = with_systemd_boot
    disk.execute(CHANGE_MENU)
    disk.boots_fast(Firmware.UEFI)
    assert disk.state() == "quickstart.off"
    rebuilt = quickstart("rebuild", disk.artefact.directory, "--json", timeout_s=BUILD_S)
    assert rebuilt.status == 0, rebuilt.err
    assert b"audit=0" in disk.boots_fast(Firmware.UEFI)
    assert disk.state() == "quickstart+1.conf"
    disk.execute(REMOVE)
    disk.boots_stock(Firmware.UEFI)
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
        with_grub.boots_fast(firmware)
        assert with_grub.state() == ""
    with_grub.execute(LOSE_START_SET)
    assert NO_START_SET in with_grub.boot(Firmware.BIOS)
    with_grub.execute(BREAK_GRUB)
    with_grub.boots_stock(Firmware.BIOS)
    assert with_grub.state() == "again"
