"""Never stale: the stamp of a clean shutdown, packages that change packed files or others, the early start
turned off and on, and the package removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quickstart.image.superblock import read_superblock
from tests.vm.conftest import STAY, guest_file, host, quickstart
from tests.vm.test_disk import stock_boot_says
from tests.vm.turns import turn_of

# Each of them has stock boots, so they take turns.
CHANGES = ("library", "filter")

TOOL = "/usr/sbin/quickstart"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13"
SETTLE = f"{TOOL} record /fast/quickstart"
STOCK_S = 900.0


def package(name: str, of: str, place: str) -> str:
    """Shell: make a package in the guest that brings the file ``of`` as ``place``, and install it."""
    control = f"Package: {name}\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n"
    return (
        f"mkdir -p /tmp/{name}/DEBIAN /tmp/{name}{Path(place).parent}; cp {of} /tmp/{name}{place}; "
        f"printf '{control}' >/tmp/{name}/DEBIAN/control; "
        f"dpkg-deb -b /tmp/{name} /tmp/{name}.deb >/dev/null && dpkg --force-overwrite -i /tmp/{name}.deb"
    )


def status(out: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A boot's result, and what the machine says of it."""
    called = quickstart(
        "run", out, *STAY, "--json", "--exec", f"{TOOL} status --json", *words, timeout_s=STOCK_S
    )
    assert called.status == 0, called.err
    return called.result, json.loads(called.result["exec_stdout"])["result"]


def stock(out: Path, command: str) -> tuple[str, str]:
    """A stock boot, a command in it, and its shutdown in order: what the command and what the console said."""
    called = quickstart("run", out, "--stock", "--console", "--exec", command, timeout_s=STOCK_S)
    assert called.status == 0, called.err[-3000:]
    return called.out, called.console


def stamp_of(out: Path) -> str:
    said = host("debugfs", "-R", "stat /.quickstart", out / "root.raw")
    assert "Type: symlink" in said, said
    # In the inode itself: no block is read for it.
    return said.partition('Fast link dest: "')[2].partition('"')[0]


