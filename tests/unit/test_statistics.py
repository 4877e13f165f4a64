"""The statistics of samples, compared with slow and simple definitions."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import statistics as plain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import MixedClocksError
from quickstart.measure import statistics
from quickstart.measure.results import Cell, Sample
from quickstart.measure.statistics import (
    Summary,
    claim_faster,
    median_interval,
    permutation_test,
    ratios,
    summarise,
)
from tests.unit.benchdata import CELL, S, censored, sample

TIMES = st.lists(st.integers(1, 10**12), min_size=1, max_size=12)
FEW = st.lists(st.integers(1, 30), min_size=1, max_size=5)
WALL = dataclasses.replace(CELL, clock="wall")
STANDARD = dataclasses.replace(CELL, configuration="standard")
t_app_ns = operator.attrgetter("t_app_ns")


def runs(times: list[int], lost: int = 0, cell: Cell = CELL, overlap_ns: int = 0) -> list[Sample]:
    ready = [sample(cell, number, t, overlap_ns=overlap_ns) for number, t in enumerate(times, start=1)]
    return [*ready, *(censored(cell, len(times) + 1 + each) for each in range(lost))]


@given(TIMES)
def test_median(times: list[int]) -> None:
    assert statistics.median(times) == math.floor(plain.median(times))


@given(TIMES, st.integers(0, 12))
def test_a_censored_run_is_later_than_every_other(times: list[int], lost: int) -> None:
    found = summarise(runs(times, lost), t_app_ns)
    # Infinity stands for a run that did not get ready.
    middle = plain.median([*map(float, times), *([math.inf] * lost)])
    assert (found.n, found.censored) == (len(times), lost)
    assert found.median == (None if math.isinf(middle) else math.floor(middle))
    assert (found.minimum, found.maximum, found.spread) == (min(times), max(times), max(times) - min(times))


def test_spread_is_told_as_a_share() -> None:
    assert summarise(runs([90, 100, 120]), t_app_ns).spread_share == 0.3


def test_nothing_ready_has_no_number() -> None:
    assert summarise(runs([], lost=3), t_app_ns) == Summary(
        n=0, censored=3, median=None, minimum=None, maximum=None
    )
    assert summarise(runs([], lost=3), t_app_ns).spread_share is None
    assert summarise([], t_app_ns) == Summary(n=0, censored=0, median=None, minimum=None, maximum=None)


def test_ratios_are_of_cells_with_the_same_rest() -> None:
    medium = dataclasses.replace(CELL, size="medium")
    summaries = {
        STANDARD: Summary(n=3, censored=0, median=10, minimum=1, maximum=1),
        CELL: Summary(n=3, censored=0, median=5, minimum=1, maximum=1),
        medium: Summary(n=3, censored=0, median=7, minimum=1, maximum=1),
    }
    assert ratios(summaries, "configuration", "standard") == {STANDARD: 1.0, CELL: 0.5}
    packed = dataclasses.replace(CELL, payload="lz4")
    assert (
        ratios(
            {**summaries, packed: Summary(n=3, censored=0, median=4, minimum=1, maximum=1)},
            "configuration",
            "standard",
        )[packed]
        == 0.4
    )
    assert ratios(
        {**summaries, STANDARD: Summary(n=0, censored=3, median=None, minimum=None, maximum=None)},
        "configuration",
        "standard",
    ) == {
        STANDARD: None,
        CELL: None,
    }


def test_times_of_two_clocks_make_no_ratio() -> None:
    some = Summary(n=1, censored=0, median=1, minimum=1, maximum=1)
    with pytest.raises(MixedClocksError, match="several clocks in one table: virtual, wall"):
        ratios({CELL: some, WALL: some}, "configuration", "standard")


def test_times_of_two_clocks_make_no_claim() -> None:
    with pytest.raises(MixedClocksError, match="several clocks"):
        claim_faster(runs([1]), runs([2], cell=WALL))


@given(FEW, FEW)
def test_the_permutation_test_is_exact_for_few(ours: list[int], rival: list[int]) -> None:
    pool = [*ours, *rival]
    seen = abs(statistics.median(ours) - statistics.median(rival))
    hits = total = 0
    for order in itertools.permutations(range(len(pool))) if len(pool) <= 6 else ():
        left, right = order[: len(ours)], order[len(ours) :]
        one, two = (statistics.median([pool[index] for index in part]) for part in (left, right))
        hits, total = hits + (abs(one - two) >= seen), total + 1
    found = permutation_test(ours, rival)
    assert found.difference_ns == statistics.median(ours) - statistics.median(rival)
    if total:
        assert found.p == pytest.approx(hits / total)


@given(FEW, FEW)
def test_the_permutation_test_has_two_equal_sides(ours: list[int], rival: list[int]) -> None:
    one, two = permutation_test(ours, rival), permutation_test(rival, ours)
    assert one.difference_ns == -two.difference_ns
    assert one.p == pytest.approx(two.p)
    assert 0 < one.p <= 1


def test_many_samples_are_drawn_from_the_same_way_each_time() -> None:
    left, right = list(range(100, 110)), list(range(200, 210))
    assert math.comb(20, 10) > 20_000
    found = permutation_test(left, right)
    assert found == permutation_test(left, right)
    assert 1 / 10_001 <= found.p < 0.01
    assert permutation_test(left, left).p == 1


@pytest.mark.parametrize(("runs", "draws"), [(20, 10_000), (100, 10_000), (200, 5_000), (2_000, 1_000)])
def test_many_values_are_drawn_less_often(runs: int, draws: int) -> None:
    """By 10 000 draws, a thousand runs took a second for each test of a report."""
    found = permutation_test(range(runs), range(10**6, 10**6 + runs))
    assert found.p == 1 / (draws + 1)


def test_a_test_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = permutation_test(range(50), range(40, 90))
    monkeypatch.setattr(statistics, "_difference", None)
    assert permutation_test(range(50), range(40, 90)) == before


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_the_interval_is_the_narrowest_that_is_sure_enough(values: list[int]) -> None:
    n, ordered = len(values), sorted(values)

    def covered(k: int) -> float:
        """The probability that the median lies between the k-th smallest and the k-th largest."""
        ways: int = sum(math.comb(n, each) for each in range(k, n - k + 1))
        return ways / float(2**n)

    good = [k for k in range(1, n // 2 + 1) if covered(k) >= 0.95]
    assert median_interval(values) == ((ordered[max(good) - 1], ordered[n - max(good)]) if good else None)


def test_five_values_have_no_interval() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([1, 2, 3, 4, 5, 6]) == (1, 6)


def test_on_the_virtual_clock_ours_has_to_carry_its_overlap() -> None:
    rival = runs([10 * S] * 3, cell=STANDARD, overlap_ns=9 * S)
    assert claim_faster(runs([8 * S] * 3, overlap_ns=S), rival).holds
    refused = claim_faster(runs([8 * S] * 3, overlap_ns=2 * S), rival)
    assert (refused.holds, refused.ours_ns, refused.rival_ns, refused.p) == (False, 10 * S, 10 * S, None)


def test_a_factor_is_what_it_is_at_the_least() -> None:
    assert claim_faster(runs([4 * S], overlap_ns=S), runs([10 * S], cell=STANDARD)).factor == 2


def test_on_the_wall_clock_chance_has_to_be_unlikely() -> None:
    slow = dataclasses.replace(WALL, configuration="standard")
    sure = claim_faster(runs([1, 2, 3, 4, 5], cell=WALL), runs([11, 12, 13, 14, 15], cell=slow))
    assert sure.holds
    assert sure.p is not None
    assert sure.p < 0.05
    assert not claim_faster(runs([1, 2, 3, 4], cell=WALL), runs([11, 12, 13, 14], cell=slow)).holds
    assert not claim_faster(runs([11, 12, 13, 14, 15], cell=WALL), runs([1, 2, 3, 4, 5], cell=slow)).holds


def test_a_censored_cell_makes_no_claim() -> None:
    assert not claim_faster(runs([1], lost=1), runs([9], cell=STANDARD)).holds
    assert claim_faster(runs([1]), runs([], lost=3, cell=STANDARD)).factor is None
