"""Run a cell of the bench once. The run fetches kernel and initramfs from the volume, boots, waits until the guest is
ready, and reads the guest's counters (docs/users/times.md). The result is one Sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from quickstart.errors import GuestError, QuickStartError, VolumeError
from quickstart.guest import Exit, Guest, Launcher, Output, counting_instructions, executing
from quickstart.host.files import full_disk_named, temporary_directory
from quickstart.launch.accel import Accelerator
from quickstart.measure import counting
from quickstart.measure.clock import Clock, instruction_ns, sized, virtual
from quickstart.measure.configuration import Boot, machine_of
from quickstart.measure.loader import LoaderTimes, computed, divided, seen_by_client
from quickstart.measure.phases import phases, script, units
from quickstart.measure.results import STOCK_CONFIGURATIONS, Cell, Phase, Reads, Sample
from quickstart.measure.times import Times, client_times, virtual_times
from quickstart.model import MIB, Readied
from quickstart.model.machine import Machine, NbdSocket, on_volume
from quickstart.parse.printable import brief, shown
from quickstart.volume.emulator import Request, Volume, served
from quickstart.volume.nbd import read_extents
from quickstart.volume.nfs import NfsVolume, exported
from quickstart.volume.storage import StorageModel

_AFTERWARDS_S = 300.0
# How often to check whether the volume still exists. Without the volume, the guest sends nothing more.
_LOOK_S = 1.0
# On the virtual clock, a guest executes less than a millisecond of its time meanwhile.
_FIRST_READ_POLL_S = 0.001
# A guest sends some kilobytes about its phases.
_SAID_BYTES = 4 * MIB
# A volume of ours says within milliseconds that it is there.
_VOLUME_WORD_S = 5.0
# None of our storage models sends nothing for this long while requests wait. But a single request may wait longer.
_STALLED_NS = 1_000_000_000
_FULL_HINT = "free some space there, then repeat the command: samples are kept"
_ROOT_DEVICE = "vda"
# Init says so when it starts the application (initramfs/init/second).
_STARTED = "quickstart: stamp application"
_NO_READS = Reads(0, 0)


@dataclass(frozen=True)
class Fetching:
    """The way in which a boot loader reads kernel and initramfs. ``request_bytes`` is the size of the boot loader's
    requests, and ``depth`` is the number of requests in flight.
    """

    request_bytes: int
    depth: int


# GRUB and the kernel's EFI stub read one piece after the other. A better boot loader would not.
BOOT_LOADER = Fetching(128 * 1024, 1)
# By results.FETCHES.
FETCHING = {"boot-loader": BOOT_LOADER, "read-ahead": Fetching(MIB, 8)}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The settings that all runs share. ``launchers`` is a function that makes a launcher for an accelerator.
    ``volume`` is the program of the volume emulator. ``fetching`` is the way in which the boot loader fetches kernel
    and initramfs.

    ``limit_s`` is a time limit on the host's clock. This limit applies to the time until the guest is ready, and to
    each answer of the volume during the fetch of kernel and initramfs. ``fault`` is a fault that the volume emulator
    simulates, for tests (docs/users/storage.md).
    """

    launchers: Callable[[Accelerator], Launcher]
    volume: Path
    limit_s: float
    fetching: Fetching = BOOT_LOADER
    fault: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The records of a run. ``phases_said`` is the output of a script that runs in the guest once the guest is ready
    (see the function ``script`` in phases.py). ``phases_said`` is empty when the guest did not answer.

    ``log`` is None for a volume that keeps no log. ``loader`` has the computing times of firmware and boot loader on the
    virtual clock. ``loader`` is None on other clocks, and for a machine that starts without a boot loader.
    """

    fetch_ns: int
    readied: Readied
    phases_said: str
    log: tuple[Request, ...] | None = None
    loader: LoaderTimes | None = None


@dataclass(frozen=True, kw_only=True)
class _Provision:
    """The part of a run before the kernel starts. ``fetch_ns`` is the part of ``times.t_pr_ns`` in which kernel and
    initramfs are read. ``begin_ns`` is the time from which the reads are those of the kernel, on CLOCK_MONOTONIC.
    ``phase`` is the name of the rest of T_pr. ``firmware_ns`` and ``loader`` are those of `Sample`.
    """

    times: Times
    fetch_ns: int
    begin_ns: int
    phase: str = "before kernel"
    firmware_ns: int = 0
    loader: Reads = _NO_READS


def run_once(
    bench: Bench,
    boot: Boot,
    clock: Clock,
    model: StorageModel,
    cell: Cell,
    number: int,
    computing: Callable[[], LoaderTimes] | None = None,
) -> Sample:
    """Run ``boot`` once, from a new, cold volume with the storage model ``model``. On the virtual clock, ``computing``
    returns the computing times of the boot loader of ``boot`` (see `calibrate`).

    When the guest or the volume hangs or dies, the sample is censored. When the function ends, none of its processes
    runs any more. Raises HostLacksError when the host lacks something, for example space in the temporary directory.
    """
    try:
        with room_for_it():
            loader = computing() if computing else None
            ran = replace(_run(bench, boot, clock, model), loader=loader)
        return sample_of(boot, clock, cell, number, ran)
    except (GuestError, VolumeError) as error:
        return Sample(cell=cell, number=number, censored=first_line(error), delivery=boot.delivery)


def _run(bench: Bench, boot: Boot, clock: Clock, model: StorageModel) -> Ran:
    with _volume(bench, boot, clock, model) as volume:
        ran = boot_from(bench, boot, clock, volume)
        # QEMU has ended, so the log has all its requests.
        return replace(ran, log=volume.log() if isinstance(volume, Volume) else None)


def calibrate(bench: Bench, boot: Boot, size: str, model: StorageModel) -> LoaderTimes:
    """The computing times of firmware and boot loader on the virtual clock for a machine size. ``model`` is a storage
    model that answers at once. A boot loader polls while it waits, so on a slow volume the number of its instructions
    says nothing (docs/users/times.md).

    Raises GuestError when the guest fails, and VolumeError when the volume fails.
    """
    clock = virtual(size)
    with _volume(bench, boot, clock, model) as volume:
        launcher = bench.launchers(clock.accelerator)
        with launcher.launch(_machine(boot, clock, volume), boot.ready) as guest, room_for_it():
            instructions = _first_read(guest, bench.limit_s)
            readied = guest.wait_ready(bench.limit_s, volume.is_running)
        return computed(readied, instructions * instruction_ns(size))


def _first_read(guest: Guest, limit_s: float) -> int:
    """Wait until the guest has read from its volume for the first time. Return the number of instructions that it has
    executed until then.
    """
    counter, end_s = counting_instructions(guest), time.monotonic() + limit_s
    while guest.root_io().reads == 0:
        if time.monotonic() > end_s or guest.wait(0):
            raise GuestError(
                "the guest did not read its boot loader from the volume", console_tail=guest.console_tail()
            )
        time.sleep(_FIRST_READ_POLL_S)
    return counter.instructions()


def _volume(
    bench: Bench, boot: Boot, clock: Clock, model: StorageModel
) -> AbstractContextManager[Volume | NfsVolume]:
    """The volume for a run. For an NFS model on a real clock, this is a real NFS server. Otherwise, it is the volume
    emulator.
    """
    if model.nfs_rate and clock.name != "virtual":
        return exported(boot.volume, model.nfs_rate)
    return served(bench.volume, boot.volume, model, fault=bench.fault)


def boot_from(
    bench: Bench,
    boot: Boot,
    clock: Clock,
    volume: Volume | NfsVolume,
    afterwards: Callable[[], None] = lambda: None,
) -> Ran:
    """Fetch kernel and initramfs from ``volume``, boot, wait until the guest is ready, and ask the guest for its
    counters. The result has no volume log yet.

    The function calls ``afterwards`` when the guest is ready. Raises GuestError when the guest fails, and VolumeError
    when the volume fails.
    """
    request_bytes, depth = bench.fetching.request_bytes, bench.fetching.depth
    # A machine with a boot loader fetches by itself.
    fetch_ns = (
        read_extents(volume.socket, boot.fetched, request_bytes, depth, bench.limit_s) if boot.fetched else 0
    )
    launcher = bench.launchers(clock.accelerator)
    try:
        with launcher.launch(_machine(boot, clock, volume), boot.ready) as guest:
            # The free space is examined before the run's own files in the temporary directory are removed, because
            # removing them makes room.
            with room_for_it():
                readied = guest.wait_ready(bench.limit_s, volume.is_running)
            # Otherwise, a stock boot would count as a fast start.
            if boot.configuration not in STOCK_CONFIGURATIONS and (reason := guest.fallback()):
                raise GuestError(f"the fast start did not happen: {brief(reason)}")
            # The questions come after this call, so that they do not slow down other machines.
            afterwards()
            said = _ask_phases(guest, boot.unit, volume)
            # A boot loader chooses the entry, and the stock entry says nothing of a fallback.
            is_early = boot.configuration not in STOCK_CONFIGURATIONS
            if boot.firmware and is_early and said and _STARTED not in said:
                raise GuestError("the fast start did not happen: the boot loader has started another entry")
    except GuestError as error:
        _blame(volume, error)
        raise
    return Ran(fetch_ns=fetch_ns, readied=readied, phases_said=said)


def room_for_it() -> AbstractContextManager[None]:
    """A context that raises HostLacksError when the temporary directory is full."""
    return full_disk_named(temporary_directory(), "the temporary directory", _FULL_HINT)


def _blame(volume: Volume | NfsVolume, error: GuestError) -> None:
    """Raise VolumeError when the guest failed because it waited for an answer of the volume. ``error`` is the error
    with which the guest failed.
    """
    now_ns = time.monotonic_ns()
    if isinstance(volume, NfsVolume) or not volume.is_running():
        return
    try:
        log = replace(volume, instance=0).log(_VOLUME_WORD_S)
    except VolumeError as silent:
        raise VolumeError(f"{silent.message}: {first_line(error)}") from error
    mine = [each for each in log if volume.instance in (0, each.instance)]
    silent_ns = now_ns - max((each.done_ns for each in log), default=0)
    waited_ns = min(counting.unanswered_ns(mine, now_ns), silent_ns)
    if waited_ns >= _STALLED_NS:
        raise VolumeError(
            f"the volume left a request unanswered for {waited_ns / 1e9:.0f} s: {first_line(error)}"
        ) from error


def first_line(error: QuickStartError) -> str:
    """The reason why a sample is censored. This is the message of ``error``, without its details."""
    return shown(error.message)


def _machine(boot: Boot, clock: Clock, volume: Volume | NfsVolume) -> Machine:
    plain = sized(machine_of(boot), clock)
    return on_volume(plain, NbdSocket(volume.socket)) if boot.attached else plain


def _ask_phases(guest: Guest, unit: str, volume: Volume | NfsVolume) -> str:
    """The output of the script from phases.script, which the guest runs. When the guest gives no output, the result is
    empty. Even then, the sample is valid, because the guest was ready.
    """
    said = bytearray()
    end_s = time.monotonic() + _AFTERWARDS_S
    with suppress(GuestError, OSError):
        executing(guest).start(script(unit))
        while guest.is_running() and volume.is_running() and time.monotonic() < end_s:
            for message in guest.messages(_LOOK_S):
                if isinstance(message, Output) and message.stream == "out" and len(said) < _SAID_BYTES:
                    said += message.data
                if isinstance(message, Exit):
                    return said.decode(errors="replace")
    return said.decode(errors="replace")


def sample_of(boot: Boot, clock: Clock, cell: Cell, number: int, ran: Ran) -> Sample:
    """The sample that is computed from the time stamps and logs of a run. Raises GuestError when the guest's counters
    are not numbers.
    """
    readied, is_virtual = ran.readied, clock.name == "virtual"
    log, counted = ran.log or (), Reads(readied.root_io.reads, readied.root_io.read_bytes)
    counters = readied.counters.text
    guest = counting.disk_reads(counters, _ROOT_DEVICE) if boot.attached else _NO_READS
    provision = (
        _by_loader(ran, guest.requests, is_virtual=is_virtual)
        if boot.firmware
        else _started(ran, is_virtual=is_virtual)
    )
    times, begin_ns, end_ns = provision.times, provision.begin_ns, readied.ready.received_ns
    busy_ns = counting.in_flight_ns(log, begin_ns, end_ns)
    found: tuple[Phase, ...] = phases(
        ran.phases_said,
        boot.unit,
        times.before_kernel_ns,
        readied.beacon.uptime_ns,
        readied.ready.uptime_ns,
        provision.phase,
    )
    return Sample(
        cell=cell,
        number=number,
        censored="",
        delivery=boot.delivery,
        t_pr_ns=times.t_pr_ns,
        t_app_ns=times.t_app_ns,
        t_total_ns=times.t_total_ns,
        uptime_ns=readied.beacon.uptime_ns,
        ready_uptime_ns=readied.ready.uptime_ns,
        fetch_ns=provision.fetch_ns,
        before_kernel_ns=times.before_kernel_ns,
        overlap_ns=counting.overlap_ns(busy_ns, counting.iowait_ns(counters)) if is_virtual else 0,
        # Without a log, these are the reads that QEMU had counted when the ready line came.
        volume=counted if ran.log is None else counting.root_reads(log, begin_ns, end_ns),
        guest=guest,
        initramfs_bytes=boot.initramfs_bytes,
        phases=found,
        units=units(ran.phases_said, readied.ready.uptime_ns),
        firmware_ns=provision.firmware_ns,
        loader=provision.loader,
    )


def _started(ran: Ran, *, is_virtual: bool) -> _Provision:
    """The part before the kernel of a machine that QEMU has started with kernel and initramfs."""
    begin_ns = ran.readied.launch_ns
    fetch_ns = counting.modelled_ns(ran.log or (), begin_ns) if is_virtual else ran.fetch_ns
    times = (virtual_times if is_virtual else client_times)(ran.readied, fetch_ns)
    return _Provision(times=times, fetch_ns=fetch_ns, begin_ns=begin_ns)


def _by_loader(ran: Ran, kernel_reads: int, *, is_virtual: bool) -> _Provision:
    """The part before the kernel of a machine that boots by its own boot loader. The part begins with the loader's
    first read of the volume. ``kernel_reads`` is the number of reads that the guest's kernel has counted.

    Raises GuestError when the volume's log does not show where the kernel begins.
    """
    log = divided(ran.log or (), ran.readied.ready.received_ns, kernel_reads)
    fetch_ns = (
        counting.modelled_ns(log.loader, log.end_ns)
        if is_virtual
        else counting.in_flight_ns(log.loader, log.begin_ns, log.end_ns)
    )
    loader = ran.loader if is_virtual else seen_by_client(ran.readied, log, fetch_ns)
    if loader is None:
        raise AssertionError("the loader's times on the virtual clock are not known")
    t_pr_ns = fetch_ns + loader.computing_ns
    ready = ran.readied.ready
    t_app_ns = ready.uptime_ns if is_virtual else ready.received_ns - log.begin_ns - t_pr_ns
    return _Provision(
        times=Times(t_pr_ns, t_app_ns, t_pr_ns + t_app_ns, loader.computing_ns),
        fetch_ns=fetch_ns,
        begin_ns=log.end_ns,
        phase="loader",
        firmware_ns=loader.firmware_ns,
        loader=log.counted,
    )
