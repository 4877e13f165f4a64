"""The report's conclusions: every number comes from the samples, by the rule of their clock."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quickstart.measure.results import COMMAND_LINES, CONFIGURATIONS, SIZES, Cell, Planned, Results, Sample
from quickstart.report.conclusions import conclusions, headline, overview, planned_samples
from tests.unit.benchdata import CELL, S, censored, realistic, results_of, sample

STANDARD = dataclasses.replace(CELL, configuration="standard")
MINIMAL = dataclasses.replace(CELL, configuration="minimal")


def measured(*samples: Sample) -> Results:
    cells = dict.fromkeys(each.cell for each in samples)
    runs = max(each.number for each in samples)
    return results_of([Planned(cell, runs, 600) for cell in cells], samples)


def moved(each: Sample, **axes: Any) -> Sample:
    return dataclasses.replace(each, cell=dataclasses.replace(each.cell, **axes))


def said(results: Results) -> str:
    return "\n".join(each for clock in conclusions(results) for each in clock.sentences)


def test_ours_counts_with_the_overlap_and_the_other_without() -> None:
    close = measured(
        sample(t_app_ns=2 * S, overlap_ns=S // 2), sample(STANDARD, t_app_ns=5 * S // 2, overlap_ns=9 * S)
    )
    text = said(close)
    assert "quickstart beside standard, T_app: faster in none of 1 comparisons, 1.00 times as fast" in text
    assert "By the same rule" not in text
    apart = measured(sample(t_app_ns=2 * S, overlap_ns=S // 2), sample(STANDARD, t_app_ns=5 * S))
    assert (
        "quickstart beside standard, T_app: faster in 1 of 1 comparisons, 2.00 times as fast; "
        "T_total: in 1 of 1, 1.71 times as fast." in said(apart)
    )


def test_a_rival_that_is_faster_is_said_to_be() -> None:
    text = said(measured(sample(t_app_ns=2 * S), sample(MINIMAL, t_app_ns=S, overlap_ns=S // 2)))
    assert "T_app: faster in none of 1 comparisons, 0.50 times as fast" in text
    assert "By the same rule minimal is faster in 1 of 1 (T_app) and 1 of 1 (T_total)." in text


def test_what_does_not_hold_is_named_where_others_hold() -> None:
    runs = [
        *(
            moved(sample(t_app_ns=ns), storage=storage)
            for storage, ns in (("local", 3 * S), ("ebs-cold", 4 * S))
        ),
        *(
            moved(sample(STANDARD, t_app_ns=ns), storage=storage)
            for storage, ns in (("local", 3 * S), ("ebs-cold", 9 * S))
        ),
    ]
    text = said(measured(*runs))
    assert "faster in 1 of 2 comparisons, 1.00 to 2.25 times as fast" in text
    assert (
        "not shown to be shorter for nginx quickstart stock local virtual small (3.00 s against 3.00 s)."
        in text
    )
    assert "ebs-cold instead of local adds to T_app: standard 6.00 s; quickstart 1.00 s." in text


def test_where_the_time_comes_from() -> None:
    text = said(realistic(configurations=CONFIGURATIONS, lines=COMMAND_LINES))
    assert "Not waiting for systemd saves 11.2" in text and "minimal, whose start set is empty" in text
    assert "Our experimental kernel options save of T_app: " in text and "; quickstart 0.9" in text


BUILT = dataclasses.replace(CELL, command_line="boot")


def test_what_is_built_stands_beside_a_distributions_boot_as_that_is() -> None:
    """By default nobody boots a distribution's image with our options."""
    results = measured(sample(BUILT, t_app_ns=S), sample(STANDARD, t_app_ns=8 * S))
    assert "quickstart beside standard, T_app: faster in 1 of 1 comparisons, 8.00 times" in said(results)
    first = headline(results)
    assert first is not None
    assert (first.command_line, first.rows[1][1]) == ("boot", ("8.00 s → 1.00 s, 8.0 times",))
    # Nor is anything else taken for it: ours with the stock options is beside what has these.
    minimal = measured(sample(BUILT, t_app_ns=S), sample(MINIMAL, t_app_ns=8 * S))
    assert "quickstart beside minimal" not in said(minimal)
    ours = measured(moved(sample(t_app_ns=S), command_line="ours"), sample(STANDARD, t_app_ns=8 * S))
    assert "quickstart beside standard" not in said(ours)


