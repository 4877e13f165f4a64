"""A guest whose trace is none: `verify` ends with an error of ours, and without much memory."""

from __future__ import annotations

import gzip
import itertools
import os
from typing import BinaryIO

import pytest

from quickstart.errors import GuestError, UntraceableError
from quickstart.model import MIB
from quickstart.verify import boot, ftrace, guesttrace
from tests.guests import StandInGuest
from tests.unit.hostile import bounded


class Tracing(StandInGuest):
    """A guest that says ``said`` when it is asked for its trace."""

    def __init__(self, said: bytes, status: int = 0) -> None:
        super().__init__()
        self._said, self._status = said, status

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        assert command == ftrace.FETCH and limit_bytes == 64 * MIB
        stdout.write(self._said)
        return self._status


def event(said: str, pid: int = 7) -> bytes:
    return f"app-{pid} [000] 1.000000: {said}\n".encode()


def test_lines_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesttrace, "_MOST_LINES", 1 << 18)
    packed = gzip.compress(b"abc\n" * (16 << 20), 1)
    with bounded(mib=128), pytest.raises(GuestError, match="more than 262144 lines"):
        boot._trace(Tracing(packed))


def test_a_line_without_end() -> None:
    packed = gzip.compress("\N{PILE OF POO}".encode() + b"a" * (64 << 20) + b"\n" + event("sys_x()"), 1)
    with bounded(mib=128):
        found = boot._trace(Tracing(packed))
    assert isinstance(found, guesttrace.GuestTrace) and found.ends_ns == 10**9


def test_the_rest_of_a_long_line_is_no_line() -> None:
    hidden = event("sys_x()").decode().strip()
    packed = gzip.compress(b"a" * (guesttrace.MAX_LINE + 1) + hidden.encode() + b"\n", 1)
    found = boot._trace(Tracing(packed))
    assert isinstance(found, guesttrace.GuestTrace) and found.ends_ns == 0


@pytest.mark.parametrize(
    "events",
    [
        lambda n: event("sys_x()", pid=n),
        lambda n: event(f"sched_process_fork: comm=a pid=7 child_comm=a child_pid={n}"),
        lambda n: event(f"block_rq_issue: 1,1 R 1 () {n} + 1 [x]"),
        lambda n: (
            event("sys_openat(dfd: ffffff9c)")
            + event('qs_name: (x) name="/f"')
            + event(f"sys_openat -> {n:#x}")
        ),
    ],
    ids=["processes", "children", "requests", "descriptors"],
)
def test_more_than_any_boot_has(monkeypatch: pytest.MonkeyPatch, events: object) -> None:
    assert callable(events)
    monkeypatch.setattr(guesttrace, "_MOST_FACTS", 2000)
    packed = gzip.compress(b"".join(events(n) for n in range(2100)), 1)
    with bounded(), pytest.raises(GuestError, match="or 2000 processes, files and requests"):
        boot._trace(Tracing(packed))


def test_names_of_one_call_without_end() -> None:
    name = 'qs_name: (x) name="' + "a" * 4000 + '"'
    with bounded(mib=64):
        guesttrace.parse((event(name).decode() for _ in range(50_000)), "")


def test_more_bytes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_TRACE_BYTES", 1000)
    with pytest.raises(GuestError, match="more than 1000 bytes"):
        boot._trace(Tracing(gzip.compress(event("sys_x()") * 100)))


@pytest.mark.parametrize("said", [b"", b"x" * 100, gzip.compress(os.urandom(1000))[:-9]])
def test_a_trace_that_is_cut(said: bytes) -> None:
    if not said:
        assert boot._trace(Tracing(said)) == guesttrace.GuestTrace((), (), 0, 0)
        return
    with pytest.raises(GuestError, match="came home damaged"):
        boot._trace(Tracing(said))


def test_a_kernel_without_a_trace() -> None:
    found = boot._trace(Tracing(b"", status=1))
    assert isinstance(found, UntraceableError)


def test_no_more_lines_than_a_buffer_of_a_guest_holds() -> None:
    read = itertools.count()
    with pytest.raises(GuestError, match="lines"):
        guesttrace.parse(("abc" for _ in itertools.takewhile(lambda number: number < 2 << 20, read)), "")
    assert next(read) <= (1 << 20) + 2
