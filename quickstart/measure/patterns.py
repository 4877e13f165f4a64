"""Compute three things (pure):

- the launches that a block of a matrix asks for
- time dilation, which slows the storage down when several machines share the host's processors
- the summary of several launches

Time dilation follows Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation" (NSDI 2006).
docs/users/measuring.md lists the assumptions of this method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from quickstart.errors import HostLacksError
from quickstart.measure.results import Cell, Phase, Sample, words_of
from quickstart.measure.statistics import Metric, median_of_all
from quickstart.model import MIB
from quickstart.volume.storage import StorageModel

# No dilation, in per cent.
REAL = 100
# The kernel checks its timer by counting ticks for a moment. If the machine gets no processor in this time, there are
# no ticks, and the kernel panics ("IO-APIC + timer doesn't work"). On KVM, the kernel skips this check
# (arch/x86/kernel/kvm.c, paravirt_ops_setup).
_NO_TIMER_CHECK = "no_timer_check"
# (pattern, instances, stagger_ms) of a cell.
Launch = tuple[str, int, int]
_ALONE: Launch = ("single", 1, 0)
# A figure of a report takes about a second, and a panel more than its share of this. Our largest results have 18
# places.
PLACES_MAX = 128
# A bar takes some milliseconds. Our largest results have 90 bars.
_BARS_MAX = 2_000
_PANELS_MAX = 16
_NO_VIRTUAL = (
    "the virtual clock cannot time several guests: each counts its own instructions, while the volume that they share has one "
    "time, the host's; take wall or kvm"
)


def launches_of(patterns: Sequence[str], instances: Sequence[int], stagger_ms: int) -> tuple[Launch, ...]:
    """The launches that a block of the matrix asks for, in the order of the block's lists ``patterns`` and
    ``instances``. A launch of one machine has the pattern `single`, whatever pattern the block names.
    """
    found = [
        _ALONE
        if pattern == "single" or count == 1
        else (pattern, count, stagger_ms * (pattern == "staggered"))
        for pattern in patterns
        for count in instances or (1,)
    ]
    return tuple(dict.fromkeys(found))


def block_problems(
    patterns: Sequence[str], instances: Sequence[int], stagger_ms: int, clocks: Sequence[str]
) -> Iterator[str]:
    """The faults in the launches that a block of the matrix asks for. Each fault begins with the key that is wrong in
    the block.
    """
    together = [pattern for pattern in patterns if pattern != "single"]
    if together and not instances:
        yield f"instances: missing; {together[0]} is of several machines: how many?"
    if instances and not together:
        yield "instances: only a pattern has several, and single is none"
    for index, count in enumerate(instances):
        if count in instances[:index]:
            yield f"instances[{index}]: {count} again"
    if "staggered" in patterns and not stagger_ms:
        yield "stagger_ms: missing; staggered launches are how far apart?"
    if stagger_ms and "staggered" not in patterns:
        yield "stagger_ms: only staggered launches are apart, which are not among the patterns"
    if "virtual" in clocks and together and any(count > 1 for count in instances):
        yield f"clocks[{clocks.index('virtual')}]: {_NO_VIRTUAL}"


def cell_problem(cell: Cell) -> str:
    """The fault in the launch that a cell describes. The result is empty when there is no fault."""
    alone = cell.instances == 1
    if alone != (cell.pattern == "single"):
        return f"instances: {cell.pattern} has {'several' if alone else 'one'} (got {cell.instances})"
    if (cell.stagger_ms > 0) != (cell.pattern == "staggered"):
        return (
            f"stagger_ms: of staggered launches, and of no others (got {cell.stagger_ms} of {cell.pattern})"
        )
    return f"clock: {_NO_VIRTUAL}" if cell.clock == "virtual" and not alone else ""


def picture_problems(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a message for each kind of figure that would have too many parts in the report of ``cells``. Such figures
    would take hours to draw. A report has figures for each combination of application, size, volume and clock. One of
    these figures, the figure of the launches, has a panel for each launch pattern. A report also has a figure for each
    clock. This figure has a bar for each configuration of each application and size, on each volume.
    """
    cells = tuple(cells)
    panels: dict[tuple[str, ...], set[tuple[str, int]]] = {}
    for cell in cells:
        place = *cell.place, cell.storage, cell.clock
        panels.setdefault(place, set()).add((cell.pattern, cell.stagger_ms))
    if len(panels) > PLACES_MAX:
        yield (
            f"{len(panels)} combinations of application, size, storage and clock, and at most {PLACES_MAX} are shown "
            "together"
        )
    if (most := max(map(len, panels.values()), default=0)) > _PANELS_MAX:
        yield f"{most} ways to launch one application's machines, and at most {_PANELS_MAX} are shown together"
    if (bars := _bars(cells)) > _BARS_MAX:
        yield f"figures with {bars} bars, and at most {_BARS_MAX} are drawn"


def _bars(cells: Iterable[Cell]) -> int:
    """The number of bars in the figures of all clocks. The number includes empty bars, for cells that are not in the
    plan.
    """
    alone = [cell for cell in cells if cell.instances == 1]
    found = 0
    for clock in {cell.clock for cell in alone}:
        here = [cell for cell in alone if cell.clock == clock]
        rows = {
            (*cell.place, cell.configuration, cell.delivery, cell.payload, cell.command_line) for cell in here
        }
        found += len({cell.storage for cell in here}) * len(rows)
    return found


def places(cells: Iterable[Cell]) -> int:
    """The number of combinations of application, size, volume and clock. Each combination has its own figures in a
    report.
    """
    return len({(*cell.place, cell.storage, cell.clock) for cell in cells})


