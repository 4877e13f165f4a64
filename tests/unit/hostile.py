"""Shared by the tests of malicious files."""

from __future__ import annotations

import resource
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, settings

GIB = 1 << 30
# More than Python makes a number of.
DIGITS = "9" * 5000
ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@contextmanager
def little_memory() -> Iterator[None]:
    """What is inside takes less than 16 MiB of Python's memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@contextmanager
def bounded(seconds: int = 8, mib: int = 768) -> Iterator[None]:
    """What is inside ends, and takes little memory.

    What it is for takes a fraction of that when it is right, and minutes or tens of GiB when it is not. The seconds are the
    processor's, so that no busy host decides; who waits for ever is ended after a hundred times of them.
    """

    def hangs(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it has not ended after {seconds} s of the processor")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 100 * seconds),
    )
    before = [signal.signal(heard, hangs) for _, heard, _ in timers]
    for timer, _, value in timers:
        signal.setitimer(timer, value)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (mib << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for (timer, heard, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(heard, handler)
