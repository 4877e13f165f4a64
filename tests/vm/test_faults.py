"""Whatever goes wrong on the fast way ends in a working machine, and the console says which way back was taken.

A fault is either on the disk, or a hook: a line of shell that init reads out of the launch archive before it does anything of note
(docs/agent.md), here to damage what init has.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart import pipeline
from quickstart.cli.run import free_port
from quickstart.image import artefact as artefacts
from quickstart.initramfs.newc_reader import read_archive
from quickstart.launch import payload
from quickstart.launch.qemu import QemuGuest
from quickstart.progress import Quiet
from quickstart.store import Store, default_root
from tests.vm.conftest import BOOT_S, STAY, host, quickstart

WHOLE = (
    "until systemctl is-system-running --wait 2>/dev/null | grep -q -e running -e degraded; do sleep 1; done; "
    "systemctl is-system-running; cat /proc/1/comm; systemctl is-active nginx ssh cron; "
    "readlink /proc/$(cat /run/nginx.pid)/exe"
)
WORKING = ["running", "systemd", "active", "active", "active", "/usr/sbin/nginx"]
WHOLE_S = 300.0


@dataclass(frozen=True)
class Ended:
    """What a machine answered once it was ready, and its console."""

    said: list[str]
    console: str

    @property
    def fallbacks(self) -> list[str]:
        return re.findall(r"quickstart: (fallback \d: [^\r\n]*)", self.console)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store(default_root(), print) as found:
        yield found


def boot(store: Store, out: Path, *, hook: str = "", command: str = WHOLE, append: str = "") -> Ended:
    """Boot OUT with a fault, wait until it answers, run ``command`` in it; what it writes is thrown away."""
    found = artefacts.load(out)
    machine = pipeline.machine_of(found, stock=False, snapshot=True, port=free_port(), extra_cmdline=append)
    hooks = {"hooks/50-fault": f"{hook}\n".encode()} if hook else {}
    cpio = payload.launch_cpio(payload.agent_binary(store), found.ready, hooks)
    launcher = pipeline.make_launcher(found.kernel, store, Quiet())
    said = io.BytesIO()
    with launcher.launch(machine, (cpio,), found.ready) as guest:
        guest.wait_ready(BOOT_S)
        guest.execute(command, said, io.BytesIO(), WHOLE_S)
        return Ended(said.getvalue().decode().split(), whole_console(guest))


def whole_console(guest: QemuGuest) -> str:
    return guest.console_log.read_text(errors="replace")


# What is broken in init's own files, and how the console names it.
HOOKS = {
    "no lease": (
        "start_dhcp() { ip link set lo up; ip link set $INTERFACE up; mkdir -p $Q/run; "
        "udhcpc -f -n -i lo -t 2 -T 1 -s /none & DHCP=$!; }",
        # By its own end or by the limit.
        "fallback 1: no DHCP lease on ens3",
    ),
    "never listens": (
        "sed -i 's/^READY_PORT=.*/READY_PORT=FFFF/' $Q/config; sed -i 's/^READY_LIMIT_S=.*/READY_LIMIT_S=2/' $Q/hand-off; "
        "READY_PORT=FFFF",
        "fallback 1: nginx.service did not listen within 2 s; the stock init takes over",
    ),
    "no cgroup2": (
        "sed -i 's/-t cgroup2/-t none-such/' $Q/second",
        "fallback 1: no cgroup2; the stock init takes over",
    ),
    "no interface": (
        "INTERFACE=ens9; name_interface() { return 1; }",
        "fallback 1: no network interface to be called ens9; the stock init takes over",
    ),
    "no drop-in": (
        "sed -i 's#^UNITS=.*#UNITS=/proc/none#' $Q/hand-off",
        "fallback 1: /run cannot be written to; the stock init takes over",
    ),
    "no room": (
        "sed -i 's#>/run/tmpfiles.d/quickstart.conf#>/proc/none/x#' $Q/hand-off",
        "fallback 1: /run cannot be written to; the stock init takes over",
    ),
    "no bind": (
        "bind_fast() { return 1; }",
        "fallback 1: /fast cannot be bound; the stock init takes over",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOOKS)
def test_what_fails_in_init_is_named_and_the_stock_system_comes(
    store: Store, artefact: Path, name: str
) -> None:
    hook, said = HOOKS[name]
    ended = boot(store, artefact, hook=hook)
    assert ended.said == WORKING
    assert len(ended.fallbacks) == 1
    assert ended.fallbacks[0].startswith(said)
    assert ended.fallbacks[0].endswith("; the stock init takes over")


def test_a_process_that_dies_after_the_first_answer_is_started_again(store: Store, artefact: Path) -> None:
    """Before systemd has adopted it: adopt finds it dead. The unit is then the image's own."""
    kill = "kill -9 $(cat /sys/fs/cgroup/system.slice/nginx.service/cgroup.procs); "
    ended = boot(
        store, artefact, command=f"{kill} until systemctl is-active -q nginx; do sleep 1; done; {WHOLE}"
    )
    assert ended.said == WORKING
    assert len(ended.fallbacks) == 1
    assert ended.fallbacks[0].startswith("fallback 1: nginx.service has ended; ")