def launch_problems(samples: Sequence[Sample]) -> Iterator[str]:
    """A fault for each launch in which machines are missing, a machine's number is too high, or the samples have
    different dilations. ``samples`` are the samples of one results document.
    """
    found: dict[tuple[Cell, int], list[Sample]] = {}
    for index, sample in enumerate(samples):
        if sample.instance > sample.cell.instances:
            yield f"runs[{index}].instance: the cell has {sample.cell.instances} (got {sample.instance})"
        found.setdefault((sample.cell, sample.number), []).append(sample)
    for (cell, number), launched in found.items():
        if len({sample.instance for sample in launched}) < cell.instances:
            yield f"runs: {len(launched)} of {cell.instances} machines of run {number} ({words_of(cell)})"
        if len({sample.dilation_percent for sample in launched}) > 1:
            yield f"runs: several dilations in run {number} ({words_of(cell)})"


def at_a_time(cell: Cell) -> int:
    """The number of machines of a launch that run at the same time. With the pattern one-by-one, each machine
    ends before the next one starts.
    """
    return 1 if cell.pattern == "one-by-one" else cell.instances


def dilation_percent(cell: Cell, vcpus: int, processors: int) -> int:
    """The factor in percent by which the storage's times are multiplied when the vCPUs of all machines must share the
    host's processors. With this factor, the storage is as fast in relation to a vCPU as it would be if the host had a
    processor for each vCPU. ``processors`` is the number of the host's processors.

    The factor is 100 (no dilation) for machines that run alone on the host, for example with the pattern `single`.
    """
    if at_a_time(cell) == 1:
        return REAL
    return max(REAL, -(-REAL * at_a_time(cell) * vcpus // processors))


def command_line(words: str) -> str:
    """The kernel command line ``words`` with the additional option _NO_TIMER_CHECK. This command line is for a machine
    that shares the host's processors with other machines.
    """
    return words if _NO_TIMER_CHECK in words.split() else f"{words} {_NO_TIMER_CHECK}"


def dilated(model: StorageModel, percent: int) -> StorageModel:
    """The storage model with all times multiplied by ``percent`` / 100."""
    if percent == REAL:
        return model
    rate = model.bandwidth_bytes_s
    return replace(
        model,
        read_latency_ns=_slower(model.read_latency_ns, percent),
        write_latency_ns=_slower(model.write_latency_ns, percent),
        bandwidth_bytes_s=None if rate is None else max(1, rate * REAL // percent),
        first_touch_ns=_slower(model.first_touch_ns, percent),
        seek_ns=_slower(model.seek_ns, percent),
    )


def _slower(time_ns: int, percent: int) -> int:
    return -(-time_ns * percent // REAL)


def undilated(sample: Sample, percent: int) -> Sample:
    """The sample of a dilated launch, with all times converted back to undilated time. The parts of the sample's total
    time still add up to the total.
    """
    if percent == REAL:
        return sample

    def quicker(time_ns: int) -> int:
        return time_ns * REAL // percent

    t_pr_ns, t_app_ns, fetch_ns = (
        quicker(each) for each in (sample.t_pr_ns, sample.t_app_ns, sample.fetch_ns)
    )
    return replace(
        sample,
        t_pr_ns=t_pr_ns,
        t_app_ns=t_app_ns,
        t_total_ns=t_pr_ns + t_app_ns,
        uptime_ns=quicker(sample.uptime_ns),
        ready_uptime_ns=quicker(sample.ready_uptime_ns),
        fetch_ns=fetch_ns,
        before_kernel_ns=0 if sample.censored else t_pr_ns - fetch_ns,
        phases=_spans(sample.phases, quicker),
        units=_spans(sample.units, quicker),
        launched_ns=quicker(sample.launched_ns),
        dilation_percent=percent,
    )


def _spans(spans: Sequence[Phase], quicker: Callable[[int], int]) -> tuple[Phase, ...]:
    return tuple(Phase(each.name, quicker(each.begin_ns), quicker(each.end_ns)) for each in spans)


def demand_memory(count: int, each_mib: int, available_bytes: int) -> None:
    """Raise HostLacksError when less memory is available than ``count`` machines with ``each_mib`` MiB each need."""
    if count * each_mib * MIB > available_bytes:
        raise HostLacksError(
            f"{count} machines at a time take {count * each_mib} MiB of memory, {available_bytes // MIB} MiB are available",
            hint=f"at most {available_bytes // (each_mib * MIB)} of these, or another host",
        )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The summary of a cell's launches by one metric. In one launch, the 50th percentile is the median of the machines'
    values, and the 100th percentile is the largest value. ``p50`` and ``p100`` are the medians of these two numbers
    over all launches. ``p50`` or ``p100`` is None when a machine that did not become ready determines the median.

    ``machines`` is the number of machines that were launched. ``censored`` is the number of machines that did not
    become ready.
    """

    launches: int
    machines: int
    censored: int
    p50: int | None
    p100: int | None


def launched(samples: Sequence[Sample], metric: Metric) -> Launched:
    """The summary of one cell's launches by ``metric``. A censored machine, which did not become ready, counts as later
    than every other machine.
    """
    found: dict[int, list[int | None]] = {}
    for sample in samples:
        found.setdefault(sample.number, []).append(None if sample.censored else metric(sample))
    middles = [_middle(machines) for machines in found.values()]
    lasts = [
        None if None in machines else max(each for each in machines if each is not None)
        for machines in found.values()
    ]
    censored = sum(bool(sample.censored) for sample in samples)
    return Launched(
        launches=len(found),
        machines=len(samples),
        censored=censored,
        p50=_middle(middles),
        p100=_middle(lasts),
    )


def _middle(values: Sequence[int | None]) -> int | None:
    """The median of ``values``. None counts as later than every number."""
    known = [each for each in values if each is not None]
    return median_of_all(known, len(values) - len(known))
