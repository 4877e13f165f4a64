"""Compute statistics of samples (pure). These are medians, spreads and ratios, and how certain they are
(docs/users/measuring.md).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from quickstart.errors import MixedClocksError
from quickstart.measure.results import Cell, Sample

Metric = Callable[[Sample], int]

CONFIDENCE = Fraction(95, 100)
# If there are more ways to divide the samples than this, ways are drawn at random, always with the same seed.
_EXACT = 20_000
_DRAWS = 10_000
# With more values than this, there are fewer draws: some thousand runs would take minutes otherwise.
_FULL_DRAWS_VALUES = 200
_LEAST_DRAWS = 1_000
_SEED = 1
_T_APP: Metric = operator.attrgetter("t_app_ns")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of a cell's runs by one metric. The values are in the unit of the metric.

    ``n`` runs became ready, and ``censored`` runs did not become ready. For ``median``, a censored run counts as later
    than every other run. ``median`` is None when the middle run, or one of the two middle runs, is censored.
    ``minimum`` and ``maximum`` are the extremes of the runs that became ready.
    """

    n: int
    censored: int
    median: int | None
    minimum: int | None
    maximum: int | None

    @property
    def spread(self) -> int | None:
        """The difference between maximum and minimum. The result is None when no run became ready."""
        return None if self.maximum is None or self.minimum is None else self.maximum - self.minimum

    @property
    def spread_share(self) -> float | None:
        """The spread divided by the median. The result is None when there is no median."""
        return None if self.spread is None or not self.median else self.spread / self.median


@dataclass(frozen=True)
class Comparison:
    """The comparison of two cells on a real clock. ``difference_ns`` is the difference of the two cells' medians. ``p``
    is the probability that chance alone gives a difference of this size or a larger one, in either direction.
    """

    difference_ns: int
    p: float


@dataclass(frozen=True)
class Claim:
    """The claim that one cell ("ours") is faster than another cell ("the rival"), and whether the claim holds. On the
    virtual clock, ``ours_ns`` includes the overlap, which is the time that this clock may have failed to count, and
    ``p`` is None. When one of the cells has no median, the claim does not hold and has no numbers.
    """

    holds: bool
    ours_ns: int | None = None
    rival_ns: int | None = None
    p: float | None = None

    @property
    def factor(self) -> float | None:
        """The factor by which our cell is faster. This is the rival's time divided by our time. On the virtual clock,
        the factor may be too small, because our time includes the whole overlap. The overlap is the time that this
        clock may have failed to count.
        """
        return self.rival_ns / self.ours_ns if self.ours_ns and self.rival_ns else None


def by_cell(samples: Iterable[Sample]) -> dict[Cell, tuple[Sample, ...]]:
    """The samples of each cell, in the order in which they were run."""
    found: dict[Cell, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.cell, []).append(sample)
    return {cell: tuple(each) for cell, each in found.items()}


def demand_one_clock(cells: Iterable[Cell]) -> None:
    """Raise MixedClocksError when the cells have several clocks. Times on different clocks are not comparable and must
    not be in one table.
    """
    clocks = sorted({cell.clock for cell in cells})
    if len(clocks) > 1:
        raise MixedClocksError(
            f"times of several clocks in one table: {', '.join(clocks)}", hint="make one table for each clock"
        )


def median(values: Sequence[int]) -> int:
    """The median of at least one value. When there are two middle values, the median is their mean, rounded down."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def median_of_all(known: Sequence[int], censored: int) -> int | None:
    """The median of the values ``known`` and of ``censored`` further values, which are not known. Each unknown value
    counts as later than all known values. The result is None when an unknown value is in the middle.
    """
    later = [*sorted(known), *itertools.repeat(None, censored)]
    middle = later[(len(later) - 1) // 2 : len(later) // 2 + 1]
    return median([each for each in middle if each is not None]) if middle and None not in middle else None


def summarise(samples: Sequence[Sample], metric: Metric) -> Summary:
    """The summary of a cell's runs by ``metric``, for example ``lambda sample: sample.t_app_ns``."""
    ready = sorted(metric(sample) for sample in samples if not sample.censored)
    if not ready:
        return Summary(n=0, censored=len(samples), median=None, minimum=None, maximum=None)
    censored = len(samples) - len(ready)
    return Summary(
        n=len(ready),
        censored=censored,
        median=median_of_all(ready, censored),
        minimum=ready[0],
        maximum=ready[-1],
    )


def ratios(summaries: Mapping[Cell, Summary], axis: str, base: str) -> dict[Cell, float | None]:
    """Each cell's median, divided by the median of its base cell. The field ``axis`` of the base cell has the value
    ``base``, and all other fields are the same in both cells. For example, ``axis`` is ``configuration``, and ``base``
    is ``standard``. With this axis, payload and delivery may differ, too.

    The ratio is None when one of the two cells has no median. The result does not have cells whose base cell is not in
    ``summaries``. Raises MixedClocksError when the cells have several clocks.
    """
    demand_one_clock(summaries)
    rests = {_rest(cell, axis): summary for cell, summary in summaries.items() if getattr(cell, axis) == base}
    found: dict[Cell, float | None] = {}
    for cell, summary in summaries.items():
        other = rests.get(_rest(cell, axis))
        if other is not None:
            known = summary.median is not None and other.median
            found[cell] = summary.median / other.median if known and summary.median and other.median else None
    return found


