"""`quickstart bench compare`: made-up regressions are found and named, equal series raise no alarm, and
unequal ones are refused.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from quickstart.errors import IncomparableError
from quickstart.measure.results import Phase, Reads, Sample, words_of
from quickstart.report import document
from quickstart.report.compare import compare
from tests.unit.benchdata import S, realistic
from tests.unit.comparedata import (
    MS,
    bench,
    causes_of,
    changed,
    fetched,
    longer,
    lost,
    only,
    resampled,
    stock,
    texts,
)

COMMITTED = Path(__file__).parents[2] / "bench/results"


# ---------------------------------------------------------------- regressions


def test_a_library_in_the_initramfs_is_named_with_its_size() -> None:
    before = bench()
    contents = {
        **before.circumstances.facts.contents,
        "larger": {
            **before.circumstances.facts.contents["fast"],
            "fast/usr/lib/libbig.so": 20 * 1024 * 1024,
            "fast/etc/little": 9,
        },
    }
    boots = before.circumstances.facts.boots
    boots = {**boots, "nginx/quickstart": dataclasses.replace(boots["nginx/quickstart"], initramfs="larger")}
    after = changed(before, fetched(400 * MS), longer("kernel", 40 * MS), contents=contents, boots=boots)
    cell = only(compare(before, after))
    assert cell.regression
    verdicts = {each.name: (each.difference_ns, each.verdict) for each in cell.times}
    assert verdicts["t_total"] == (440 * MS, "later")
    assert verdicts["t_app"] == (40 * MS, "same")
    assert texts(cell, "initramfs") == [
        "fast/usr/lib/libbig.so is new, 20.00 MiB",
        "1 files of at most 4096 bytes, +9 bytes",
    ]
    assert {each.name: each.difference_ns for each in cell.phases if each.difference_ns} == {
        "fetch": 400 * MS,
        "kernel": 40 * MS,
    }
    assert causes_of(cell, "fetch") == causes_of(cell, "kernel") == {"initramfs"}
    assert causes_of(cell, "ready") == set()


def test_the_same_files_in_another_form_are_named_by_what_is_fetched() -> None:
    def smaller(sample: Sample) -> Sample:
        return dataclasses.replace(sample, initramfs_bytes=sample.initramfs_bytes // 2)

    before = bench()
    facts = before.circumstances.facts
    boots = {
        **facts.boots,
        "nginx/quickstart": dataclasses.replace(facts.boots["nginx/quickstart"], initramfs="packed"),
    }
    contents = {**facts.contents, "packed": facts.contents["fast"]}
    after = changed(before, smaller, longer("kernel", 500 * MS), contents=contents, boots=boots)
    cell = only(compare(before, after))
    assert texts(cell, "initramfs") == ["the same files, as transferred: 30.00 MiB, 15.00 MiB now"]
    assert causes_of(cell, "kernel") == {"initramfs"}


def test_launches_alone_are_no_comparison() -> None:
    """Else it would say that nothing is later."""
    alone = bench()
    plan = tuple(
        dataclasses.replace(each, cell=dataclasses.replace(each.cell, pattern="burst", instances=4))
        for each in alone.plan
    )
    several = dataclasses.replace(alone, plan=plan, samples=())
    with pytest.raises(IncomparableError, match="launches several machines"):
        compare(several, several)


def test_a_unit_that_sleeps_is_named_in_a_stock_boot_of_five_runs() -> None:
    def with_unit(sample: Sample) -> Sample:
        return dataclasses.replace(
            sample, units=(*sample.units, Phase("slow.service", 9 * S, 9 * S + 510 * MS))
        )

    before = stock(runs=5)
    cell = only(compare(before, changed(before, longer("systemd", 510 * MS), with_unit)))
    assert cell.regression
    assert {each.verdict for each in cell.times} == {"later"}
    assert texts(cell, "unit") == ["slow.service is new, 0.51 s"]
    assert causes_of(cell, "systemd") == {"unit"}


def test_a_unit_behind_which_the_network_is_late_anyway_is_seen_by_when_the_application_started() -> None:
    before = stock(runs=5)

    def hidden(sample: Sample) -> Sample:
        later = longer("systemd", 600 * MS)(sample)
        ready = next(each for each in later.phases if each.name == "ready")
        shorter = Phase("ready", ready.begin_ns, max(ready.begin_ns, ready.end_ns - 600 * MS))
        phases = tuple(shorter if each.name == "ready" else each for each in later.phases)
        return dataclasses.replace(
            sample, phases=phases, t_app_ns=sample.t_app_ns, t_total_ns=sample.t_total_ns
        )

    cell = only(compare(before, changed(before, hidden)))
    assert {each.name: each.verdict for each in cell.times} == {
        "t_app": "same",
        "t_total": "same",
        "started": "later",
    }


def test_three_runs_of_a_stock_boot_say_nothing_of_half_a_second_and_the_comparison_says_so() -> None:
    before = stock(runs=3)
    found = compare(before, changed(before, longer("systemd", 510 * MS)))
    assert not found.regression
    assert {each.why for each in only(found).times} == {"may be a stock boot's race, p = 0.0500"}
    assert any("too few runs" in note for note in found.notes)
    much = compare(before, changed(before, longer("systemd", 5 * S)))
    assert much.regression


def test_a_lost_option_is_named_with_the_kernels_phase() -> None:
    before = realistic(configurations=("quickstart",), lines=("ours",))
    boots = before.circumstances.facts.boots
    booted = boots["nginx/quickstart"]
    lines = {**booted.command_lines, "ours": "console=ttyS0 root=UUID=an-image ro"}
    boots = {**boots, "nginx/quickstart": dataclasses.replace(booted, command_lines=lines)}
    cell = only(compare(before, changed(before, longer("kernel", 740 * MS), boots=boots)))
    assert cell.regression
    assert texts(cell, "command_line") == ["option cryptomgr.notests is lost"]
    (kernel,) = [each for each in cell.phases if each.name == "kernel"]
    assert (kernel.difference_ns, causes_of(cell, "kernel")) == (740 * MS, {"command_line"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a=1 b c=2", ["option c=2 is new"]),
        ("a=2 b", ["option a=1 is a=2 now"]),
        ("a=1 b b root=UUID=another", ["option b is new", "option root=UUID=another is new"]),
        ("b", ["option a=1 is lost"]),
    ],
)
def test_options_by_their_names(words: str, said: list[str]) -> None:
    before = bench()
    boots = before.circumstances.facts.boots

    def facts(line: str) -> dict[str, Any]:
        lines = {"stock": line}
        return {
            **boots,
            "nginx/quickstart": dataclasses.replace(boots["nginx/quickstart"], command_lines=lines),
        }

    first, second = (changed(before, boots=facts(line)) for line in ("a=1 b", words))
    assert texts(only(compare(first, second)), "command_line") == said


def test_unit_lines_packages_and_reads_are_named() -> None:
    before = bench()
    boots = before.circumstances.facts.boots
    booted = boots["nginx/quickstart"]
    other = dataclasses.replace(
        booted, image="another", unit_lines=(*booted.unit_lines, "ExecStartPre=/bin/sleep 0.5")
    )
    packages = {"an-image": {"nginx": "1", "libc6": "2"}, "another": {"nginx": "1", "libbig": "3"}}
    after = changed(
        before,
        longer("application start", 500 * MS),
        lambda sample: dataclasses.replace(sample, guest=Reads(sample.guest.requests + 40, 10**7)),
        boots={**boots, "nginx/quickstart": other},
    )
    cell = only(compare(changed(before, packages=packages), changed(after, packages=packages)))
    assert texts(cell, "unit_line") == ["nginx.service: ExecStartPre=/bin/sleep 0.5 is new"]
    assert texts(cell, "package") == ["libbig is new, 3", "libc6 is gone, 2"]
    assert texts(cell, "reads")[0] == "root requests read before ready: 70, 110 now"
    assert causes_of(cell, "application start") == {"unit_line", "package", "reads"}


def test_what_moves_from_a_phase_to_the_next_is_no_regression_and_less_is_earlier() -> None:
    before = bench()
    moved = changed(before, longer("init", 300 * MS), longer("modules", -300 * MS))
    assert not compare(before, moved).regression
    sooner = only(compare(before, changed(before, longer("kernel", -500 * MS))))
    assert not sooner.regression
    assert {each.verdict for each in sooner.times} == {"earlier"}


def test_io_that_only_one_was_charged_is_no_regression() -> None:
    before = bench()

    def charged(sample: Sample) -> Sample:
        return dataclasses.replace(longer("root mount", 190 * MS)(sample), overlap_ns=0)

    def free(sample: Sample) -> Sample:
        return dataclasses.replace(sample, overlap_ns=190 * MS)

    found = compare(changed(before, free), changed(before, charged))
    assert {each.why for each in only(found).times} == {"within the threshold with the overlap"}
    assert compare(changed(before, free), changed(before, free, longer("root mount", 190 * MS))).regression


# ---------------------------------------------------------------- A/A


@pytest.mark.parametrize(
    ("name", "runs"),
    [("applications", 3), ("applications", 5), ("nginx", 5), ("nginx-wall", 5), ("paper-figure1", 5)],
)
def test_equal_series_raise_no_alarm(name: str, runs: int) -> None:
    """Forty comparisons of series that are drawn from the same committed runs, stock boots that race and all."""
    results = document.load(COMMITTED / name / "results.json")
    alarms = [
        (seed, words_of(cell.cell), [each for each in cell.times if each.verdict != "same"])
        for seed in range(40)
        for chance in [random.Random(seed)]
        for cell in compare(resampled(results, runs, chance), resampled(results, runs, chance)).cells
        if any(each.verdict != "same" for each in cell.times)
    ]
    assert alarms == []


def test_the_same_series_half_a_second_later_raises_one_in_each_of_them() -> None:
    """The same drawing as above is no comparison that sees nothing."""
    results = document.load(COMMITTED / "applications" / "results.json")
    stamped = [each.cell for each in results.samples if each.phases[1:]]
    for seed in range(20):
        chance = random.Random(seed)
        before, after = (resampled(results, 5, chance) for _ in range(2))
        samples = tuple(longer(each.phases[0].name, 500 * MS)(each) for each in after.samples)
        found = compare(before, dataclasses.replace(after, samples=samples))
        seen = {each.cell for each in found.cells if each.regression}
        assert {cell for cell in stamped if cell.configuration not in ("standard",)} <= seen


# ---------------------------------------------------------------- real clocks


def test_a_real_clock_asks_for_p_and_gives_an_interval() -> None:
    before = bench(runs=8, clock="wall")
    cell = only(compare(before, changed(before, longer("kernel", 600 * MS))))
    assert [each.name for each in cell.times] == ["t_app", "t_total"]
    for each in cell.times:
        assert each.verdict == "later" and each.p is not None and each.p <= 0.05
        assert each.interval_ns is not None and each.interval_ns[0] <= 600 * MS <= each.interval_ns[1]
    three = bench(runs=3, clock="wall")
    found = compare(three, changed(three, longer("kernel", 600 * MS)))
    assert not found.regression
    assert only(found).times[0].interval_ns is None
    assert any("too few runs for p" in note for note in found.notes)


def test_more_cells_ask_for_more() -> None:
    many = realistic(
        configurations=("quickstart",), profiles=("nginx", "apache", "mysql"), runs=5, clocks=("wall",)
    )
    found = compare(many, changed(many, longer("kernel", 3 * S)))
    # 2/252 of one test, of six.
    assert [each.p for cell in found.cells for each in cell.times] == [pytest.approx(12 / 252)] * 6


# ---------------------------------------------------------------- censored, not valid


def test_a_censored_run_is_counted_and_is_no_number() -> None:
    found = compare(bench(), lost(bench(), [2]))
    cell = only(found)
    assert (cell.runs, cell.censored, found.faults) == ((3, 3), (0, 1), ())
    assert all(0 <= each.b_ns < 10 * S for each in cell.times)


def test_a_cell_without_a_median_is_not_valid() -> None:
    found = compare(bench(), lost(bench(), [1, 3]))
    assert found.cells == ()
    assert found.faults == (
        "nginx quickstart stock ebs-warm virtual small: no median in B, 2 of 3 runs are censored: "
        "the guest was not ready after 9 s",
    )
    (fault,) = compare(dataclasses.replace(bench(), samples=()), bench()).faults
    assert fault.endswith("not run in A")
