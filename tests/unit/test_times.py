"""The times of a run, by the paper's formulas."""

from __future__ import annotations

import pytest

from quickstart.measure.times import client_times, measure, virtual_times
from quickstart.model import Beacon, Counters, Readied, ReadyStamp, RootIo


def readied() -> Readied:
    return Readied(
        launch_ns=1_000,
        beacon=Beacon(uptime_ns=300, interface="ens3", address="10.0.2.15", received_ns=1_500),
        ready=ReadyStamp(uptime_ns=800, answer="HTTP/1.1 200 OK", received_ns=2_100),
        root_io=RootIo(reads=5, read_bytes=4096, writes=1, write_bytes=512),
        counters=Counters(uptime_ns=801, tsc=1_000, text="cpu  1 2 3 4 5\n"),
    )


def test_times() -> None:
    found = measure(readied(), "standard", "tcg")
    assert (found.t_pr_ns, found.t_app_ns, found.t_total_ns) == (200, 900, 1_100)
    assert found.t_pr_ns + found.t_app_ns == found.t_total_ns
    assert (found.uptime_ns, found.ready_uptime_ns) == (300, 800)
    assert (found.root_reads, found.root_read_bytes) == (5, 4096)
    assert (found.configuration, found.answer) == ("standard", "HTTP/1.1 200 OK")


@pytest.mark.parametrize(("accelerator", "clock"), [("kvm", "kvm"), ("tcg", "wall")])
def test_clock(accelerator: str, clock: str) -> None:
    found = measure(readied(), "quickstart", accelerator)
    assert (found.accelerator, found.clock) == (accelerator, clock)


def test_virtual_times_are_the_guests() -> None:
    found = virtual_times(readied(), 5_000)
    # The time stamp counter was 199 ahead of the uptime: so long had the machine run before the kernel's clock began.
    assert (found.before_kernel_ns, found.t_app_ns) == (199, 800)
    assert found.t_pr_ns == 5_000 + 199
    assert found.t_total_ns == found.t_pr_ns + found.t_app_ns


def test_client_times_begin_before_the_fetch() -> None:
    found = client_times(readied(), 5_000)
    assert (found.t_pr_ns, found.t_app_ns, found.t_total_ns) == (5_200, 900, 6_100)
    assert found.before_kernel_ns == found.t_pr_ns - 5_000
