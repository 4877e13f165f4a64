"""Several real machines from one volume: each gets ready, each keeps its own writes, and a dead volume ends them all."""

from __future__ import annotations

import dataclasses
import io
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.guest import executing
from quickstart.launch.accel import tcg
from quickstart.measure import clock
from quickstart.measure.clock import Clock
from quickstart.measure.configuration import Boot, machine_of
from quickstart.measure.launches import launch
from quickstart.measure.run import BOOT_LOADER, Bench
from quickstart.model.machine import NbdSocket, on_volume
from quickstart.volume.emulator import served
from quickstart.volume.nbd import Command, Connection, pieces
from quickstart.volume.storage import load_model
from tests.unit import benchdata
from tests.vm.conftest import MEASURED_S, assert_gone, children

CELL = dataclasses.replace(benchdata.CELL, storage="ebs-cold", clock="wall", pattern="burst", instances=2)
WALL = Clock("wall", tcg("a test"), 1024, 1)


@pytest.fixture(scope="module")
def boot(boot: Boot) -> Boot:
    # Init stays PID 1, and is sooner done; machines share processors here (measure.patterns).
    return dataclasses.replace(boot, cmdline=f"{boot.cmdline} quickstart=stay no_timer_check")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = set(children(os.getpid()))
    threads = threading.active_count()
    yield
    assert_gone([pid for pid in children(os.getpid()) if pid not in before])
    assert threading.active_count() == threads


def test_every_machine_of_a_burst_gets_ready_and_has_its_own_numbers(bench: Bench, boot: Boot) -> None:
    samples = launch(bench, boot, WALL, load_model("ebs-cold"), CELL, 3)
    assert [(each.cell, each.number, each.instance) for each in samples] == [(CELL, 3, 1), (CELL, 3, 2)]
    assert [each.censored for each in samples] == ["", ""]
    assert min(each.launched_ns for each in samples) == 0
    for each in samples:
        assert each.t_total_ns == each.t_pr_ns + each.t_app_ns > each.fetch_ns > 0
        # Its own requests, by the log's instance, and not the other's.
        assert 0 < each.guest.requests <= each.volume.requests <= each.guest.requests + 6
        assert {"kernel", "init", "root mount"} <= {phase.name for phase in each.phases}


def test_a_machine_keeps_what_it_writes_to_itself(bench: Bench, boot: Boot) -> None:
    tokens = {number: secrets.token_hex(16) for number in (1, 2)}
    with served(bench.volume, boot.volume, load_model("local"), instances=2) as volume:
        with ExitStack() as stack:
            guests = {}
            for number in tokens:
                mine = on_volume(machine_of(boot), NbdSocket(volume.of(number).socket))
                launcher = bench.launchers(WALL.accelerator)
                guests[number] = executing(stack.enter_context(launcher.launch(mine, boot.ready)))
            for number, guest in guests.items():
                guest.wait_ready(MEASURED_S)
                command = f"echo {tokens[number]} >/var/tmp/mine && sync && cat /var/tmp/mine"
                said = io.BytesIO()
                assert guest.execute(command, said, io.BytesIO(), MEASURED_S) == 0
                assert said.getvalue().decode().strip() == tokens[number]
        # Where a machine has written is read by both: its own has the token, the other's has not.
        for number, token in tokens.items():
            wrote = [each for each in volume.of(number).log() if each.command == Command.WRITE]
            found = []
            for reader in tokens:
                with Connection(volume.of(reader).socket) as connection:
                    data = [bytes(connection.read(each.offset, each.length_bytes).data) for each in wrote]
                found += [reader] * any(token.encode() in each for each in data)
            assert found == [number]


@pytest.mark.parametrize("booting", [False, True])
def test_a_volume_that_dies_censors_all(bench: Bench, boot: Boot, booting: bool) -> None:
    at = 2 * len(list(pieces(boot.fetched, BOOT_LOADER.request_bytes))) + 4 if booting else 9
    broken = dataclasses.replace(bench, fault=f"death:{at}")
    samples = launch(broken, boot, WALL, load_model("ebs-warm"), CELL, 1)
    assert [each.instance for each in samples] == [1, 2]
    assert all(each.censored and each.t_total_ns == 0 for each in samples), samples


def test_ctrl_c_ends_all_of_them_at_once(bench: Bench, boot: Boot) -> None:
    """While both are on their way; MEASURED_S is long."""
    before = set(children(os.getpid()))

    def press() -> None:
        end_s = time.monotonic() + MEASURED_S
        while time.monotonic() < end_s:
            names = [Path(f"/proc/{pid}/comm") for pid in children(os.getpid()) if pid not in before]
            if sum(each.exists() and each.read_text().startswith("qemu") for each in names) == 2:
                break
            time.sleep(0.1)
        # To the process: the thread that waits hears it.
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(bench, boot, WALL, load_model("ebs-warm"), CELL, 1)
    finally:
        presser.join()
        signal.signal(signal.SIGINT, handler)


def test_the_virtual_clock_is_refused(bench: Bench, boot: Boot) -> None:
    cell = dataclasses.replace(CELL, clock="virtual")
    with pytest.raises(BadInputError, match="the virtual clock cannot time several guests"):
        launch(bench, boot, clock.virtual("small"), load_model("local"), cell, 1)
