"""A launch of several machines that fails before any boot: what the host lacks is raised once, and nothing is left over."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quickstart.errors import GuestError, HostLacksError, MissingToolError, VolumeError
from quickstart.host.memory import available_bytes
from quickstart.launch import archive
from quickstart.launch.accel import tcg
from quickstart.launch.qemu import QemuLauncher
from quickstart.measure import launches, run
from quickstart.measure.clock import Clock
from quickstart.measure.configuration import Boot
from quickstart.measure.launches import launch
from quickstart.measure.run import Bench
from quickstart.model import MIB, Readiness
from quickstart.model.words import ReadyKind
from quickstart.volume.emulator import Volume, served
from quickstart.volume.nbd import Command, Connection
from quickstart.volume.storage import load_model
from tests.unit import benchdata

CELL = dataclasses.replace(benchdata.CELL, clock="wall", pattern="burst", instances=3)
WALL = Clock("wall", tcg("a test"), 256, 1)


@pytest.fixture
def bench(tmp_path: Path, emulator: Path) -> Bench:
    (tmp_path / "agent").write_bytes(b"never started")
    return Bench(
        launchers=lambda accelerator: QemuLauncher(accelerator, tmp_path / "agent"),
        volume=emulator,
        limit_s=20.0,
    )


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    for name, size in (("volume", 4 * MIB), ("kernel", 512), ("initrd", 512)):
        (tmp_path / name).write_bytes(bytes(size))
    return Boot(
        configuration="quickstart",
        command_line="stock",
        kernel=tmp_path / "kernel",
        initrds=(tmp_path / "initrd",),
        volume=tmp_path / "volume",
        fetched=((0, MIB),),
        attached=True,
        cmdline="ro",
        memory_mib=256,
        mac="52:54:00:12:34:56",
        ready=Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=10),
        unit="nginx.service",
    )


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    yield
    assert list((tmp_path / "tmp").iterdir()) == []
    assert threading.active_count() == 1


@pytest.mark.parametrize("pattern", ["burst", "one-by-one", "staggered"])
def test_a_tool_that_is_missing_is_no_censored_sample(
    bench: Bench, boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (tmp_path / "tools").mkdir()
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    (tmp_path / "tools/setpriv").symlink_to(setpriv)
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tmp_path / "tools"))
    # The last of those that are staggered would come after minutes.
    cell = dataclasses.replace(CELL, pattern=pattern, stagger_ms=100_000 if pattern == "staggered" else 0)
    with pytest.raises(MissingToolError, match="qemu-system-x86_64 is not installed"):
        launch(bench, boot, WALL, load_model("ebs-warm"), cell, 1)


def test_memory_is_asked_for_before_anything_is_started(
    bench: Bench, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(launches.TAKES_MIB, "small", available_bytes() // MIB)
    missing = dataclasses.replace(bench, volume=Path("/nowhere/volume"))
    with pytest.raises(HostLacksError, match="3 machines at a time take"):
        launch(missing, boot, WALL, load_model("ebs-warm"), CELL, 1)
    assert 0 < available_bytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_volume_that_dies_while_all_fetch_censors_all(bench: Bench, boot: Boot) -> None:
    broken = dataclasses.replace(bench, fault="death:7")
    found = launch(broken, boot, WALL, load_model("ebs-warm"), CELL, 2)
    assert [(each.number, each.instance, each.t_total_ns) for each in found] == [
        (2, 1, 0),
        (2, 2, 0),
        (2, 3, 0),
    ]
    assert all("the volume" in each.censored for each in found), found


def test_a_volume_that_fails_one_read_censors_one(bench: Bench, boot: Boot) -> None:
    broken = dataclasses.replace(bench, fault="error:5:1", limit_s=5)
    cell = dataclasses.replace(CELL, instances=2)
    found = launch(broken, boot, WALL, load_model("ebs-warm"), cell, 1)
    assert sum("fails a read" in each.censored for each in found) == 1
    # The other came as far as its kernel, which is none.
    assert all(each.censored for each in found)


def test_a_full_disk_in_one_machine_s_thread_is_named(
    bench: Bench, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive, "join_initrd", full)
    with pytest.raises(HostLacksError, match="no space left for the temporary directory"):
        launch(bench, boot, WALL, load_model("ebs-warm"), CELL, 1)


@pytest.mark.parametrize("fault", [None, "stall:3"])
def test_a_volume_that_many_wait_for_is_slow_and_one_that_answers_nobody_is_stalled(
    bench: Bench, boot: Boot, fault: str | None
) -> None:
    """One place and 0.4 s a request: the last of eight waits for three seconds, and somebody is answered all the time."""
    slow = dataclasses.replace(load_model("local"), read_latency_ns=400_000_000, queue_depth=1)
    with served(bench.volume, boot.volume, slow, fault=fault, instances=2) as volume, ExitStack() as stack:
        first = stack.enter_context(Connection(volume.of(1).socket))
        with Connection(volume.of(2).socket) as second:
            for machine in (first, second):
                for _ in range(4):
                    machine.send(Command.READ, 0, 512)
            time.sleep(2.2)
        # The second machine has gone, as it has when it is asked who kept it waiting.
        late = GuestError("the guest was not ready")
        if fault is None:
            run._blame(volume.of(2), late)
        else:
            with pytest.raises(VolumeError, match="left a request unanswered"):
                run._blame(volume.of(2), late)


def test_ctrl_c_waits_for_all_that_they_leave_behind(
    bench: Bench, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's thread takes a moment to clear away after the volume has ended; nobody goes on without it."""
    begun, cleared = threading.Barrier(4), []

    def slow(*of: object) -> None:
        (mine,) = [each for each in of if isinstance(each, Volume)]
        begun.wait(20)
        while mine.is_running():
            time.sleep(0.01)
        # The first is waited for when Ctrl-C comes, and is the last.
        time.sleep(2.0 if mine.instance == 1 else 0.1)
        cleared.append(mine.instance)
        raise GuestError("its volume has gone")

    def press() -> None:
        begun.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(launches, "boot_from", slow)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(bench, boot, WALL, load_model("ebs-warm"), CELL, 1)
        assert sorted(cleared) == [1, 2, 3]
    finally:
        presser.join()
        signal.signal(signal.SIGINT, handler)