@pytest.fixture(scope="module")
def settled(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An OUT whose machine was booted fast, recorded what is packed, was booted the stock way and shut down."""
    copy = tmp_path_factory.mktemp("settled") / "nginx"
    host("cp", "-a", "--sparse=always", artefact, copy)
    first = quickstart("run", copy, *STAY, "--json", "--exec", f"{SETTLE} && {TOOL} status --json")
    assert first.status == 0, first.err
    said = json.loads(first.result["exec_stdout"])["result"]
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as built")
    assert (said["fast_mounted"], said["enabled"], said["stamp"]) == (True, True, "")
    assert (said["next_boot"], said["differing"]) == ("fast, unless a packed file changes", [])
    out, console = stock(copy, f"{TOOL} status; dpkg --verify quickstart-guest; {TOOL} kernel 9.9")
    assert "this boot  stock: QuickStart's initramfs was not booted" in out
    assert "goes on with kernel 6." in out
    assert "quickstart: stamped: mount " in console
    yield copy
    host("rm", "-r", copy)


@pytest.fixture
def machine(settled: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "nginx"
    host("cp", "-a", "--sparse=always", settled, copy)
    yield copy
    host("rm", "-r", copy)


def test_the_stamp_says_what_the_superblock_says(settled: Path) -> None:
    block = read_superblock(settled / "root.raw")
    build = guest_file(settled, "/var/lib/quickstart/current/facts") and stamp_of(settled).split(":")[1]
    assert stamp_of(settled) == f"1:{build}:{block.mount_count}:{block.write_time_s}"
    assert block.clean
    assert not block.needs_recovery


def test_a_stamped_volume_is_not_compared(machine: Path) -> None:
    """Fewer reads than for the comparison, which a volume written to from outside gets; it is named in the kernel's log."""
    stamped, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as stamped")
    assert stamped["fallback"] is None
    # debugfs writes without mounting: the mount count stays, the write time does not.
    host("debugfs", "-w", "-R", "write /etc/hostname written", machine / "root.raw")
    compared, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as packed, file by file")
    assert stamped["root_reads"] < compared["root_reads"]


@pytest.mark.full
def test_a_packed_file_that_was_changed_from_outside(machine: Path) -> None:
    """The very same content, in another file."""
    disk, kept = machine / "root.raw", machine / "console"
    host("debugfs", "-R", f"dump {LIBRARY} {kept}", disk)
    for command in (f"rm {LIBRARY}", f"write {kept} {Path(LIBRARY).name}"):
        host("debugfs", "-w", "-R", command, disk)
    host("debugfs", "-w", "-R", f"ln /{Path(LIBRARY).name} {LIBRARY}", disk)
    assert stock_boot_says(machine, "--snapshot") == f"fallback 1: {LIBRARY} is not as it was packed"


@pytest.mark.full
def test_a_machine_that_was_cut_off_is_compared(machine: Path) -> None:
    """Its stamp is of the mount before."""
    cut = quickstart(
        "run",
        machine,
        *STAY,
        "--exec",
        "sync; echo 1 >/proc/sys/kernel/sysrq; echo o >/proc/sysrq-trigger; sleep 60",
    )
    assert cut.status == 1, cut.err
    _, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as packed, file by file")


@turn_of("library", CHANGES)
def test_an_upgraded_library(machine: Path) -> None:
    """dpkg's trigger tells at once, the shutdown does not stamp, and the next boot is a stock one that names the file."""
    out, console = stock(machine, f"{package('newer', LIBRARY, LIBRARY)}; {TOOL} status")
    assert f"quickstart: {LIBRARY} is not as it was packed; the next boot is a stock one." in out
    assert f"next boot  stock: {LIBRARY} is not as it was packed" in out
    assert f"quickstart: not stamped: {LIBRARY} is not as it was packed" in console
    assert stock_boot_says(machine, "--snapshot") == f"fallback 1: {LIBRARY} is not as it was packed"


@pytest.mark.full
def test_a_file_that_no_package_brought(machine: Path) -> None:
    """cp over a program of the start set, in a running fast start: nothing tells dpkg, the boot finds it all the same."""
    command = "cp -p /usr/sbin/nginx /tmp/n && mv /tmp/n /usr/sbin/nginx; " + f"{TOOL} check; echo $?"
    called = quickstart("run", machine, *STAY, "--exec", command)
    assert called.out.splitlines()[-1] == "1", called.err
    assert stock_boot_says(machine, "--snapshot") == "fallback 1: /usr/sbin/nginx is not as it was packed"


@pytest.mark.full
def test_an_unrelated_package_leaves_the_fast_start(machine: Path) -> None:
    out, console = stock(
        machine, f"{package('other', '/etc/hostname', '/usr/lib/other/file')}; ls /usr/lib/other"
    )
    assert "Processing triggers for quickstart-guest" in out
    assert out.splitlines()[-1] == "file"
    assert "quickstart: stamped: mount " in console
    _, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as stamped")


def filter_package(name: str, before: str) -> str:
    """Shell: install a package whose service is enabled for multi-user.target, and has ``before`` in [Unit]."""
    unit = f"[Unit]\\n{before}\\n[Service]\\nType=oneshot\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n"
    return (
        f"printf '{unit}' >/tmp/{name}.unit; "
        f"{package(name, f'/tmp/{name}.unit', f'/usr/lib/systemd/system/{name}.service')}; "
        f"systemctl enable {name}.service; {TOOL} status"
    )


@pytest.mark.full
def test_a_service_that_waits_for_its_turn_leaves_the_fast_start(machine: Path) -> None:
    out, console = stock(machine, filter_package("other", "After=network.target"))
    assert "next boot  fast" in out
    assert "quickstart: stamped: mount " in console
    _, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as stamped")


@turn_of("filter", CHANGES)
def test_a_packet_filter_that_is_installed_later(machine: Path) -> None:
    """By a name that nobody knows, and for multi-user.target, as ufw and firewalld are."""
    link = "/etc/systemd/system/multi-user.target.wants/wall.service"
    out, console = stock(machine, filter_package("wall", "Before=network.target"))
    assert f"next boot  stock: {link} is not as it was packed" in out
    assert f"quickstart: not stamped: {link} is not as it was packed" in console
    assert stock_boot_says(machine, "--snapshot") == f"fallback 1: {link} is not as it was packed"


@pytest.mark.full
def test_off_and_on(machine: Path) -> None:
    assert quickstart("run", machine, *STAY, "--exec", f"{TOOL} disable").status == 0
    assert stamp_of(machine) == "1:off"
    result, said = status(machine)
    assert (
        result["fallback"]
        == "fallback 1: disabled by /usr/sbin/quickstart disable; the stock init takes over"
    )
    assert (said["boot"], said["reason"]) == ("stock", "disabled by /usr/sbin/quickstart disable")
    assert (said["enabled"], said["next_boot"]) == (False, "stock: disabled")
    # It outlasts a shutdown.
    assert stamp_of(machine) == "1:off"
    stock(machine, f"{TOOL} enable")
    _, said = status(machine, "--snapshot")
    assert (said["boot"], said["reason"]) == ("fast", "the root volume was as stamped")


@pytest.mark.full
def test_removed_means_gone(machine: Path) -> None:
    out, _ = stock(machine, f"{TOOL} remove; ls -d /.quickstart /var/lib/quickstart /fast {TOOL} 2>&1 || :")
    assert out.count("No such file or directory") == 4
    called = quickstart("run", machine, "--snapshot", "--check", "--json", timeout_s=STOCK_S)
    assert (
        called.result["fallback"]
        == "fallback 1: the root volume has no directory /fast; the stock init takes over"
    )


# As after the hand-off, but for who made it: /fast is a directory of another file system, systemd's services have seen it.
AS_HANDED_OFF = f"""\
mkdir /tmp/ram && mount -t tmpfs ram /tmp/ram && mkdir -p /tmp/ram/fast/lib && cp {LIBRARY} /tmp/ram/fast/lib/libz.so.1
mount --bind /tmp/ram/fast /fast && mount -o remount,bind,ro /fast
systemd-run -q -u one -p PrivateTmp=yes -p ProtectSystem=full sleep 600
systemd-run -q -u two -p PrivateMounts=yes -p MountFlags=slave sleep 600
sleep 1
"""
NAMESPACES = "for u in one two; do nsenter -t $(systemctl show -P MainPID $u) -m ls -A /fast | wc -l; done\n"
LOADED = "LD_LIBRARY_PATH=/fast/lib ldd /usr/sbin/nginx | sed -n 's/.*libz.so.1 => \\([^ ]*\\).*/\\1/p'\n"


@pytest.mark.full
def test_new_processes_load_from_the_volume_once_a_library_is_upgraded(machine: Path) -> None:
    """Under the real systemd, its private namespaces included."""
    upgrade = package("newer", LIBRARY, LIBRARY)
    out, console = stock(
        machine,
        f"{AS_HANDED_OFF}{LOADED}{NAMESPACES}{upgrade} >/dev/null\n{LOADED}{NAMESPACES}"
        "cat /proc/[0-9]*/mountinfo | grep -c ' /fast ' || :",
    )
    before, after = ["/fast/lib/libz.so.1", "1", "1"], ["/lib/x86_64-linux-gnu/libz.so.1", "0", "0"]
    assert out.split() == [*before, *after, "0"], console[-3000:]


def test_a_kept_package_is_whole(settled: Path) -> None:
    """dpkg in the guest knows it, and finds it as it was."""
    ask = "dpkg --verify quickstart-guest; dpkg-query -W -f '${Status}' quickstart-guest"
    assert quickstart("run", settled, *STAY, "--snapshot", "--exec", ask).out == "install ok installed"
