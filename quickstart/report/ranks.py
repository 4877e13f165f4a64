"""Compare two series of times by the ranks of their values. This module has the exact Mann-Whitney test and the
interval of shifts that this test accepts (docs/users/compare.md). This module has no side effects.

The Mann-Whitney test is a permutation test of ranks. Under the null hypothesis, all ways to divide the values between
the two series are equally likely, for any distribution of the values (Mann and Whitney, "On a test of whether one of
two random variables is stochastically larger", 1947). When there are many values, the normal distribution is used in
place of the exact count.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

from quickstart.measure.statistics import CONFIDENCE

# Counting the ways takes an addition for each pair and each value of the shorter series. This takes seconds for 200
# and 200 values, and hours for 1000 and 1000. Beyond 64 and 64 values, p comes from the normal distribution, which
# differs by less than 0.002.
_MOST_ADDITIONS = 1 << 18


def later_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """The one-sided p-value for the question whether ``second`` is later than ``first``.

    A pair consists of one value of ``first`` and one value of ``second``. A later pair is a pair whose value of
    ``second`` is later than its value of ``first``. The p-value is the probability that chance alone gives at least as
    many later pairs as the two series have. Each series must have at least one value. A pair of two equal values does
    not count as a later pair, so ties can only make the p-value larger.
    """
    after = sorted(second)
    seen = sum(len(after) - bisect.bisect_right(after, each) for each in first)
    if _are_many(first, second):
        return _p_of_many(seen, len(first), len(second))
    ways = _ways(*sorted((len(first), len(second))))
    return Fraction(sum(ways[seen:]), sum(ways))


def two_sided_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """The two-sided p-value. This is the probability that chance alone makes two series differ, in either direction, at
    least as much as ``first`` and ``second`` do.
    """
    return min(Fraction(1), 2 * min(later_p(first, second), later_p(second, first)))


def shift(first: Sequence[int], second: Sequence[int]) -> int:
    """The shift by which ``second`` is later than ``first``. The shift is the median of the differences of all pairs
    with one value of ``second`` and one value of ``first`` (Hodges and Lehmann, 1963).
    """
    pairs = len(first) * len(second)
    low, high = (_difference(first, second, at) for at in ((pairs - 1) // 2, pairs // 2))
    return (low + high) // 2


def shift_interval(first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
    """The confidence interval of the shift by which ``second`` is later than ``first``. The interval has all shifts
    that the two-sided test accepts at the confidence level CONFIDENCE. The result is None when the test accepts every
    shift, for example for three values in each series.
    """
    # The k-th smallest and k-th largest difference. k is chosen so that each side misses at most half of the allowed
    # error.
    k = _refused(first, second)
    if not k:
        return None
    return _difference(first, second, k - 1), _difference(first, second, len(first) * len(second) - k)


def _refused(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of pairwise differences that the two-sided test rejects at each end of the list of all pairwise
    differences. The list is sorted.
    """
    if _are_many(first, second):
        mean, deviation = _normal(len(first), len(second))
        return math.floor(mean + NormalDist().inv_cdf(float(1 - CONFIDENCE) / 2) * deviation + 0.5)
    ways = _ways(*sorted((len(first), len(second))))
    total, missed, k = sum(ways), 0, 0
    while k < len(ways) // 2 and Fraction(2 * (missed := missed + ways[k]), total) <= 1 - CONFIDENCE:
        k += 1
    return k


def _difference(first: Sequence[int], second: Sequence[int], index: int) -> int:
    """The pairwise difference at the position ``index`` (from 0) in the sorted list of all pairwise differences. This
    function counts pairs and does not make the list.
    """
    before, after = sorted(first), sorted(second)
    low, high = after[0] - before[-1], after[-1] - before[0]
    while low < high:
        middle = (low + high) // 2
        if sum(bisect.bisect_right(after, each + middle) for each in before) > index:
            high = middle
        else:
            low = middle + 1
    return low


def _are_many(first: Sequence[int], second: Sequence[int]) -> bool:
    return len(first) * len(second) * min(len(first), len(second)) > _MOST_ADDITIONS


def _p_of_many(seen: int, first: int, second: int) -> Fraction:
    """The probability that chance alone gives at least ``seen`` pairs in which the value of the second series is
    later. The first series has ``first`` values, and the second series has ``second`` values. The probability comes
    from the normal distribution.
    """
    mean, deviation = _normal(first, second)
    # The half is a continuity correction, because a count has only whole values.
    return Fraction(math.erfc((seen - 0.5 - mean) / (deviation * math.sqrt(2))) / 2)


def _normal(first: int, second: int) -> tuple[float, float]:
    """The mean and the standard deviation of the number of later pairs that chance alone gives. In a later pair, the
    value of the second series is later than the value of the first series.
    """
    return first * second / 2, math.sqrt(first * second * (first + second + 1) / 12)


@functools.cache
def _ways(first: int, second: int) -> tuple[int, ...]:
    """For each k = 0, 1, 2 …, the number of ways to divide ``first`` + ``second`` values into two series with exactly k
    later pairs. In a later pair, the value of the second series is later than the value of the first series.

    The numbers are the coefficients of the Gaussian binomial, which is the product of (1 - x^(second + i)) / (1 - x^i)
    for i from 1 to ``first``.
    """
    size = first * second + 1
    found = [1] + [0] * (size - 1)
    for i in range(1, first + 1):
        for at in range(size - 1, second + i - 1, -1):
            found[at] -= found[at - second - i]
        for at in range(i, size):
            found[at] += found[at - i]
    return tuple(found)
