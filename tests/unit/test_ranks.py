"""The rank test, compared with every partition of a few values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.report import ranks
from quickstart.report.ranks import later_p, shift, shift_interval, two_sided_p

FEW = st.lists(st.integers(0, 1000), min_size=1, max_size=5)


def pairs(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(after > before for before in first for after in second)


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=9, unique=True), st.data())
def test_p_is_the_share_of_the_ways_to_part_the_values(pool: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(pool) - 1))
    first, second = pool[:size], pool[size:]
    hits = [
        pairs(part, [each for each in pool if each not in part]) >= pairs(first, second)
        for part in itertools.combinations(pool, size)
    ]
    assert later_p(first, second) == Fraction(sum(hits), len(hits))


@given(FEW, FEW)
def test_equal_values_never_make_it_smaller(first: list[int], second: list[int]) -> None:
    apart = [2 * each for each in first], [2 * each + 1 for each in second]
    assert later_p(first, second) >= later_p(*apart)
    assert later_p(first, first) > Fraction(1, 4)


def test_five_of_each_all_later() -> None:
    assert later_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == Fraction(1, 252)
    assert two_sided_p([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == Fraction(2, 252)
    assert two_sided_p([1], [2]) == 1


@given(
    st.lists(st.integers(0, 10**6), min_size=4, max_size=7),
    st.lists(st.integers(0, 10**6), min_size=4, max_size=7),
)
def test_the_interval_is_what_the_test_does_not_refuse(first: list[int], second: list[int]) -> None:
    interval = shift_interval(first, second)
    assert interval is not None
    low, high = interval
    assert low <= shift(first, second) <= high
    for moved, outside in ((low - 1, True), (high + 1, True), (low, False), (high, False)):
        p = two_sided_p([each + moved for each in first], second)
        assert (p <= Fraction(5, 100)) == outside or (not outside and low == high)


def test_three_and_three_have_no_interval() -> None:
    assert shift_interval([1, 2, 3], [11, 12, 13]) is None
    assert shift_interval([1, 2, 3, 4], [11, 12, 13, 14]) == (7, 13)


def test_a_known_shift_is_in_the_interval_and_many_runs_are_quick() -> None:
    first = [100 * each % 977 for each in range(60)]
    assert shift(first, [each + 500 for each in first]) == 500
    interval = shift_interval(first, [each + 500 for each in first])
    assert interval is not None and 0 < interval[0] <= 500 <= interval[1] < 1000


def test_a_thousand_runs_are_counted_by_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's results.json has up to 1000 runs of a cell: to count the ways to part them takes hours."""

    def never(*_: int) -> tuple[int, ...]:
        raise AssertionError("counted")

    monkeypatch.setattr(ranks, "_ways", never)
    first = [997 * each % 1009 for each in range(1000)]
    later = [each + 100 for each in first]
    assert two_sided_p(first, first) == 1
    assert two_sided_p(first, later) < Fraction(1, 10**6)
    assert shift(first, later) == 100
    low, high = shift_interval(first, later) or (0, 0)
    assert 60 < low < 100 < high < 140


@pytest.mark.parametrize("sizes", [(65, 65), (17, 1000), (40, 200)])
def test_the_normal_distribution_is_near_the_count(sizes: tuple[int, int]) -> None:
    ways = ranks._ways(*sizes)
    total, after = sum(ways), 0
    for seen in range(len(ways) - 1, len(ways) // 2, -1):
        after += ways[seen]
        assert abs(ranks._p_of_many(seen, *sizes) - Fraction(after, total)) < Fraction(2, 1000)
