"""Compare two results of a bench that have the same cells (docs/users/compare.md). The comparison says which times are
longer in the second result, in which phase of the boot, and which changes may explain the difference. This module has
no side effects.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from quickstart.errors import BadInputError, IncomparableError
from quickstart.measure.results import Cell, Results, Sample, words_of
from quickstart.measure.statistics import CONFIDENCE, by_cell, median, summarise
from quickstart.report.causes import PHASES_OF, Cause, causes
from quickstart.report.comparable import demand_comparable, paired, plain
from quickstart.report.ranks import later_p, shift, shift_interval, two_sided_p
from quickstart.report.threshold import Threshold

# Configurations whose init starts units in parallel, so that the order of events differs in each run
# (docs/users/times.md).
_RACING = ("standard", "standard-tuned")
# A stock boot counts as later only with this p-value and this share. docs/users/compare.md says why.
_RACE_P = Fraction(5, 1000)
_RACE_SHARE = Fraction(30, 100)
# A single run of ours may be late by chance, three are not.
_SURE_RUNS = 3
_STARTED = "application start"
# A phase that is less than this apart is not said to be later.
_PHASE_NS = 20_000_000

# The causes are kept for each cell, and all cells of one initramfs have the same causes. Our largest results have
# some thousand.
_MOST_CAUSES = 250_000
_DEFAULT = Threshold()
# More runs than anybody makes of a cell.
_MANY_RUNS = 100

Runs = Sequence[Sample]
Metric = Callable[[Sample], int]


@dataclass(frozen=True, kw_only=True)
class Time:
    """The comparison of one time of the results A and B. The time is T_app (from the start of the guest's kernel until
    ready), T_total (from the launch until ready) or, on the virtual clock, the end of the phase `application start`.
    ``a_ns`` and ``b_ns`` are the medians in A and B.

    For the clocks wall and kvm, ``p`` is the p-value of the Mann-Whitney test, and ``interval_ns`` is the confidence
    interval of the shift. The shift is the time by which B is later than A. ``verdict`` says whether B is ``later``,
    ``earlier`` or the ``same``. ``why`` gives the reason for the verdict.
    """

    name: str
    a_ns: int
    b_ns: int
    difference_ns: int
    threshold_ns: int
    verdict: str
    why: str
    p: float | None = None
    interval_ns: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseDifference:
    """The median durations of one phase of the boot in the results A and B. A median is None when no run of the result
    has the phase. ``causes`` lists the changes that may explain the difference, as indices in ``Compared.causes``.
    """

    name: str
    a_ns: int | None
    b_ns: int | None
    difference_ns: int
    causes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The comparison of one cell in the results A and B. ``runs`` has the numbers of runs in A and in B. ``censored``
    has the numbers of censored runs in A and in B. A run is censored when its guest did not become ready. In
    ``cell``, ``profile`` is the profile's name and never a path.
    """

    cell: Cell
    runs: tuple[int, int]
    censored: tuple[int, int]
    times: tuple[Time, ...]
    phases: tuple[PhaseDifference, ...]
    causes: tuple[Cause, ...]

    @property
    def regression(self) -> bool:
        return any(each.verdict == "later" for each in self.times)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two results.

    ``faults`` are texts, each of which names a cell that has no median. When there is a fault, one of the two
    measurements is not valid. ``notes`` are further texts for the reader of the comparison.
    """

    cells: tuple[Compared, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regression(self) -> bool:
        return any(each.regression for each in self.cells)


def compare(
    first: Results, second: Results, threshold: Threshold = _DEFAULT, *, across_versions: bool = False
) -> Comparison:
    """Compare the result ``second`` with the result ``first``, cell by cell. Raises IncomparableError when the two
    results cannot be compared.
    """
    notes = list(demand_comparable(first, second, across_versions=across_versions))
    before, after = by_cell(first.samples), by_cell(second.samples)
    cells: list[Compared] = []
    faults: list[str] = []
    # Machines of one launch are not independent runs, so the p-value of a rank test would be too small.
    pairs = [pair for pair in paired(first, second) if pair[0].instances == 1]
    if not pairs:
        raise IncomparableError(["every cell launches several machines at a time: none can be compared"])
    if left_out := len(first.plan) - len(pairs):
        notes.append(f"{left_out} cells launch several machines at a time: they are not compared")
    family = _family([cell for cell, _ in pairs])
    count = 0
    for pair in pairs:
        runs = before.get(pair[0], ()), after.get(pair[1], ())
        lacking = list(_lacking(plain(pair[0]), runs))
        faults += lacking
        if not lacking:
            found = causes(first, second, pair, runs)
            if (count := count + len(found)) > _MOST_CAUSES:
                raise BadInputError(
                    f"the two results have more than {_MOST_CAUSES} changes",
                    hint="compare results with fewer cells",
                )
            cells.append(_compared(plain(pair[0]), runs, found, threshold, family))
    notes += _few(cells, family)
    return Comparison(tuple(cells), tuple(faults), tuple(notes))


@dataclass(frozen=True)
class _Family:
    """The Bonferroni corrections for the comparison of many cells. When more cells are compared, more cells appear
    later only by chance. So with more cells, each cell needs a smaller p-value to count as later.

    ``real_tests`` is the number of tests for cells on a real clock (wall or kvm). ``race_p`` is the largest p-value at
    which a stock boot (the distribution's own boot) on the virtual clock counts as later.
    """

    real_tests: int
    race_p: Fraction


def _family(cells: Sequence[Cell]) -> _Family:
    # On a real clock, T_app and T_total of each cell are two tests. On the virtual clock, both times of a stock boot
    # are late together.
    races = sum(_races(cell) for cell in cells)
    return _Family(2 * sum(cell.clock != "virtual" for cell in cells), _RACE_P / max(1, races))


def _races(cell: Cell) -> bool:
    return cell.clock == "virtual" and cell.configuration in _RACING


def _lacking(cell: Cell, runs: tuple[Runs, Runs]) -> Iterator[str]:
    for word, side in zip("AB", runs, strict=True):
        if not side:
            yield f"{words_of(cell)}: not run in {word}"
        elif summarise(side, _T_TOTAL).median is None:
            lost = sum(1 for each in side if each.censored)
            why = next(each.censored for each in side if each.censored)
            yield f"{words_of(cell)}: no median in {word}, {lost} of {len(side)} runs are censored: {why}"


_T_APP: Metric = operator.attrgetter("t_app_ns")
_T_TOTAL: Metric = operator.attrgetter("t_total_ns")


def _compared(
    cell: Cell, runs: tuple[Runs, Runs], found: tuple[Cause, ...], threshold: Threshold, family: _Family
) -> Compared:
    metrics: dict[str, Metric] = {"t_app": _T_APP, "t_total": _T_TOTAL}
    if cell.clock == "virtual" and all(_has_started(side) for side in runs):
        metrics["started"] = _started_ns
    limit_ns = threshold.of(_median(runs[0], _T_TOTAL))
    if cell.clock == "virtual":
        times = [_virtual(cell, name, metric, runs, limit_ns, family) for name, metric in metrics.items()]
    else:
        times = [_real(name, metric, runs, limit_ns, family.real_tests) for name, metric in metrics.items()]
    return Compared(
        cell=cell,
        runs=(len(runs[0]), len(runs[1])),
        censored=(_censored(runs[0]), _censored(runs[1])),
        times=tuple(times),
        phases=tuple(_phases(runs, found)),
        causes=found,
    )


def _virtual(
    cell: Cell, name: str, metric: Metric, runs: tuple[Runs, Runs], limit_ns: int, family: _Family
) -> Time:
    a_ns, b_ns = _median(runs[0], metric), _median(runs[1], metric)
    raced = functools.partial(_raced, family.race_p)
    judge = functools.partial(raced if _races(cell) else _sequential, metric, limit_ns)
    verdict, why = judge(runs)
    if b_ns < a_ns:
        back, why = judge((runs[1], runs[0]))
        verdict = "earlier" if back == "later" else back
    return Time(
        name=name,
        a_ns=a_ns,
        b_ns=b_ns,
        difference_ns=b_ns - a_ns,
        threshold_ns=limit_ns,
        verdict=verdict,
        why=why,
    )


def _sequential(metric: Metric, limit_ns: int, runs: tuple[Runs, Runs]) -> tuple[str, str]:
    """The verdict on the runs of the second result, and the reason for the verdict. The verdict is ``later`` or
    ``same`` in comparison with the runs of the first result.
    """

    def charged(sample: Sample) -> int:
        return metric(sample) + sample.overlap_ns

    if _median(runs[1], metric) - _median(runs[0], metric) <= limit_ns:
        return "same", "within the threshold"
    before, after = _values(runs, metric)
    if min(after) <= max(before):
        return "same", "the runs of the two overlap"
    # I/O while the CPU is busy is charged to one run and not to another. The time that may be missing is measured by
    # the host's clock. A busy host makes this time too large, but never too small, so the smallest value of each side
    # is the best one.
    before, after = _values(runs, charged)
    if min(after) - min(before) <= limit_ns:
        return "same", "within the threshold with the overlap"
    return "later", "every run"


def _raced(race_p: Fraction, metric: Metric, limit_ns: int, runs: tuple[Runs, Runs]) -> tuple[str, str]:
    """The verdict (``later`` or ``same``) on the runs of a stock boot in the second result, and the reason for the
    verdict. In a stock boot (the distribution's own boot), the order in which units start differs in each run. So a
    stock boot needs another rule than the rule of `_sequential`.
    """
    difference_ns = _median(runs[1], metric) - _median(runs[0], metric)
    if difference_ns <= limit_ns:
        return "same", "within the threshold"
    before, after = _values(runs, metric)
    p = later_p(before, after)
    if p <= race_p:
        return "later", f"by rank, p = {float(p):.4f}"
    race_ns = int(_RACE_SHARE * _median(runs[0], _T_APP))
    if min(after) > max(before) and difference_ns > race_ns:
        return "later", "every run, by more than a stock boot's race"
    return "same", f"may be a stock boot's race, p = {float(p):.4f}"


def _real(name: str, metric: Metric, runs: tuple[Runs, Runs], limit_ns: int, tests: int) -> Time:
    a_ns, b_ns = _median(runs[0], metric), _median(runs[1], metric)
    before, after = _values(runs, metric)
    # A censored run has no time, and so no difference. It has only a rank.
    whole = not any(_censored(side) for side in runs)
    difference_ns = shift(before, after) if whole else b_ns - a_ns
    p = min(Fraction(1), two_sided_p(before, after) * tests)
    verdict, why = "same", "within the threshold"
    if abs(difference_ns) > limit_ns:
        sure = p <= 1 - CONFIDENCE
        verdict = ("later" if difference_ns > 0 else "earlier") if sure else "same"
        why = f"p = {float(p):.4f} of {tests} tests"
    interval_ns = shift_interval(before, after) if whole else None
    return Time(
        name=name,
        a_ns=a_ns,
        b_ns=b_ns,
        difference_ns=difference_ns,
        threshold_ns=limit_ns,
        verdict=verdict,
        why=why,
        p=float(p),
        interval_ns=interval_ns,
    )


def _values(runs: tuple[Runs, Runs], metric: Metric) -> tuple[list[int], list[int]]:
    """The times of the runs of both results. A run whose guest did not become ready (a censored run) counts as later
    than all other runs.
    """
    last = max(metric(each) for side in runs for each in side if not each.censored) + 1
    before, after = ([last if each.censored else metric(each) for each in side] for side in runs)
    return before, after


def _median(runs: Runs, metric: Metric) -> int:
    """The median time of the runs. The caller has made sure that the runs have a median (see `_lacking`, which names
    the runs without a median).
    """
    return summarise(runs, metric).median or 0


def _censored(runs: Runs) -> int:
    return sum(1 for each in runs if each.censored)


def _has_started(runs: Runs) -> bool:
    return all(each.censored or any(phase.name == _STARTED for phase in each.phases) for each in runs)


def _started_ns(sample: Sample) -> int:
    return next(phase.end_ns for phase in sample.phases if phase.name == _STARTED)


def _phases(runs: tuple[Runs, Runs], found: Sequence[Cause]) -> Iterator[PhaseDifference]:
    """The difference between the two results for each phase of the boot. The phases have the order of a boot. When only
    one of the results has a phase, the difference is the whole duration of this phase.
    """
    before, after = (_lengths(side) for side in runs)
    indices: dict[str, list[int]] = {}
    for at, cause in enumerate(found):
        for name in PHASES_OF[cause.kind]:
            indices.setdefault(name, []).append(at)
    for name in {**before, **after}:
        a_ns, b_ns = (median(each[name]) if name in each else None for each in (before, after))
        difference_ns = (b_ns or 0) - (a_ns or 0)
        named = tuple(indices.get(name, ())) if abs(difference_ns) >= _PHASE_NS else ()
        yield PhaseDifference(name=name, a_ns=a_ns, b_ns=b_ns, difference_ns=difference_ns, causes=named)


def _lengths(runs: Runs) -> Mapping[str, list[int]]:
    """The durations of each phase of the boot, one duration for each run that has the phase. The first phase is the
    fetch of kernel and initramfs.
    """
    found: dict[str, list[int]] = {}
    for sample in runs:
        if not sample.censored:
            found.setdefault("fetch", []).append(sample.fetch_ns)
            for phase in sample.phases:
                found.setdefault(phase.name, []).append(phase.end_ns - phase.begin_ns)
    return found


def _few(cells: Sequence[Compared], family: _Family) -> Iterator[str]:
    """Notes about cells with too few runs. With too few runs, some cells cannot count as later, even if all runs of the
    second result are later than those of the first result. Other cells may count as later only by chance. Each note
    says which of these two faults its cells have.
    """
    stock = [each for each in cells if _races(each.cell)]
    if few := [each for each in stock if _least_p(*each.runs) > family.race_p]:
        enough = next(runs for runs in range(1, _MANY_RUNS) if _least_p(runs, runs) <= family.race_p)
        yield (
            f"{len(few)} cells of a stock boot have too few runs to see less than {float(_RACE_SHARE):.0%} of T_app, {enough} of "
            f"each are enough; the first is {words_of(few[0].cell)}"
        )
    ours = [each for each in cells if each.cell.clock == "virtual" and not _races(each.cell)]
    if few := [each for each in ours if min(each.runs) < _SURE_RUNS]:
        yield (
            f"{len(few)} cells have fewer than {_SURE_RUNS} runs, and one that is late by chance would count; the first is "
            f"{words_of(few[0].cell)}"
        )
    real = [each for each in cells if each.cell.clock != "virtual"]
    if few := [each for each in real if 2 * family.real_tests * _least_p(*each.runs) > 1 - CONFIDENCE]:
        yield (
            f"{len(few)} cells on a real clock have too few runs for p ≤ {float(1 - CONFIDENCE):.2f} in {family.real_tests} tests, "
            f"whatever they measure; the first is {words_of(few[0].cell)}"
        )


def _least_p(first: int, second: int) -> Fraction:
    """The smallest possible one-sided p-value for a result with ``first`` runs and a result with ``second`` runs. The
    p-value is smallest when every run of one result is later than every run of the other result.
    """
    return later_p([0] * first, [1] * second)
