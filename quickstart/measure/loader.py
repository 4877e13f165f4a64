"""Divide the boot of a disk that boots by itself into firmware, boot loader and kernel. The volume's log says what the
boot loader reads, and when it begins (docs/users/times.md, "A disk that boots by itself"). All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quickstart.errors import GuestError
from quickstart.measure.results import Reads
from quickstart.model import Readied
from quickstart.volume.emulator import Request
from quickstart.volume.nbd import Command

# The kernel looks for a partition table when it finds a disk: it reads the page at the disk's begin (block/partitions).
# Firmware and loaders read other sizes.
_PAGE_BYTES = 4096
# QEMU itself reads the first sector before the machine starts, for the disk's geometry (hw/block/hd-geometry.c).
_SECTOR_BYTES = 512
# The guest counts a request when it is done, and the volume counts it when it arrives.
_FLIGHT, _FLIGHT_SHARE = 16, 0.02


@dataclass(frozen=True)
class LoaderLog:
    """The reads of a boot until ready. ``loader`` are the reads of the firmware and the boot loader, and ``kernel``
    are the reads after the kernel has started, both in the order of their arrival.
    """

    loader: tuple[Request, ...]
    kernel: tuple[Request, ...]

    @property
    def begin_ns(self) -> int:
        """The time of the loader's first read, on CLOCK_MONOTONIC."""
        return self.loader[0].arrival_ns

    @property
    def end_ns(self) -> int:
        """The time of the kernel's first read, on CLOCK_MONOTONIC."""
        return self.kernel[0].arrival_ns

    @property
    def counted(self) -> Reads:
        return Reads(len(self.loader), sum(each.length_bytes for each in self.loader))


def divided(log: Sequence[Request], ready_ns: int, kernel_reads: int) -> LoaderLog:
    """Divide ``log``, the requests to a volume, at the first read of the kernel. ``ready_ns`` is the time at which the
    machine was ready, on CLOCK_MONOTONIC. ``kernel_reads`` is the number of reads that the kernel has counted until
    then.

    Raises GuestError when no read can be the kernel's first one.
    """
    reads = sorted(
        (each for each in log if each.command == Command.READ and each.arrival_ns < ready_ns),
        key=lambda each: each.sequence,
    )
    if reads and (reads[0].offset, reads[0].length_bytes) == (0, _SECTOR_BYTES):
        reads = reads[1:]
    firsts = [
        index
        for index, each in enumerate(reads)
        if index and each.offset == 0 and each.length_bytes == _PAGE_BYTES
    ]
    index = min(firsts, key=lambda each: abs(len(reads) - each - kernel_reads), default=0)
    apart = abs(len(reads) - index - kernel_reads)
    if not index or apart > max(_FLIGHT, _FLIGHT_SHARE * kernel_reads):
        raise GuestError(
            f"the volume's log does not show where the kernel begins: it has {len(reads)} reads, and the kernel counts "
            f"{kernel_reads}"
        )
    return LoaderLog(tuple(reads[:index]), tuple(reads[index:]))


@dataclass(frozen=True)
class LoaderTimes:
    """How long firmware and boot loader compute, in ns. ``firmware_ns`` is the time from the machine's start to the
    loader's first read, and ``computing_ns`` is the time from then to the kernel's uptime 0 without the time of the
    reads.
    """

    firmware_ns: int
    computing_ns: int


def computed(readied: Readied, firmware_ns: int) -> LoaderTimes:
    """The times of a machine on the virtual clock whose volume answers each request at once (see `virtual_times` in
    times.py). ``firmware_ns`` is the time on this clock at which the machine has made its first read.
    """
    before_kernel_ns = readied.counters.tsc - readied.counters.uptime_ns
    return LoaderTimes(firmware_ns, max(0, before_kernel_ns - firmware_ns))


def seen_by_client(readied: Readied, log: LoaderLog, fetch_ns: int) -> LoaderTimes:
    """The times of a machine on the clock of the client, which is the program on the host that launches the machine.
    ``fetch_ns`` is the time of the loader's reads on this clock.
    """
    uptime_0_ns = readied.beacon.received_ns - readied.beacon.uptime_ns
    return LoaderTimes(log.begin_ns - readied.launch_ns, uptime_0_ns - log.begin_ns - fetch_ns)