def _rest(cell: Cell, axis: str) -> tuple[tuple[str, str], ...]:
    # Only one configuration has a payload and a delivery, so these do not count as another difference between
    # configurations.
    same = (axis, "payload", "delivery") if axis == "configuration" else (axis,)
    return tuple((name, value) for name, value in vars(cell).items() if name not in same)


def permutation_test(ours: Sequence[int], rival: Sequence[int]) -> Comparison:
    """The two-sided permutation test of the difference of medians (ours - rival). Both ``ours`` and ``rival`` have at
    least one value.

    A partition divides all values into two groups of the same sizes as ``ours`` and ``rival``. When there are few
    partitions, the test uses all of them. Otherwise, the test uses 10 000 random partitions, with a fixed seed. For
    more than 200 values, it uses fewer random partitions. The observed partition is always counted, so that p is never
    0 (Phipson and Smyth, "Permutation p-values should never be zero", 2010).
    """
    return _permutation_test(tuple(ours), tuple(rival))


# A report asks for the same test several times.
@functools.lru_cache(maxsize=1024)
def _permutation_test(ours: tuple[int, ...], rival: tuple[int, ...]) -> Comparison:
    seen = median(ours) - median(rival)
    size = len(ours)
    # The pool is sorted, so that every part of it is sorted.
    pool = sorted(enumerate((*ours, *rival)), key=operator.itemgetter(1))
    if math.comb(len(pool), size) <= _EXACT:
        parts = itertools.combinations(range(len(pool)), size)
        differences = [_difference(pool, set(part)) for part in parts]
        return Comparison(seen, sum(abs(each) >= abs(seen) for each in differences) / len(differences))
    # The seed is no secret. With it, the same samples give the same p.
    chance = random.Random(_SEED)  # noqa: S311
    draws = max(_LEAST_DRAWS, min(_DRAWS, _DRAWS * _FULL_DRAWS_VALUES // len(pool)))
    hits = sum(
        abs(_difference(pool, set(chance.sample(range(len(pool)), size)))) >= abs(seen) for _ in range(draws)
    )
    return Comparison(seen, (hits + 1) / (draws + 1))


def _difference(pool: Sequence[tuple[int, int]], part: set[int]) -> int:
    """The difference of the medians of two parts of ``pool``. ``pool`` has pairs of an index and a value. ``part`` has
    the indices of the first part, and all other indices belong to the second part.
    """
    return median([value for index, value in pool if index in part]) - median(
        [value for index, value in pool if index not in part]
    )


def median_interval(values: Sequence[int]) -> tuple[int, int] | None:
    """An interval that contains the true median with a probability of at least ``CONFIDENCE``, for any distribution of
    the values.

    The ends of the interval are two of the values, which are chosen by the binomial distribution. The result is None
    for fewer than six values, because no such interval exists for so few values.
    """
    ordered, n = sorted(values), len(values)
    # The k-th smallest and k-th largest miss the median when fewer than k values fall on one side of it.
    missed, k = Fraction(0), 0
    while k < n // 2 and (missed := missed + Fraction(2 * math.comb(n, k), 2**n)) <= 1 - CONFIDENCE:
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def claim_faster(ours: Sequence[Sample], rival: Sequence[Sample], metric: Metric = _T_APP) -> Claim:
    """The claim that one cell ("ours") is faster than another cell ("the rival") in T_app, or in another ``metric``.
    ``ours`` has the samples of the first cell, and ``rival`` has the samples of the second cell.

    On the virtual clock, the function adds the whole overlap to our time, and nothing to the rival's time. The overlap
    is the time that this clock may have failed to count. On a real clock, the claim holds only if the permutation test
    (`permutation_test`) confirms the difference. Raises MixedClocksError when the two cells have different clocks.
    """
    demand_one_clock(sample.cell for sample in (*ours, *rival))
    virtual = any(sample.cell.clock == "virtual" for sample in ours)
    left = summarise(ours, lambda sample: metric(sample) + sample.overlap_ns).median
    right = summarise(rival, metric).median
    if left is None or right is None:
        return Claim(holds=False)
    if virtual:
        return Claim(left < right, left, right)
    # A censored run was later than all other runs. The test treats it as the latest run.
    last = max(metric(sample) for sample in (*ours, *rival)) + 1
    p = permutation_test(*([metric(s) if not s.censored else last for s in each] for each in (ours, rival))).p
    return Claim(left < right and p <= 1 - CONFIDENCE, left, right, p)
