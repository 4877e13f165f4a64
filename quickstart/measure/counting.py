"""Count the requests and the waiting times before ready. The numbers come from a volume's log and from the guest's own
counters (pure).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quickstart.errors import GuestError
from quickstart.measure.results import Reads
from quickstart.parse.bounded import INT64_MAX, natural
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command

_SECTOR_BYTES = 512
# The unit of times in /proc/stat (USER_HZ on x86).
_TICK_NS = 10_000_000


def root_reads(log: Iterable[Request], begin_ns: int, end_ns: int) -> Reads:
    """The number and the bytes of the read requests that arrived at or after ``begin_ns`` and before ``end_ns``."""
    lengths = [
        each.length_bytes
        for each in log
        if each.command == Command.READ and begin_ns <= each.arrival_ns < end_ns
    ]
    return Reads(len(lengths), sum(lengths))


def in_flight_ns(log: Iterable[Request], begin_ns: int, end_ns: int) -> int:
    """The time in ns between ``begin_ns`` and ``end_ns`` during which at least one request of any kind was
    unanswered.
    """
    intervals = (
        (max(each.arrival_ns, begin_ns), min(each.done_ns or end_ns, end_ns))
        for each in log
        if each.command != Command.DISCONNECT and each.arrival_ns < end_ns
    )
    return _union_ns(intervals)


def modelled_ns(log: Iterable[Request], end_ns: int) -> int:
    """The time in ns that the storage model takes for the reads that arrived before ``end_ns``. The time is computed
    from the times at which the answers are due according to the model.

    On a busy host, the volume may send an answer later than it is due. The result does not include this delay, because
    the result must not depend on the host.
    """
    reads = (each for each in log if each.command == Command.READ and each.arrival_ns < end_ns)
    return _union_ns((each.arrival_ns, each.due_ns) for each in reads)


def _union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def overlap_ns(busy_ns: int, waited_ns: int) -> int:
    """The time in ns in which the volume was busy and the guest did not wait. The volume is busy when a request is in
    flight. A time on the virtual clock may be too short by up to this number of ns.
    """
    return max(0, busy_ns - waited_ns)


def iowait_ns(counters: str) -> int:
    """The time in ns that the guest waited for I/O. The time is the fifth number in the line `cpu` of /proc/stat, which
    counts ticks of 10 ms (proc(5)). Raises GuestError when there is no such number.
    """
    words = counters.partition("\n")[0].split()
    ticks = natural(words[5], INT64_MAX // _TICK_NS) if len(words) >= 6 and words[0] == "cpu" else None
    if ticks is None:
        raise GuestError("the guest's /proc/stat has no cpu line")
    return ticks * _TICK_NS


def disk_reads(counters: str, device: str) -> Reads:
    """The number of completed reads of ``device`` and the number of read bytes, from the guest's /proc/diskstats
    (Documentation/admin-guide/iostats.rst).

    Raises GuestError when the device is missing, or when its numbers are invalid.
    """
    for line in counters.splitlines():
        words = line.split()
        if len(words) >= 14 and words[2] == device:
            reads, sectors = natural(words[3], INT64_MAX), natural(words[5], INT64_MAX // _SECTOR_BYTES)
            if reads is None or sectors is None:
                raise GuestError(
                    f"the guest's /proc/diskstats is damaged: {device} has {words[3][:30]!r} reads of {words[5][:30]!r} sectors"
                )
            return Reads(reads, sectors * _SECTOR_BYTES)
    raise GuestError(f"the guest's /proc/diskstats has no {device}")


def unanswered_ns(log: Sequence[Request], now_ns: int) -> int:
    """The time in ns that the oldest unanswered request has waited at ``now_ns``. The result is 0 when every request
    was answered.

    The function ignores a request whose answer is due at ``now_ns`` or earlier. The guest has not yet read the answer
    to such a request, so the guest causes the delay, and not the volume.
    """
    waiting = [each.arrival_ns for each in log if not each.done_ns and not 0 < each.due_ns <= now_ns]
    return now_ns - min(waiting) if waiting else 0
