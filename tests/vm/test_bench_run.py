"""One real run of a cell: a boot from a volume becomes a sample, however the boot ends."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
from pathlib import Path

import pytest

from quickstart.artefact import directory as artefacts
from quickstart.cli.firmware import free_port
from quickstart.engines.boot import machine_of
from quickstart.guest import executing
from quickstart.launch import accel
from quickstart.measure import clock
from quickstart.measure.configuration import Boot
from quickstart.measure.run import BOOT_LOADER, Bench, run_once
from quickstart.volume.nbd import pieces
from quickstart.volume.storage import StorageModel, load_model
from tests.unit import benchdata
from tests.vm.conftest import MEASURED_S, assert_gone, children

CELL = dataclasses.replace(benchdata.CELL, storage="5ms")
LATENCY_NS = 5_000_000


@pytest.fixture(scope="module")
def slow() -> StorageModel:
    return dataclasses.replace(load_model("local"), read_latency_ns=LATENCY_NS, write_latency_ns=LATENCY_NS)


def test_a_virtual_run_becomes_a_sample_whose_parts_add_up(
    bench: Bench, boot: Boot, slow: StorageModel
) -> None:
    before = set(children(os.getpid()))
    found = run_once(bench, boot, clock.virtual("small"), slow, CELL, 3)
    assert (found.censored, found.cell, found.number) == ("", CELL, 3)
    assert found.t_total_ns == found.t_pr_ns + found.t_app_ns
    assert found.t_pr_ns == found.fetch_ns + found.before_kernel_ns
    assert 0 < found.uptime_ns < found.ready_uptime_ns == found.t_app_ns
    # One request after the other, each of which the model answers after 5 ms: to the nanosecond, on whatever host.
    requests = len(list(pieces(boot.fetched, BOOT_LOADER.request_bytes)))
    assert found.fetch_ns == requests * LATENCY_NS
    assert found.initramfs_bytes == boot.initrds[0].stat().st_size
    # QEMU and the firmware read sector 0; what the guest asked for after it was ready may be in the log.
    assert 2 <= found.volume.requests - found.guest.requests <= 6
    assert found.guest.requests > 8 and found.guest.read_bytes > found.guest.requests * 512
    assert 0 <= found.overlap_ns <= found.volume.requests * 2 * LATENCY_NS
    parts = {each.name: each for each in found.phases}
    beside = parts.pop("network")
    assert beside.end_ns == found.uptime_ns
    chain = list(parts.values())
    names = [
        "before kernel",
        "kernel",
        "init",
        "modules",
        "root mount",
        "integrity",
        "enter root",
        "application start",
    ]
    assert [each.name for each in chain][: len(names)] == names
    assert (chain[0].begin_ns, chain[-1].end_ns) == (-found.before_kernel_ns, found.t_app_ns)
    gaps_ns = [after.begin_ns - each.end_ns for each, after in itertools.pairwise(chain)]
    assert not any(gaps_ns)
    assert_gone([pid for pid in children(os.getpid()) if pid not in before])


def test_the_virtual_clock_has_a_time_stamp_counter_of_nanoseconds(bench: Bench, artefact: Path) -> None:
    """What before_kernel_ns rests on: the kernel itself measures 1 GHz, and the counter began with the machine."""
    machine = machine_of(artefacts.load(artefact), stock=False, snapshot=True, port=free_port())
    said = io.BytesIO()
    launcher = bench.launchers(clock.virtual("small").accelerator)
    with launcher.launch(machine, artefacts.load(artefact).ready) as launched:
        guest = executing(launched)
        counters = guest.wait_ready(MEASURED_S).counters
        # The kernel goes on measuring for a second or two; the application may be ready before.
        wait = "for _ in $(seq 120); do dmesg | grep -q 'tsc: Refined' && break; sleep 0.5; done; dmesg"
        assert guest.execute(wait, said, io.BytesIO(), MEASURED_S) == 0
    refined = re.search(rb"tsc: Refined TSC clocksource calibration: ([0-9.]+) MHz", said.getvalue())
    assert refined is not None and abs(float(refined[1]) - 1000) < 0.1
    assert 0 < counters.tsc - counters.uptime_ns < 500_000_000


def test_a_guest_that_never_gets_ready_is_censored(bench: Bench, boot: Boot, slow: StorageModel) -> None:
    before = set(children(os.getpid()))
    wrong = dataclasses.replace(boot, ready=dataclasses.replace(boot.ready, path="/nothing-is-here"))
    found = run_once(dataclasses.replace(bench, limit_s=40), wrong, clock.virtual("small"), slow, CELL, 0)
    assert "was not ready after 40 s" in found.censored
    assert (found.t_total_ns, found.t_app_ns, found.phases) == (0, 0, ())
    assert_gone([pid for pid in children(os.getpid()) if pid not in before])


@pytest.mark.parametrize(
    ("fault", "booting", "said"),
    [
        ("death", False, "the volume"),  # while kernel and initramfs are fetched
        ("death", True, "the guest lost its root volume"),
        ("stall", True, "the volume left a request unanswered for"),
    ],
)
def test_a_volume_that_fails_makes_a_censored_sample(
    bench: Bench, boot: Boot, slow: StorageModel, fault: str, booting: bool, said: str
) -> None:
    before = set(children(os.getpid()))
    # A fast start asks its volume for little more than the mount does.
    at = len(list(pieces(boot.fetched, BOOT_LOADER.request_bytes))) + 10 if booting else 5
    broken = dataclasses.replace(bench, fault=f"{fault}:{at}", limit_s=60)
    found = run_once(broken, boot, clock.virtual("small"), slow, CELL, 0)
    assert said in found.censored and found.t_total_ns == 0
    assert_gone([pid for pid in children(os.getpid()) if pid not in before])


def test_on_the_host_s_clock_nfs_is_a_real_server(bench: Bench, boot: Boot) -> None:
    before = set(children(os.getpid()))
    wall = clock.Clock("wall", accel.tcg("a guest by the host's clock"), 1740, 1)
    cell = dataclasses.replace(CELL, storage="nfs-100m", clock="wall")
    found = run_once(bench, boot, wall, load_model("nfs-100m"), cell, 1)
    assert (found.censored, found.overlap_ns) == ("", 0)
    assert found.t_total_ns == found.t_pr_ns + found.t_app_ns
    # 100 Mbit/s carry no more than this, headers left out.
    assert found.fetch_ns > sum(length for _, length in boot.fetched) * 80
    # QEMU's count of what the machine asked for: the firmware reads sector 0, the guest what it has asked for and not got yet.
    assert 1 <= found.volume.requests - found.guest.requests <= 6
    assert found.guest.requests > 5 and found.guest.read_bytes > found.guest.requests * 512
    assert_gone([pid for pid in children(os.getpid()) if pid not in before])


def test_an_nfs_server_without_the_image_makes_a_censored_sample(bench: Bench, boot: Boot) -> None:
    wall = clock.Clock("wall", accel.tcg("a guest by the host's clock"), 1740, 1)
    gone = dataclasses.replace(boot, volume=boot.volume.with_name("gone"))
    found = run_once(bench, gone, wall, load_model("nfs-100m"), CELL, 1)
    assert "NFS3ERR_NOENT" in found.censored and found.t_total_ns == 0
