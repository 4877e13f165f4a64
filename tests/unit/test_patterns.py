"""Launches of several machines: the keys of a matrix, dilated time, p50 and p100 with censored machines, and their document."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import HostLacksError, MatrixError, ResultsError
from quickstart.measure.matrix import matrix_of_options, order, parse_matrix
from quickstart.measure.patterns import (
    cell_problem,
    command_line,
    demand_memory,
    dilated,
    dilation_percent,
    launched,
    launches_of,
    undilated,
)
from quickstart.measure.results import Cell, Phase, Planned, Results, Sample, words_of
from quickstart.model import MIB
from quickstart.report import document, launch_report
from quickstart.report.compare import compare
from quickstart.report.summary import summary
from quickstart.volume.storage import load_model
from tests.unit.benchdata import CELL, S, censored, results_of, sample

ALONE = dataclasses.replace(CELL, clock="wall")
BURST = dataclasses.replace(ALONE, pattern="burst", instances=4)
STAGGERED = dataclasses.replace(ALONE, pattern="staggered", instances=4, stagger_ms=500)
ONE_BY_ONE = dataclasses.replace(ALONE, pattern="one-by-one", instances=4)
GOOD = """\
schema = 1
name = "m"
[[block]]
profiles = ["nginx"]
configurations = ["standard", "quickstart"]
storages = ["ebs-cold"]
clocks = ["wall"]
patterns = ["one-by-one", "staggered", "burst"]
instances = [1, 4]
stagger_ms = 500
"""
TOTAL = operator.attrgetter("t_total_ns")


def machines(cell: Cell, number: int, *seconds: float | None, **fields: object) -> list[Sample]:
    """One launch: the T_total of its machines, None for one that did not get ready."""
    made = []
    for index, each in enumerate(seconds, start=1):
        one = censored(cell, number) if each is None else sample(cell, number, int(each * S) - S)
        made.append(dataclasses.replace(one, instance=index, **fields))  # type: ignore[arg-type]
    return made


def whole() -> Results:
    plan = [Planned(cell, 1, 600) for cell in (ALONE, BURST, STAGGERED)]
    return results_of(
        plan,
        [
            sample(ALONE, t_app_ns=4 * S),
            *machines(BURST, 1, 6, 7, 8, 9, dilation_percent=200),
            *machines(STAGGERED, 1, 5, 6, 7, None, dilation_percent=200),
        ],
    )


# ---------------------------------------------------------------- matrix


def test_a_pattern_of_one_machine_is_a_single_run_whatever_the_pattern() -> None:
    plan = parse_matrix(GOOD, "m", ["nginx"]).plan
    found = [each.cell.launched for each in plan if each.cell.configuration == "standard"]
    assert found == ["", "4 one by one", "4, one every 500 ms", "burst of 4"]
    assert {each.cell.stagger_ms for each in plan if each.cell.pattern != "staggered"} == {0}
    assert len(order(plan)) == 2 * 4 * 5
    assert words_of(plan[-1].cell).endswith("wall small burst of 4")
    assert launches_of(("burst",), (16, 2), 0) == (("burst", 16, 0), ("burst", 2, 0))


def test_without_a_word_every_run_is_of_one_machine() -> None:
    text = "".join(
        line for line in GOOD.splitlines(keepends=True) if not line.startswith(("patt", "inst", "stag"))
    )
    plan = parse_matrix(text, "m", ["nginx"]).plan
    assert {(each.cell.pattern, each.cell.instances, each.cell.stagger_ms) for each in plan} == {
        ("single", 1, 0)
    }


def test_options_ask_for_patterns() -> None:
    plan = matrix_of_options(
        {
            "profiles": ("nginx",),
            "configurations": ("quickstart",),
            "storages": ("ebs-cold",),
            "clocks": ("wall",),
            "patterns": ("burst",),
            "instances": (2, 16),
            "stagger_ms": 0,
        },
        ["nginx"],
    ).plan
    assert [each.cell.launched for each in plan] == ["burst of 2", "burst of 16"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"burst"', '"burts"', "patterns[2]: no pattern 'burts'; did you mean 'burst'?"),
        ('"burst"', '"staggered"', "patterns[2]: 'staggered' again"),
        ("[1, 4]", "[4, 17]", "instances[1]: "),
        ("[1, 4]", "[0]", "instances[0]: "),
        ("[1, 4]", '["4"]', "instances[0]: "),
        ("[1, 4]", "[4, 4]", "instances[1]: 4 again"),
        ("instances = [1, 4]\n", "", "instances: missing; one-by-one is of several machines: how many?"),
        ("stagger_ms = 500\n", "", "stagger_ms: missing; staggered launches are how far apart?"),
        ("500", "-1", "stagger_ms: "),
        (
            '"staggered", ',
            "",
            "stagger_ms: only staggered launches are apart, which are not among the patterns",
        ),
        (
            'patterns = ["one-by-one", "staggered", "burst"]\n',
            "",
            "instances: only a pattern has several, and single is none",
        ),
        ('["wall"]', '["wall", "virtual"]', "clocks[1]: the virtual clock cannot time several guests"),
    ],
)
def test_a_fault_is_named_with_its_place(old: str, new: str, said: str) -> None:
    with pytest.raises(MatrixError) as caught:
        parse_matrix(GOOD.replace(old, new, 1), "m.toml", ["nginx"])
    assert any(each.startswith(f"block[0].{said}") for each in caught.value.problems), caught.value.problems
    assert caught.value.exit_code == 2


def test_the_virtual_clock_times_a_pattern_of_one() -> None:
    text = GOOD.replace('["wall"]', '["virtual"]').replace("[1, 4]", "[1]")
    assert {each.cell.launched for each in parse_matrix(text, "m", ["nginx"]).plan} == {""}


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (ALONE, ""),
        (BURST, ""),
        (STAGGERED, ""),
        (dataclasses.replace(BURST, clock="virtual"), "clock: the virtual clock"),
        (dataclasses.replace(BURST, instances=1), "instances: burst has several"),
        (dataclasses.replace(ALONE, instances=2), "instances: single has one"),
        (dataclasses.replace(STAGGERED, stagger_ms=0), "stagger_ms: "),
        (dataclasses.replace(BURST, stagger_ms=5), "stagger_ms: "),
    ],
)
def test_a_cell_whose_launch_does_not_hold(cell: Cell, said: str) -> None:
    assert cell_problem(cell).startswith(said)
    assert bool(cell_problem(cell)) == bool(said)


# ---------------------------------------------------------------- dilated time


def test_storage_is_as_much_slower_as_processors_are_short() -> None:
    def percent(cell: Cell, count: int, vcpus: int, processors: int) -> int:
        return dilation_percent(dataclasses.replace(cell, instances=count), vcpus, processors)

    assert [percent(BURST, count, 1, 2) for count in (2, 3, 4, 8, 16)] == [100, 150, 200, 400, 800]
    assert percent(BURST, 16, 1, 64) == 100
    assert percent(BURST, 4, 2, 2) == 400
    # Never quicker than the processors are.
    assert percent(BURST, 4, 1, 3) == 134
    assert percent(STAGGERED, 16, 1, 2) == 800
    # They end before the next begins.
    assert percent(ONE_BY_ONE, 16, 1, 2) == 100


def test_a_dilated_model_is_slower_in_everything_that_takes_time() -> None:
    model = load_model("ebs-cold")
    assert dilated(model, 100) is model
    slow = dilated(model, 250)
    assert (slow.read_latency_ns, slow.write_latency_ns, slow.first_touch_ns) == (
        2_000_000,
        2_000_000,
        50_000_000,
    )
    assert slow.bandwidth_bytes_s == 52_428_800
    same = ("name", "queue_depth", "granule_bytes", "sources", "description")
    assert all(getattr(slow, name) == getattr(model, name) for name in same)
    assert dilated(load_model("local"), 800) == load_model("local")
    assert dilated(load_model("hdd"), 200).seek_ns == 2 * load_model("hdd").seek_ns


@given(st.integers(0, 2**50), st.integers(1, 2**50), st.integers(0, 2**40), st.integers(100, 1600))
def test_times_are_divided_and_still_add_up(pr_ns: int, app_ns: int, fetch_ns: int, percent: int) -> None:
    phases = (Phase("before kernel", -300, 0), Phase("kernel", 0, 7 * S), Phase("ready", 7 * S, 9 * S))
    before = sample(
        BURST,
        t_app_ns=app_ns,
        t_pr_ns=pr_ns,
        fetch_ns=fetch_ns,
        before_kernel_ns=pr_ns - fetch_ns,
        phases=phases,
    )
    after = undilated(dataclasses.replace(before, launched_ns=percent * S, took_ns=5), percent)
    assert after.t_total_ns == after.t_pr_ns + after.t_app_ns
    assert after.t_pr_ns == after.fetch_ns + after.before_kernel_ns
    assert after.t_app_ns == app_ns * 100 // percent
    assert after.launched_ns == 100 * S
    assert after.took_ns == 5
    assert after.dilation_percent == percent
    assert [one.end_ns for one in after.phases[:-1]] == [one.begin_ns for one in after.phases[1:]]


def test_a_censored_machine_has_no_numbers_after_it_either() -> None:
    found = undilated(censored(BURST), 400)
    assert (found.t_total_ns, found.before_kernel_ns, found.dilation_percent) == (0, 0, 400)
    assert undilated(censored(BURST), 100) == censored(BURST)


def test_the_kernel_of_a_machine_that_shares_processors_checks_no_timer() -> None:
    assert command_line("root=/dev/vda ro") == "root=/dev/vda ro no_timer_check"
    assert command_line("no_timer_check ro") == "no_timer_check ro"


def test_memory_is_demanded_before_a_launch() -> None:
    demand_memory(16, 900, 16 * 900 * MIB)
    with pytest.raises(
        HostLacksError, match="16 machines at a time take 14400 MiB of memory, 14399 MiB are"
    ) as caught:
        demand_memory(16, 900, 16 * 900 * MIB - 1)
    assert caught.value.hint is not None and caught.value.hint.startswith("at most 15 of these")


# ---------------------------------------------------------------- p50 and p100


def test_p50_and_p100_are_those_of_a_launch_and_of_launches_the_median() -> None:
    found = launched([*machines(BURST, 1, 5, 6, 8, 9), *machines(BURST, 2, 3, 4, 4, 5)], TOTAL)
    assert (found.launches, found.machines, found.censored) == (2, 8, 0)
    assert found.p50 == (7 * S + 4 * S) // 2
    assert found.p100 == (9 * S + 5 * S) // 2
    lone = launched([sample(ALONE, 1, 3 * S), sample(ALONE, 2, 5 * S), sample(ALONE, 3, 9 * S)], TOTAL)
    assert lone.p50 == lone.p100 == 6 * S


@pytest.mark.parametrize(
    ("seconds", "p50", "p100"),
    [
        ((5, 6, 7, None), 6.5, None),
        ((5, 6, None, None), None, None),
        ((5, 6, None), 6, None),
        ((None, None), None, None),
        ((7, 5, 6, 5), 5.5, 7),
    ],
)
def test_a_censored_machine_is_later_than_every_other(
    seconds: tuple[float | None, ...], p50: float | None, p100: float | None
) -> None:
    found = launched(machines(BURST, 1, *seconds), TOTAL)
    assert (found.p50, found.p100) == tuple(None if each is None else int(each * S) for each in (p50, p100))


def test_one_launch_of_three_with_a_censored_machine_leaves_the_median_known() -> None:
    samples = [*machines(BURST, 1, 5, 6), *machines(BURST, 2, 7, None), *machines(BURST, 3, 7, 8)]
    found = launched(samples, TOTAL)
    assert (found.p100, found.censored) == (8 * S, 1)
    assert launched([], TOTAL).p100 is None


# ---------------------------------------------------------------- results


def test_what_is_written_is_read() -> None:
    assert document.parse(document.text_of(whole()), "x") == whole()
    assert document.remaining(whole(), order(whole().plan)) == ()


def test_results_of_before_are_of_single_machines() -> None:
    results = results_of([Planned(CELL, 1, 600)], [sample()])
    raw = json.loads(document.text_of(results))
    raw["schema"] = 2
    for entry in (*raw["plan"], *raw["runs"]):
        for name in ("pattern", "instances", "stagger_ms", "instance", "launched_ns", "dilation_percent"):
            entry.pop(name, None)
    assert document.parse(json.dumps(raw), "x") == results


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda raw: raw["runs"].pop(), "runs: 3 of 4 machines of run 1 (nginx quickstart"),
        (lambda raw: raw["runs"][1].update(instance=5), "runs[1].instance: the cell has 4 (got 5)"),
        (lambda raw: raw["runs"][1].update(instance=2), "runs[2]: run 1 of the cell of runs[1] again"),
        (lambda raw: raw["runs"][1].update(dilation_percent=100), "runs: several dilations in run 1"),
        (lambda raw: raw["runs"][1].update(dilation_percent=50), "runs[1].dilation_percent: "),
        (lambda raw: raw["plan"][1].update(clock="virtual"), "plan[1].clock: the virtual clock"),
        (lambda raw: raw["plan"][1].update(instances=1), "plan[1].instances: burst has several"),
        (lambda raw: raw["plan"][1].update(pattern="brust"), "plan[1].pattern: "),
    ],
)
def test_a_launch_that_does_not_hold(edit: Callable[[dict[str, Any]], object], said: str) -> None:
    raw = json.loads(document.text_of(whole()))
    edit(raw)
    with pytest.raises(ResultsError) as caught:
        document.parse(json.dumps(raw), "x.json")
    assert any(each.startswith(said) for each in caught.value.problems), caught.value.problems


# ---------------------------------------------------------------- what is said of them


def test_the_table_has_a_row_for_each_launch_beside_the_single_run() -> None:
    rows = {row.head[-1]: row for row in launch_report.table(whole())}
    assert list(rows) == ["4, one every 500 ms", "burst of 4"]
    burst, staggered = rows["burst of 4"].values, rows["4, one every 500 ms"].values
    assert burst[:5] == ("1", "4 of 4", "7.50 s", "9.00 s", "1.50")
    assert burst[-1] == "2"
    assert staggered[:4] == ("1", "3 of 4", "6.50 s", "censored")


def test_single_machines_are_summed_up_without_those_of_a_launch() -> None:
    alone = results_of([Planned(ALONE, 1, 600)], [sample(ALONE, t_app_ns=4 * S)])
    assert summary(whole()) == summary(alone)
    assert launch_report.sentences(alone) == ()
    (said,) = launch_report.sentences(whole())
    assert "4 machines at one moment" in said
    assert "ready after 7.50 s, the last is after 9.00 s" in said


def test_launches_are_left_out_of_a_comparison_and_that_is_said() -> None:
    found = compare(whole(), whole())
    assert [each.cell for each in found.cells] == [ALONE]
    assert "2 cells launch several machines at a time: they are not compared" in found.notes
