"""`quickstart bench compare`: made-up regressions are caught and named, equal series raise no alarm, unequal ones are refused."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quickstart.cli.main import group
from quickstart.errors import BadInputError, IncomparableError
from quickstart.measure import document
from quickstart.measure.compare import Compared, Comparison, Threshold, compare, threshold_of
from quickstart.measure.results import Circumstances, Facts, Phase, Reads, Results, Sample, words_of
from tests.unit.benchdata import S, censored, realistic

COMMITTED = Path(__file__).parents[2] / "bench/results"
MS = S // 1000
Change = Callable[[Sample], Sample]


def bench(configuration: str = "quickstart", runs: int = 3, clock: str = "virtual") -> Results:
    return realistic(configurations=(configuration,), runs=runs, clocks=(clock,))


def stock(runs: int) -> Results:
    return realistic(configurations=("standard",), runs=runs, storages=("local",))


def longer(phase: str, by_ns: int) -> Change:
    """A run whose phase takes more, and with it all that comes after."""

    def change(sample: Sample) -> Sample:
        at = next(each for each in sample.phases if each.name == phase).begin_ns
        phases = tuple(
            Phase(
                each.name,
                each.begin_ns + (by_ns if each.begin_ns > at else 0),
                each.end_ns + (by_ns if each.end_ns > at else 0),
            )
            for each in sample.phases
        )
        return dataclasses.replace(
            sample,
            phases=phases,
            t_app_ns=sample.t_app_ns + by_ns,
            t_total_ns=sample.t_total_ns + by_ns,
            ready_uptime_ns=sample.ready_uptime_ns + by_ns,
        )

    return change


def fetched(by_ns: int) -> Change:
    def change(sample: Sample) -> Sample:
        return dataclasses.replace(
            sample,
            fetch_ns=sample.fetch_ns + by_ns,
            t_pr_ns=sample.t_pr_ns + by_ns,
            t_total_ns=sample.t_total_ns + by_ns,
        )

    return change


def changed(results: Results, *changes: Change, **facts: object) -> Results:
    """The results with each run changed, and other facts."""
    samples = results.samples
    for change in changes:
        samples = tuple(change(each) for each in samples)
    known = dataclasses.replace(results.circumstances.facts, **facts)  # type: ignore[arg-type]
    return dataclasses.replace(
        results, samples=samples, circumstances=dataclasses.replace(results.circumstances, facts=known)
    )


def resampled(results: Results, runs: int, chance: random.Random) -> Results:
    """Another series of the same machine: as many runs of each cell, each one of those that were measured."""
    samples = [
        dataclasses.replace(chance.choice(there), number=number)
        for planned in results.plan
        if (there := [each for each in results.samples if each.cell == planned.cell])
        for number in range(1, runs + 1)
    ]
    plan = tuple(dataclasses.replace(each, runs=runs) for each in results.plan)
    return dataclasses.replace(results, plan=plan, samples=tuple(samples))


def only(found: Comparison) -> Compared:
    (cell,) = found.cells
    return cell


def texts(found: Compared, kind: str) -> list[str]:
    return [each.text for each in found.causes if each.kind == kind]


def causes_of(found: Compared, phase: str) -> set[str]:
    (one,) = [each for each in found.phases if each.name == phase]
    return {found.causes[at].kind for at in one.causes}


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
    ("name", "runs"), [("applications", 3), ("applications", 5), ("nginx", 5), ("nginx-wall", 5)]
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


# ---------------------------------------------------------------- censored, not valid, not comparable


def lost(results: Results, numbers: Sequence[int]) -> Results:
    samples = tuple(
        censored(each.cell, each.number, "the guest was not ready after 9 s")
        if each.number in numbers
        else each
        for each in results.samples
    )
    return dataclasses.replace(results, samples=samples)


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


def refused(first: Results, second: Results, *, across_versions: bool = False) -> tuple[str, ...]:
    with pytest.raises(IncomparableError) as caught:
        compare(first, second, across_versions=across_versions)
    assert caught.value.exit_code == 2
    return caught.value.obstacles


def with_circumstances(results: Results, **other: object) -> Results:
    circumstances: Circumstances = dataclasses.replace(results.circumstances, **other)  # type: ignore[arg-type]
    return dataclasses.replace(results, circumstances=circumstances)


def test_other_cells_are_refused_and_all_of_them_named() -> None:
    two = realistic(configurations=("standard", "quickstart"))
    other = realistic(configurations=("standard",), sizes=("small", "medium"))
    assert refused(two, other) == (
        "cells: nginx quickstart stock ebs-warm virtual small is only in A",
        "cells: nginx standard stock ebs-warm virtual medium is only in B",
    )
    assert refused(bench(), bench(clock="wall"), across_versions=True)


def test_another_number_of_runs_is_no_obstacle_and_few_are_said() -> None:
    found = compare(bench(runs=3), bench(runs=5))
    assert (found.regression, found.notes) == (False, ())
    (note,) = compare(bench(runs=3), bench(runs=1)).notes
    assert note.startswith("1 cells have fewer than 3 runs")


@pytest.mark.parametrize("path", ["./nginx", "/somewhere/else/nginx", "other/nginx/profile.toml"])
def test_a_profile_goes_by_its_name(path: str) -> None:
    before = bench()

    def moved(sample: Sample) -> Sample:
        return dataclasses.replace(sample, cell=dataclasses.replace(sample.cell, profile=path))

    boots = {key.replace("nginx", path): each for key, each in before.circumstances.facts.boots.items()}
    after = changed(before, longer("kernel", 500 * MS), moved, boots=boots)
    plan = tuple(
        dataclasses.replace(each, cell=dataclasses.replace(each.cell, profile=path)) for each in before.plan
    )
    found = compare(before, dataclasses.replace(after, plan=plan))
    assert found.regression and only(found).cell.profile == "nginx"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"poll_interval_ms": 20}, "poll interval: 10 ms in A, 20 ms in B"),
        ({"versions": {"fetch": "read-ahead"}}, "fetch: boot-loader in A, read-ahead in B"),
        ({"versions": {"machine virtual small": "-M pc"}}, "machine virtual small: -M q35 in A, -M pc in B"),
    ],
)
def test_what_makes_a_number_mean_something_else(other: dict[str, Any], said: str) -> None:
    known = {**bench().circumstances.versions, "fetch": "boot-loader", "machine virtual small": "-M q35"}
    versions = {**known, **other.get("versions", {})}
    first = with_circumstances(bench(), versions=known)
    assert refused(
        first, with_circumstances(first, **{**other, "versions": versions}), across_versions=True
    ) == (said,)


def test_versions_are_refused_and_compared_when_asked() -> None:
    before = bench()
    after = with_circumstances(
        changed(before, packages={"an-image": {"nginx": "1.22.1-9+deb12u1", "libc6": "2.36-9"}}),
        versions={**before.circumstances.versions, "qemu": "9.2.0"},
    )
    after = changed(after, packages={"an-image": {"nginx": "1.22.1-9+deb12u1", "libc6": "2.36-9"}})
    said = ("qemu: 7.2.0 in A, 9.2.0 in B", "package nginx: 1.22.1-9 in A, 1.22.1-9+deb12u1 in B")
    assert refused(before, after) == said
    assert compare(before, after, across_versions=True).notes[:2] == said


def test_another_host_is_a_note_on_the_virtual_clock_and_an_obstacle_on_another() -> None:
    host = {**bench().circumstances.host, "cpu": "another"}
    found = compare(bench(), with_circumstances(bench(), host=host))
    assert "host's cpu: SYNTHETIC: nobody measured this in A, another in B" in found.notes
    wall = bench(clock="wall", runs=5)
    assert refused(wall, with_circumstances(wall, host=host), across_versions=True)


def test_the_source_may_differ_and_older_results_have_no_causes() -> None:
    versions = {**bench().circumstances.versions, "quickstart": "0.1.0, source 1234"}
    old = with_circumstances(changed(bench(), longer("kernel", 500 * MS)), versions=versions, facts=Facts())
    found = compare(bench(), old)
    assert found.regression and only(found).causes == ()
    assert "B does not say what was booted (schema 1): no cause can be named" in found.notes


# ---------------------------------------------------------------- thresholds and the verb


def test_thresholds() -> None:
    assert threshold_of([]) == Threshold(100 * MS, Fraction(3, 100))
    assert threshold_of(["0.2s", "5%"]) == Threshold(200 * MS, Fraction(1, 20))
    assert threshold_of(["150ms"]) == Threshold(150 * MS, Fraction(0))
    assert threshold_of(["2.5%"]).of(10 * S) == 250 * MS
    for words in (["fast"], ["1s", "100ms"], ["3%", "4%"], ["-1s"], ["3"]):
        with pytest.raises(BadInputError):
            threshold_of(words)


def called(tmp_path: Path, first: Results, second: Results, *words: str) -> Result:
    for name, results in (("a", first), ("b", second)):
        document.save(results, tmp_path / f"{name}.json")
    argv = ["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), *words]
    return CliRunner().invoke(group, argv)


def test_the_verb_says_what_and_where_and_ends_with_1(tmp_path: Path) -> None:
    first = bench()
    found = called(tmp_path, first, changed(first, longer("kernel", 500 * MS)))
    assert found.exit_code == 1
    assert "nginx quickstart stock ebs-warm virtual small: REGRESSION (3 and 3 runs)" in found.output
    assert "kernel +0.50 s: nothing that is recorded has changed for it" in found.output
    assert "1 of 1 cells are later" in found.output
    assert called(tmp_path, first, first).exit_code == 0
    quiet = called(tmp_path, first, changed(first, longer("kernel", 500 * MS)), "--threshold", "1s")
    assert quiet.exit_code == 0


def test_the_verb_as_json(tmp_path: Path) -> None:
    found = called(tmp_path, bench(), lost(changed(bench(), longer("kernel", 500 * MS)), [2]), "--json")
    raw = json.loads(found.stdout)
    assert (raw["schema"], raw["verb"], raw["ok"]) == (1, "bench compare", True)
    result = raw["result"]
    assert (result["regression"], result["valid"], result["faults"]) == (True, True, [])
    (cell,) = result["cells"]
    assert (cell["n"], cell["censored"]) == ({"a": 3, "b": 2}, {"a": 0, "b": 1})
    kernel = cell["phases"][2]
    assert list(kernel) == ["name", "a_ns", "b_ns", "difference_ns", "causes"]
    assert (kernel["name"], round(kernel["difference_ns"], -8)) == ("kernel", 500 * MS)
    assert kernel["b_ns"] - kernel["a_ns"] == kernel["difference_ns"]


def test_the_verbs_other_ends(tmp_path: Path) -> None:
    refused_one = called(tmp_path, bench(), bench("standard"), "--json")
    assert refused_one.exit_code == 2
    assert json.loads(refused_one.stdout)["error"]["kind"] == "IncomparableError"
    invalid_one = called(tmp_path, bench(), lost(bench(), [1, 2, 3]))
    assert invalid_one.exit_code == 4
    assert "none of 3 runs got ready" in invalid_one.output
    (tmp_path / "b.json").write_text("{}")
    argv = ["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert CliRunner().invoke(group, argv).exit_code == 2


def test_a_matrix_of_another_name_than_the_verb_is_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "compare.toml").write_text(
        'schema = 1\nname = "x"\n[[block]]\nprofiles = ["nginx"]\nconfigurations = ["minimal"]\n'
        'storages = ["local"]\nclocks = ["virtual"]\n'
    )
    argv = ["bench", str(tmp_path / "compare.toml"), "--dry-run", "--json"]
    found = CliRunner().invoke(group, argv)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["result"]["matrix"] == "x"
