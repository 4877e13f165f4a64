"""Launch several machines from one volume (docs/users/measuring.md). The machines boot in parallel or one after the
other, and N machines give N samples.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import time
from dataclasses import dataclass

from quickstart.errors import BadInputError, GuestError, QuickStartError, VolumeError
from quickstart.host.memory import available_bytes
from quickstart.measure import patterns
from quickstart.measure.clock import Clock
from quickstart.measure.configuration import Boot
from quickstart.measure.results import Cell, Sample
from quickstart.measure.run import Bench, Ran, boot_from, first_line, room_for_it, sample_of
from quickstart.volume.emulator import Request, Volume, served
from quickstart.volume.storage import StorageModel

# The host's memory that QEMU uses for one machine until the last machine is ready. A guest uses only a part of its
# own memory.
TAKES_MIB = {"small": 900, "medium": 1300}
# The time from the moment when all threads exist until the first machine is launched.
_HEAD_START_S = 0.05


@dataclass(frozen=True)
class _Ended:
    """The result of one machine. ``launched_ns`` is the time, on the clock time.monotonic_ns, at which the machine was
    launched. ``became`` is what the run has recorded, or the error with which the machine failed.
    """

    launched_ns: int
    became: Ran | QuickStartError


def processors() -> int:
    """The number of processors of the host that this process may use."""
    return len(os.sched_getaffinity(0))


def demand_room(cell: Cell) -> None:
    """Raise HostLacksError when the host does not have enough memory for the machines of ``cell`` that run at the same
    time.
    """
    patterns.demand_memory(patterns.at_a_time(cell), TAKES_MIB[cell.size], available_bytes())


def launch(
    bench: Bench, boot: Boot, clock: Clock, model: StorageModel, cell: Cell, number: int
) -> tuple[Sample, ...]:
    """Launch ``cell.instances`` machines with ``boot``, in the launch pattern of ``cell`` (for example, all at the same
    time). All machines use one volume, which is new and cold at the beginning.

    A machine that hangs or dies gives a censored sample and does not affect the other machines. If the volume's server
    dies, all samples are censored. When the function ends, none of its processes runs any more. When the host has too
    few processors for all machines, the function multiplies the storage's times and ``bench.limit_s`` by one factor
    (patterns.dilation_percent). Raises BadInputError when the cell's launch is not possible, for example with several
    machines on the virtual clock. Raises HostLacksError when the host lacks a tool, memory or disk space.
    """
    if problem := patterns.cell_problem(cell):
        raise BadInputError(f"no launch of {cell.instances} by {cell.pattern}: {problem}")
    demand_room(cell)
    percent = patterns.dilation_percent(cell, clock.vcpus, processors())
    patient = dataclasses.replace(bench, limit_s=bench.limit_s * percent / patterns.REAL)
    sharing = dataclasses.replace(boot, cmdline=patterns.command_line(boot.cmdline))
    machines = _Machines(patient, sharing, clock, cell, percent)
    log: tuple[Request, ...] = ()
    try:
        slow = patterns.dilated(model, percent)
        with (
            room_for_it(),
            served(bench.volume, boot.volume, slow, fault=bench.fault, instances=cell.instances) as volume,
        ):
            machines.run(volume)
            # Every QEMU has ended, so the log has every request.
            log = volume.log()
    except VolumeError as error:
        machines.give_up(error)
    return machines.samples(number, log)


class _Machines:
    """The machines of one launch. Each machine has a thread of its own, because a QEMU ends with the thread that
    started it.
    """

    def __init__(self, bench: Bench, boot: Boot, clock: Clock, cell: Cell, percent: int) -> None:
        self._bench, self._boot, self._clock, self._cell = bench, boot, clock, cell
        self._percent = percent
        self._lock = threading.Lock()
        self._ended: dict[int, _Ended] = {}
        self._fatal: list[BaseException] = []
        self._settled: set[int] = set()
        self._over = {number: threading.Event() for number in range(1, cell.instances + 1)}
        self._all_settled = threading.Event()
        self._stop = threading.Event()

    def run(self, volume: Volume) -> None:
        """Launch all machines. The function returns when each machine has become ready or has failed, and no machine
        runs any more.
        """
        begin_s = time.monotonic() + _HEAD_START_S
        gap_s = self._cell.stagger_ms / 1000 * self._percent / patterns.REAL
        threads = [
            threading.Thread(target=self._one, args=(volume, instance, begin_s + gap_s * (instance - 1)))
            for instance in range(1, self._cell.instances + 1)
        ]
        begun = []
        try:
            for number, thread in enumerate(threads, 1):
                thread.start()
                begun.append(thread)
                if self._cell.pattern == "one-by-one":
                    self._over[number].wait()
            for over in self._over.values():
                over.wait()
        except BaseException:
            self._end_all(volume)
            raise
        finally:
            # The threads are joined only here, because after Ctrl-C in a join, Python 3.11 takes a running thread for
            # one that has ended (bpo-45274).
            for thread in begun:
                thread.join()

    def give_up(self, error: VolumeError) -> None:
        """Record ``error`` as the result of every machine. ``error`` is the reason why the volume ended. If a thread
        failed earlier, raise the thread's exception instead.
        """
        self._raise_fatal()
        now_ns = time.monotonic_ns()
        self._ended = {each: _Ended(now_ns, error) for each in range(1, self._cell.instances + 1)}

    def samples(self, number: int, log: tuple[Request, ...]) -> tuple[Sample, ...]:
        self._raise_fatal()
        first_ns = min(ended.launched_ns for ended in self._ended.values())
        return tuple(
            patterns.undilated(self._sample(number, instance, ended, first_ns, log), self._percent)
            for instance, ended in sorted(self._ended.items())
        )

    def _sample(
        self, number: int, instance: int, ended: _Ended, first_ns: int, log: tuple[Request, ...]
    ) -> Sample:
        boot, cell, became = self._boot, self._cell, ended.became
        if isinstance(became, QuickStartError):
            sample = Sample(cell=cell, number=number, censored=first_line(became), delivery=boot.delivery)
        else:
            mine = tuple(request for request in log if request.instance == instance)
            try:
                sample = sample_of(boot, self._clock, cell, number, dataclasses.replace(became, log=mine))
            except GuestError as error:
                sample = Sample(cell=cell, number=number, censored=first_line(error), delivery=boot.delivery)
        return dataclasses.replace(sample, instance=instance, launched_ns=ended.launched_ns - first_ns)

    def _one(self, volume: Volume, instance: int, due_s: float) -> None:
        """The body of a thread. It waits for the launch time, boots the machine, and keeps the machine running until
        all machines are ready.
        """
        try:
            self._stop.wait(max(0.0, due_s - time.monotonic()))
            if self._stop.is_set():
                return
            launched_ns = time.monotonic_ns()
            mine = volume.of(instance)
            became: Ran | QuickStartError
            try:
                stay = functools.partial(self._stay, instance)
                # The same context in `launch` does not see the errors of a thread.
                with room_for_it():
                    became = boot_from(self._bench, self._boot, self._clock, mine, stay)
            except (GuestError, VolumeError) as error:
                became = error
                self._settle(instance)
            self._ended[instance] = _Ended(launched_ns, became)
        except BaseException as error:
            # The main thread raises it.
            self._fatal.append(error)
            self._end_all(volume)
        finally:
            self._over[instance].set()

    def _stay(self, instance: int) -> None:
        """Keep a ready machine running until all machines are ready or have failed. Outside of the bench, too, a ready
        machine keeps running while other machines start. With the pattern one-by-one, return at once.
        """
        self._settle(instance)
        if self._cell.pattern != "one-by-one":
            self._all_settled.wait()

    def _settle(self, instance: int) -> None:
        """Record that the machine is ready or has failed."""
        with self._lock:
            self._settled.add(instance)
            if len(self._settled) == self._cell.instances:
                self._all_settled.set()

    def _end_all(self, volume: Volume) -> None:
        """End everything that waits. These are the threads, the ready machines, and the guests that wait for the
        volume.
        """
        self._stop.set()
        self._all_settled.set()
        if volume.is_running():
            volume.process.terminate()

    def _raise_fatal(self) -> None:
        if self._fatal:
            raise self._fatal[0]
