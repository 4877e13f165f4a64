"""Two series by their ranks (pure): the exact Mann-Whitney test, and the shifts that it does not refuse (docs/users/compare.md).

It is a permutation test of the ranks: under the null hypothesis every way to part the values is as likely, whatever they are
distributed like (Mann and Whitney, "On a test of whether one of two random variables is stochastically larger", 1947).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

from quickstart.measure.statistics import CONFIDENCE, median


def later_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """One-sided p that chance alone makes ``second`` later than ``first`` as often as it is, of at least one value each.

    Equal values count as not later, so ties make p larger, never smaller.
    """
    ways = _ways(len(first), len(second))
    seen = sum(after > before for before in first for after in second)
    return Fraction(sum(ways[seen:]), sum(ways))


def two_sided_p(first: Sequence[int], second: Sequence[int]) -> Fraction:
    """p that chance alone moves the two as far apart, in whatever direction."""
    return min(Fraction(1), 2 * min(later_p(first, second), later_p(second, first)))


def shift(first: Sequence[int], second: Sequence[int]) -> int:
    """By how much ``second`` is later: the median of all pairwise differences (Hodges and Lehmann, 1963)."""
    return median([after - before for before in first for after in second])


def shift_interval(first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
    """The shifts that the two-sided test does not refuse at CONFIDENCE; None where it can refuse none (three and three values)."""
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
    """In how many of all ways to part ``first`` + ``second`` values a given number of pairs is in one order: 0, 1, 2 … pairs.

    The coefficients of the Gaussian binomial: the product of (1 - x^(second + i)) / (1 - x^i) for i from 1 to ``first``.
    """
    size = first * second + 1
    found = [1] + [0] * (size - 1)
    for i in range(1, first + 1):
        for at in range(size - 1, second + i - 1, -1):
            found[at] -= found[at - second - i]
        for at in range(i, size):
            found[at] += found[at - i]
    return tuple(found)
