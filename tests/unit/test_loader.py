"""The boot of a disk is divided into firmware, boot loader and kernel, from the volume's log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import GuestError
from quickstart.measure.loader import LoaderTimes, computed, divided, seen_by_client
from quickstart.measure.results import Reads
from quickstart.model import Beacon, Counters, Readied, ReadyStamp, RootIo
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command
from tests.unit.test_counting import asked

READY_NS = 10_000
# What systemd-boot and OVMF read in a boot that was seen: the table, a directory, and files as a whole.
LOADER = ((0, 512), (512, 16384), (1 << 20, 512), (2 << 20, 65536), (28 << 20, 983040))
KERNEL = ((0, 4096), (4096, 4096), (8192, 131072))


def reads(places: tuple[tuple[int, int], ...], begin_ns: int = 100) -> list[Request]:
    return [
        replace(
            asked(begin_ns + index, begin_ns + index + 1),
            sequence=begin_ns + index,
            offset=offset,
            length_bytes=length,
        )
        for index, (offset, length) in enumerate(places)
    ]


def log_of(*parts: tuple[tuple[int, int], ...]) -> list[Request]:
    """A log with the reads of ``parts``, after the read of QEMU itself."""
    found = reads(((0, 512),), 10)
    for index, part in enumerate(parts):
        found += reads(part, 1000 * (index + 1))
    return found


def readied(*, tsc: int = 5_000, launch_ns: int = 500) -> Readied:
    return Readied(
        launch_ns=launch_ns,
        beacon=Beacon(uptime_ns=1_000, interface="enp0s3", address="10.0.2.15", received_ns=4_000),
        ready=ReadyStamp(uptime_ns=1_500, answer="HTTP/1.1 200 OK", received_ns=READY_NS),
        root_io=RootIo(8, 1, 0, 0),
        counters=Counters(uptime_ns=1_600, tsc=tsc, text=""),
    )


def test_the_kernel_begins_with_its_look_for_a_partition_table() -> None:
    log = divided(log_of(LOADER, KERNEL), READY_NS, len(KERNEL))
    assert (len(log.loader), len(log.kernel)) == (5, 3)
    assert (log.begin_ns, log.end_ns) == (1000, 2000)
    assert log.counted == Reads(5, sum(length for _, length in LOADER))


def test_qemus_own_read_is_none_of_the_loaders() -> None:
    """QEMU reads the first sector before the machine starts, seconds before the firmware does."""
    log = divided(log_of(LOADER, KERNEL), READY_NS, len(KERNEL))
    assert log.begin_ns == 1000
    assert log.counted.requests == len(LOADER)


def test_a_loader_may_read_a_page_at_the_begin_too() -> None:
    """Of several such reads, the one counts behind which there are as many reads as the kernel counts."""
    # After this many requests, the count decides by more than the requests in flight.
    many = tuple((index * 4096, 4096) for index in range(100))
    log = divided(log_of(((0, 4096), *LOADER), many), READY_NS, 100)
    assert (len(log.loader), len(log.kernel)) == (6, 100)


def test_reads_after_ready_and_writes_do_not_count() -> None:
    late = reads(KERNEL, READY_NS)
    writes = [replace(each, command=Command.WRITE) for each in reads(KERNEL, 1500)]
    log = divided([*log_of(LOADER, KERNEL), *late, *writes], READY_NS, len(KERNEL))
    assert (len(log.loader), len(log.kernel)) == (5, 3)


@pytest.mark.parametrize(
    ("log", "kernel_reads"),
    [
        ([], 0),
        (log_of(LOADER), 0),
        # The loader has read nothing.
        (log_of(KERNEL), len(KERNEL)),
        (log_of(LOADER, KERNEL), 100),
        (log_of(LOADER, tuple((index * 4096, 4096) for index in range(100))), 10),
    ],
)
def test_a_log_that_does_not_show_the_kernel_is_refused(log: list[Request], kernel_reads: int) -> None:
    with pytest.raises(GuestError, match="does not show where the kernel begins"):
        divided(log, READY_NS, kernel_reads)


@given(st.integers(1, 60), st.integers(1, 2000), st.integers(-16, 16))
def test_every_read_is_the_loaders_or_the_kernels(loader: int, kernel: int, apart: int) -> None:
    log = [
        *reads(tuple((1 << 20, 512) for _ in range(loader)), 100),
        *reads(tuple((4096 * index, 4096) for index in range(kernel)), 5000),
    ]
    found = divided(log, READY_NS, max(0, kernel + apart))
    assert (len(found.loader), len(found.kernel)) == (loader, kernel)
    assert [*found.loader, *found.kernel] == log


def test_virtual_times_are_those_of_the_time_stamp_counter() -> None:
    assert computed(readied(tsc=5_000), 3_000) == LoaderTimes(3_000, 400)
    # The uptime may run ahead at first (docs/users/times.md).
    assert computed(readied(tsc=4_500), 3_000) == LoaderTimes(3_000, 0)


def test_the_clients_times_add_up_to_uptime_0() -> None:
    log = divided(log_of(LOADER, KERNEL), READY_NS, len(KERNEL))
    found = seen_by_client(readied(launch_ns=500), log, 700)
    assert found.firmware_ns == 500
    assert log.begin_ns + 700 + found.computing_ns == 4_000 - 1_000
