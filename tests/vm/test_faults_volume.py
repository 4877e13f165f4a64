"""Whatever is the matter with the root volume, the machine works in the end; test_faults.py lists all faults."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines import boot as pipeline
from quickstart.image.superblock import read_superblock
from quickstart.initramfs.newc_reader import read_archive
from quickstart.store.store import Store
from tests.guests import launched
from tests.vm.booting import FAST, SETTLED, WHOLE, WHOLE_S, WORKING, boot, reachable_for_qemu
from tests.vm.conftest import BOOT_S, host, quickstart
from tests.vm.test_stale import LIBRARY


@pytest.mark.full
def test_a_volume_with_errors_is_checked_by_the_distribution(used: Path) -> None:
    """Its fsck mends the volume and reboots the machine, which then comes up."""
    host("debugfs", "-w", "-R", "set_super_value state 2", used / "root.raw")
    called = quickstart("run", used, "--console", "--json", "--exec", WHOLE, timeout_s=1200)
    assert called.status == 0, called.err
    assert called.result["exec_stdout"].split() == WORKING
    assert (
        "fallback 1: the root volume needs a check (state 0002); the stock init takes over" in called.console
    )
    assert "reboot: machine restart" in called.console
    assert "failed with exit status" not in called.console


@pytest.mark.full
def test_after_a_power_cut_the_journal_is_replayed(store: Store, used: Path) -> None:
    found = artefacts.load(used)
    machine = pipeline.machine_of(found, stock=False, snapshot=False, port=free_port())
    with launched(machine, found.ready, store) as guest:
        guest.wait_ready(BOOT_S)
        write = "for n in 1 2 3 4 5 6 7 8; do mkdir /root/d$n; echo $n >/root/d$n/f; sync /root/d$n/f; done"
        assert guest.execute(write, io.BytesIO(), io.BytesIO(), WHOLE_S) == 0
    assert "needs_recovery" in host("dumpe2fs", "-h", used / "root.raw")
    ended = boot(store, used, command=f"cat /root/d*/f; {WHOLE}")
    assert ended.said == [*"12345678", *FAST]
    assert ended.fallbacks == []


@pytest.mark.full
def test_a_full_volume(store: Store, used: Path) -> None:
    """Nothing can be written, by anybody. The machine comes up all the same, and goes on when there is room."""
    fill = (
        "dd if=/dev/zero of=/root/full bs=1M 2>/dev/null; dd if=/dev/zero of=/root/fuller bs=1k 2>/dev/null; "
        "sync; df --output=avail / | tail -1"
    )
    # The first boot, which makes keys, is another one.
    first = quickstart("run", used, "--exec", f"{SETTLED}wait_settled; {fill}", timeout_s=WHOLE_S)
    assert first.out.split() == ["0"], first.err
    free = "df --output=avail / | tail -1; rm /root/full*; echo here >/root/x; cat /root/x; systemctl restart nginx; "
    # It has a private /tmp, for which there is no room on a stock boot either.
    reset = "systemctl reset-failed e2scrub_reap.service 2>/dev/null; "
    ended = boot(store, used, command=f"{SETTLED}wait_settled; {reset}{WHOLE}; {free} {WHOLE}")
    assert ended.said == [*FAST, "0", "here", *WORKING]
    assert ended.fallbacks == []


@pytest.fixture
def other(used: Path) -> Iterator[Path]:
    """A second volume: another system, with another UUID and another library."""
    with reachable_for_qemu() as place:
        disk = place / "other.raw"
        _other_system(used, disk)
        disk.chmod(0o644)
        yield disk


def _other_system(used: Path, disk: Path) -> None:
    host("cp", "--sparse=always", used / "root.raw", disk)
    host("tune2fs", "-U", OTHER_UUID, disk)
    replace_library(disk)
    fstab = used.parent / "fstab"
    found = host("debugfs", "-R", "cat /etc/fstab", disk)
    mine = read_superblock(used / "root.raw").uuid
    assert mine in found
    fstab.write_text(found.replace(mine, OTHER_UUID))
    for command in ("rm /etc/fstab", f"write {fstab} fstab", "ln /fstab /etc/fstab", "unlink /fstab"):
        host("debugfs", "-w", "-R", command, disk)


OTHER_UUID = "5a5a5a5a-0000-4000-8000-0123456789ab"


def replace_library(disk: Path) -> None:
    """The very same content in another file, on a disk whose machine is off."""
    kept = disk.parent / "library"
    host("debugfs", "-R", f"dump {LIBRARY} {kept}", disk)
    for command in (f"rm {LIBRARY}", f"write {kept} {Path(LIBRARY).name}"):
        host("debugfs", "-w", "-R", command, disk)
    host("debugfs", "-w", "-R", f"ln /{Path(LIBRARY).name} {LIBRARY}", disk)


@pytest.mark.full
@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"root=UUID={OTHER_UUID}", f"{LIBRARY} is not as it was packed"),
        ("root=/dev/vdb", "root=/dev/vdb"),
    ],
)
def test_another_root_volume_is_booted_the_stock_way(
    store: Store, used: Path, other: Path, word: str, said: str
) -> None:
    """The command line names a volume that the fast start was not built for: that one it is, by its own init."""
    second = f"file={other},format=raw,if=none,id=other,snapshot=on"
    words = ("-drive", second, "-device", "virtio-blk-pci,drive=other,addr=6")
    ended = boot(store, used, append=word, qemu=words, command=f"{WHOLE}; findmnt -n -o UUID /")
    assert ended.said == [*WORKING, OTHER_UUID]
    assert ended.fallbacks == [f"fallback 1: {said}; the stock init takes over"]


@pytest.mark.full
def test_a_stamp_of_another_mount_is_not_believed(store: Store, used: Path) -> None:
    """It was true once: then somebody mounted the volume without our shutdown, and changed a library."""
    disk = used / "root.raw"
    build = artefact_build(used)
    block = read_superblock(disk)
    replace_library(disk)
    stamp = f"1:{build}:{block.mount_count}:{block.write_time_s}"
    for command in (f"symlink /.quickstart {stamp}", f"set_super_value mnt_count {block.mount_count + 1}"):
        host("debugfs", "-w", "-R", command, disk)
    ended = boot(store, used)
    assert ended.said == WORKING
    assert ended.fallbacks == [f"fallback 1: {LIBRARY} is not as it was packed; the stock init takes over"]


def artefact_build(out: Path) -> str:
    """The name of the pair of parts, as init knows it."""
    with (out / "initramfs.img").open("rb") as file:
        config = next(each for each in read_archive(file) if each.name == "fast/quickstart/config")
    return dict(line.split("=", 1) for line in config.data.decode().splitlines())["BUILD"]