@pytest.mark.full
def test_a_program_that_ends_early_is_started_the_stock_way(store: Store, used: Path) -> None:
    """Its log lies where only systemd makes a directory: the early start fails, the stock one does not."""
    edit = "sed -i 's#^error_log .*#error_log /run/systemd/journal/nginx.log;#' /etc/nginx/nginx.conf; cat /etc/nginx/nginx.conf"
    edited = quickstart("run", used, *STAY, "--exec", edit)
    assert "error_log /run/systemd/journal/nginx.log;" in edited.out
    ended = boot(store, used)
    assert ended.said == WORKING
    assert len(ended.fallbacks) == 1 and "nginx.service did not start: " in ended.fallbacks[0]


@pytest.mark.full
def test_a_volume_with_errors_is_checked_by_the_distribution(used: Path) -> None:
    """Its fsck mends the volume and reboots the machine, which then comes up."""
    host("debugfs", "-w", "-R", "set_super_value state 2", used / "root.raw")
    called = quickstart("run", used, "--console", "--json", "--exec", WHOLE, timeout_s=600)
    assert called.status == 0, called.err
    assert called.result["exec_stdout"].split() == WORKING
    assert "fallback 1: the root volume needs a check (state 0002); the stock init takes over" in called.err
    assert "reboot: machine restart" in called.err


@pytest.mark.full
def test_after_a_power_cut_the_journal_is_replayed(store: Store, used: Path) -> None:
    found = artefacts.load(used)
    machine = pipeline.machine_of(found, stock=False, snapshot=False, port=free_port())
    launcher = pipeline.make_launcher(found.kernel, store, Quiet())
    with launcher.launch(machine, (), found.ready) as guest:
        guest.wait_ready(BOOT_S)
        write = "for n in 1 2 3 4 5 6 7 8; do mkdir /root/d$n; echo $n >/root/d$n/f; sync /root/d$n/f; done"
        assert guest.execute(write, io.BytesIO(), io.BytesIO(), WHOLE_S) == 0
    assert "needs_recovery" in host("dumpe2fs", "-h", used / "root.raw")
    ended = boot(store, used, command=f"cat /root/d*/f; {WHOLE}")
    assert ended.said == [*"12345678", *WORKING[:-1], "/fast/usr/sbin/nginx"]
    assert ended.fallbacks == []


@pytest.mark.full
def test_a_full_volume(store: Store, used: Path) -> None:
    """Nothing can be written: not by us, not by nginx. The machine comes up all the same, and says so by its own means."""
    fill = (
        "dd if=/dev/zero of=/root/full bs=1M 2>/dev/null; dd if=/dev/zero of=/root/fuller bs=1k 2>/dev/null; "
        "sync; df --output=avail / | tail -1"
    )
    assert quickstart("run", used, *STAY, "--exec", fill).out.split() == ["0"]
    ended = boot(
        store, used, command="cat /proc/1/comm; systemctl is-active nginx; rm /root/full*; echo removed"
    )
    assert ended.said[-1] == "removed"


@pytest.mark.full
def test_without_a_driver_the_boot_loaders_way_back(store: Store, used: Path) -> None:
    """Fallback 2 is a reboot, after which the boot loader, here `run`, takes the stock entry."""
    # Hooks come after the first round of drivers.
    hook = "$Q/busybox rmmod virtio_blk; rm $Q/modules.d/virtio_blk.ko"
    found = artefacts.load(used)
    machine = pipeline.machine_of(found, stock=False, snapshot=True, port=free_port())
    cpio = payload.launch_cpio(
        payload.agent_binary(store), found.ready, {"hooks/50-fault": f"{hook}\n".encode()}
    )
    launcher = pipeline.make_launcher(found.kernel, store, Quiet())
    with launcher.launch(machine, (cpio,), found.ready) as guest:
        assert guest.wait(BOOT_S)
        assert re.search(r"quickstart: fallback 2: no volume with UUID .*; rebooting", whole_console(guest))


def test_a_flipped_byte_of_part_b_is_named_and_the_stock_system_comes(store: Store, used: Path) -> None:
    with (used / "initramfs.img").open("r+b") as file:
        largest = max((each for each in read_archive(file) if each.archive == 1), key=lambda each: each.size)
        place = largest.offset + largest.size // 3
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    ended = boot(store, used)
    assert ended.said == WORKING
    assert ended.fallbacks == [
        f"fallback 1: part B of the initramfs is damaged: /{largest.name} (content); the stock init takes over"
    ]


@pytest.mark.full
def test_a_check_that_does_not_come_to_its_end_is_damage(store: Store, artefact: Path) -> None:
    """Init waits for a process that crashes."""
    ended = boot(store, artefact, hook="$Q/busybox sh -c 'kill -SEGV $$' & CHECKER=$!")
    assert ended.said == WORKING
    assert ended.fallbacks == [
        "fallback 1: part B of the initramfs is damaged: the check did not end well; the stock init takes over"
    ]


@pytest.mark.full
def test_a_damaged_part_a_is_answered_by_the_stock_entry(used: Path) -> None:
    """The kernel finds no init and panics; the machine reboots after panic=10, and `run` boots the stock initramfs."""
    with (used / "initramfs.img").open("r+b") as file:
        file.seek(6)
        file.write(b"x" * 100)
    called = quickstart("run", used, "--snapshot", "--json", "--exec", WHOLE, timeout_s=600)
    assert called.status == 0, called.err
    assert called.result["exec_stdout"].split() == WORKING
    assert called.result["fallback"].startswith("fallback 2: the guest ended before it was ready")
