"""Compare two series by their ranks (pure): the exact Mann-Whitney test, and the interval of shifts that it
accepts (compare.md).

It is a permutation test of the ranks: under the null hypothesis every partition of the values is equally
likely, whatever their distribution (Mann and Whitney, "On a test of whether one of two random variables is
stochastically larger", 1947).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

from quickstart.measure.statistics import CONFIDENCE, median


def later_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """The one-sided p that chance alone makes ``second`` later than ``first`` at least as often. Each has
    at least one value.

    Equal values count as not later, so ties make p larger, never smaller.
    """
    ways = _ways(len(first), len(second))
    seen = sum(after > before for before in first for after in second)
    return Fraction(sum(ways[seen:]), sum(ways))


def two_sided_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """The two-sided p that chance alone moves the two series as far apart, in either direction."""
    return min(Fraction(1), 2 * min(later_p(first, second), later_p(second, first)))


def shift(first: Sequence[int], second: Sequence[int]) -> int:
    """The shift by which ``second`` is later: the median of all pairwise differences (Hodges and Lehmann,
    1963).
    """
    return median([after - before for before in first for after in second])


def shift_interval(first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
    """The interval of shifts that the two-sided test accepts at CONFIDENCE; None where it accepts all
    (three and three values).
    """
    ways = _ways(len(first), len(second))
    total, missed, k = sum(ways), 0, 0
    # The k-th smallest and k-th largest difference, as many as leave no more than half of what may be missed on each side.
    while k < len(ways) // 2 and Fraction(2 * (missed := missed + ways[k]), total) <= 1 - CONFIDENCE:
        k += 1
    if not k:
        return None
    differences = sorted(after - before for before in first for after in second)
    return differences[k - 1], differences[-k]


@functools.cache
def _ways(first: int, second: int) -> tuple[int, ...]:
    """The number of partitions of ``first`` + ``second`` values in which 0, 1, 2 … pairs are in one given
    order.

    The numbers are the coefficients of the Gaussian binomial: the product of (1 - x^(second + i)) / (1 -
    x^i) for i from 1 to ``first``.
    """
    size = first * second + 1
    found = [1] + [0] * (size - 1)
    for i in range(1, first + 1):
        for at in range(size - 1, second + i - 1, -1):
            found[at] -= found[at - second - i]
        for at in range(i, size):
            found[at] += found[at - i]
    return tuple(found)
