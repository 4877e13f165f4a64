"""The limits of an input: 2 s of CPU time, and 512 MiB more than the process had. An input that exceeds them is a finding."""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from quickstart.errors import QuickStartError
from tests.fuzz.target import Target

SECONDS = 2.0
_MEMORY_BYTES = 512 << 20


class TooLongError(BaseException):
    """An input took more than its time; no `except Exception` of a parser stops it."""


def limit_memory() -> None:
    """For the rest of the process; beyond it is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def limited_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raises TooLongError in what is inside; of the processor's time, so that a busy host decides nothing."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(target: Target, data: bytes, place: Path, seconds: float = SECONDS) -> str:
    """Empty for a result or an error of ours; otherwise the traceback of what came."""
    try:
        with limited_time(seconds):
            target.run(data, place)
    except QuickStartError:
        return ""
    except (Exception, TooLongError) as error:
        return "".join(traceback.format_exception(error, limit=-12))
    return ""