def test_the_same_options_come_before_a_distributions_own() -> None:
    same = dataclasses.replace(STANDARD, command_line="boot")
    results = measured(
        sample(BUILT, t_app_ns=S), sample(STANDARD, t_app_ns=8 * S), sample(same, t_app_ns=5 * S)
    )
    assert "quickstart beside standard, T_app: faster in 1 of 1 comparisons, 5.00 times" in said(results)


def test_what_is_built_is_the_headline_where_it_was_measured() -> None:
    stock = measured(sample(t_app_ns=3 * S), sample(BUILT, t_app_ns=S), sample(STANDARD, t_app_ns=9 * S))
    of_both, of_stock = headline(stock), headline(measured(sample(t_app_ns=3 * S), sample(STANDARD)))
    assert of_both is not None and of_stock is not None
    assert (of_both.command_line, of_stock.command_line) == ("boot", "stock")
    assert of_both.rows[1][1] == ("9.00 s → 1.00 s, 9.0 times",)
    assert "The kernel options of a build save of T_app: quickstart 2.00 s." in said(stock)


def test_the_widest_spread_is_named() -> None:
    runs = [sample(number=n, t_app_ns=S + n) for n in (1, 2)]
    runs += [sample(STANDARD, n, t_app_ns=n * S) for n in (1, 2)]
    assert "at most 1.00 s (66.7% of its median): nginx standard stock" in said(measured(*runs))


def test_a_censored_cell_holds_nothing_and_is_no_number() -> None:
    text = said(measured(sample(), censored(STANDARD)))
    assert "faster in none of 1 comparisons, by an unknown factor" in text
    assert headline(measured(sample(), censored(STANDARD))) is not None
    assert said(measured(censored(), censored(STANDARD))).count("\n") == 0


def test_each_clock_says_its_own() -> None:
    found = conclusions(realistic(clocks=("wall", "virtual"), runs=5))
    assert [each.clock for each in found] == ["virtual", "wall"]
    assert "overlap" in found[0].rule and "permutation" in found[1].rule
    assert conclusions(results_of([Planned(CELL, 1, 600)], [])) == ()


@pytest.mark.parametrize(
    ("storages", "sizes", "wanted"),
    [(("local", "ebs-cold"), SIZES, ("ebs-cold", "small")), (("local",), ("medium",), ("local", "medium"))],
)
def test_the_first_picture_is_of_the_slowest_volume_and_the_smallest_machine(
    storages: tuple[str, ...], sizes: tuple[str, ...], wanted: tuple[str, str]
) -> None:
    results = realistic(storages=storages, sizes=sizes, clocks=("wall", "virtual"))
    chosen: dict[Cell, object] = {**overview(planned_samples(results))}
    assert {(cell.clock, cell.storage, cell.size) for cell in chosen} == {("virtual", *wanted)}
    assert len(chosen) == 3


def test_a_payload_that_was_asked_for_is_compared_with_those_that_have_none() -> None:
    plain, packed = (dataclasses.replace(CELL, payload=word) for word in ("cpio", "lz4"))
    results = measured(
        sample(plain, t_app_ns=2 * S), sample(packed, t_app_ns=3 * S), sample(STANDARD, t_app_ns=6 * S)
    )
    assert (
        "quickstart beside standard, T_app: faster in all 2 comparisons, 2.00 to 3.00 times as fast"
        in said(results)
    )
    first = headline(results)
    assert first is not None
    assert first.rows[1][1] == ("6.00 s → 2.00 s, 3.0 times",)
