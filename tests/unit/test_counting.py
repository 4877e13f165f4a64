"""Counts until ready, from the volume's log and the guest's counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import GuestError
from quickstart.measure import counting
from quickstart.measure.results import Reads
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command

COUNTERS = """\
cpu  5 0 369 2 17 0 2 0 0 0
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 66 221 2322 28 2 0 16 0 0 20 28 0 0 0 0 1 0
 254       1 vda1 60 221 2000 28 2 0 16 0 0 20 28 0 0 0 0 1 0
"""


def asked(
    arrival_ns: int, done_ns: int, due_ns: int = 0, length_bytes: int = 512, command: int = Command.READ
) -> Request:
    return Request(
        sequence=0,
        arrival_ns=arrival_ns,
        due_ns=due_ns,
        done_ns=done_ns,
        offset=0,
        length_bytes=length_bytes,
        touched=0,
        client=1,
        in_flight=1,
        error=0,
        command=command,
        flags=0,
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    arrival_ns = draw(st.integers(0, 60))
    done_ns = draw(st.one_of(st.just(0), st.integers(arrival_ns, 80)))
    return asked(
        arrival_ns, done_ns, 0, 512, draw(st.sampled_from([Command.READ, Command.WRITE, Command.FLUSH]))
    )


@given(st.lists(requests(), max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_the_union_of_intervals_counts_each_instant_once(
    log: list[Request], begin_ns: int, more: int
) -> None:
    end_ns = begin_ns + more
    busy = {
        at
        for at in range(begin_ns, end_ns)
        if any(each.arrival_ns <= at < (each.done_ns or end_ns) for each in log)
    }
    assert counting.in_flight_ns(log, begin_ns, end_ns) == len(busy)


@given(st.lists(requests(), max_size=12), st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**9))
def test_the_overlap_is_never_more_than_the_busy_time(
    log: list[Request], begin_ns: int, more: int, waited_ns: int
) -> None:
    busy_ns = counting.in_flight_ns(log, begin_ns, begin_ns + more)
    found = counting.overlap_ns(busy_ns, waited_ns)
    assert 0 <= found <= busy_ns <= more
    assert counting.overlap_ns(busy_ns, 0) == busy_ns


def test_reads_of_a_boot_are_those_between_launch_and_ready() -> None:
    log = [
        asked(99, 100, length_bytes=4096),
        asked(100, 120, length_bytes=1024),
        asked(150, 0, length_bytes=2048),
        asked(160, 170, length_bytes=4096, command=Command.WRITE),
        asked(200, 210, length_bytes=4096),
    ]
    assert counting.root_reads(log, 100, 200) == Reads(2, 3072)


def test_a_late_answer_is_no_part_of_the_modelled_time() -> None:
    log = [
        asked(0, 19, due_ns=10),
        asked(20, 35, due_ns=30),
        # Two in flight at once.
        asked(40, 60, due_ns=50),
        asked(45, 60, due_ns=55),
        asked(60, 70, due_ns=70, command=Command.WRITE),
        asked(80, 95, due_ns=90),
    ]
    assert counting.modelled_ns(log, 80) == 10 + 10 + 15
    assert counting.modelled_ns([], 80) == 0


def test_a_farewell_is_no_request() -> None:
    assert counting.in_flight_ns([asked(10, 0, command=Command.DISCONNECT)], 0, 100) == 0


def test_iowait_is_in_ticks_of_10_ms() -> None:
    assert counting.iowait_ns(COUNTERS) == 170_000_000


@pytest.mark.parametrize(
    "text", ["", "cpu 1 2 3\n", "cpu0 1 2 3 4 5\n", "cpu 1 2 3 4 x\n", "intr 1 2 3 4 5\n"]
)
def test_without_a_cpu_line(text: str) -> None:
    with pytest.raises(GuestError, match="no cpu line"):
        counting.iowait_ns(text)


def test_diskstats_by_the_devices_whole_name() -> None:
    assert counting.disk_reads(COUNTERS, "vda") == Reads(66, 2322 * 512)
    assert counting.disk_reads(COUNTERS, "vda1").requests == 60
    with pytest.raises(GuestError, match="no vdb"):
        counting.disk_reads(COUNTERS, "vdb")


@pytest.mark.parametrize(
    ("done_ns", "due_ns", "waited_ns"),
    [
        (0, 0, 70),  # not even begun
        (0, 200, 70),  # due later
        (0, 60, 0),  # nobody took the answer
        (50, 40, 0),
    ],
)
def test_a_request_that_the_volume_has_not_answered(done_ns: int, due_ns: int, waited_ns: int) -> None:
    log = [asked(10, 20, 20), asked(30, done_ns, due_ns), asked(90, 0)]
    assert counting.unanswered_ns(log, 100) == max(waited_ns, 10)
    assert counting.unanswered_ns([], 100) == 0
