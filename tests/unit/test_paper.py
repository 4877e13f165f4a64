"""The paper's numbers beside ours, and the first lines of the report."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest

from quickstart.measure.results import Reads, Results, Sample
from quickstart.report.conclusions import overview, planned_samples
from quickstart.report.paper import Beside, beside, statements
from quickstart.report.summary import summary
from tests.unit.benchdata import censored, realistic

# What the paper prints, by the place; a number that is not in it is one that somebody made up.
PRINTED = {
    "Table 1": "30.8 7.5 12.3 60.5 51.5 23.8 15.1",
    "section 4.2 (Figure 1)": "104 49 61.6 8.1 7",
    "section 4.2": "80",
    "Table 2": "35 27 28",
    "section 4.3": "11.5 14.8 8.1 10.8",
}


def found(results: Results, where: str, what: str) -> Beside:
    samples = overview(planned_samples(results))
    (one,) = [each for each in beside(samples) if each.said.where == where and what in each.said.what]
    return one


def whole() -> Results:
    return realistic(
        profiles=("nginx", "apache", "mysql"),
        configurations=("standard", "minimal", "ramboot", "quickstart"),
        lines=("stock", "ours"),
    )


def test_every_number_is_one_that_the_paper_prints_and_stands_in_its_words() -> None:
    seen: dict[str, list[str]] = {}
    for each in statements():
        for printed in each.printed:
            for number in re.findall(r"\d[\d.]*", printed):
                assert number in each.quote
                seen.setdefault(each.where, []).append(number)
    assert {where: sorted(set(each)) for where, each in seen.items()} == {
        where: sorted(set(text.split())) for where, text in PRINTED.items()
    }


TABLE_1 = {"nfs-100m": "without cache", "hdd": "a local disk", "nfs-cached": "cached:"}


def table_1(change: Callable[[Sample], Sample] = lambda sample: sample) -> dict[str, tuple[str, ...]]:
    """The statements of the paper that results of its local machines have something to, and what."""
    results = realistic(
        profiles=("sshd",),
        configurations=("standard",),
        storages=("local", *TABLE_1),
        clocks=("virtual", "wall"),
    )
    results = dataclasses.replace(results, samples=tuple(change(each) for each in results.samples))
    samples = planned_samples(results)
    return {each.said.what: each.ours for each in beside(overview(samples), samples) if each.ours}


def lasting(sample: Sample, **seconds: float) -> Sample:
    """It with the T_app of its storage, which is written without a dash, an overlap of 0.1 s, and on NFS a T_pr of 2 s."""
    app_s = seconds.get(sample.cell.storage.replace("-", "_"))
    t_app_ns = sample.t_app_ns if app_s is None else int(app_s * 1e9)
    pr_ns = 2_000_000_000 if sample.cell.storage == "nfs-100m" else 0
    return dataclasses.replace(sample, t_app_ns=t_app_ns, t_total_ns=t_app_ns + pr_ns, overlap_ns=100_000_000)


def test_table_1_has_the_row_of_each_storage_on_each_clock() -> None:
    rows = table_1(lambda sample: lasting(sample, nfs_100m=31, hdd=12.5, nfs_cached=7.25))
    for storage, seconds in (("nfs-100m", "31.00"), ("hdd", "12.50"), ("nfs-cached", "7.25")):
        (what,) = (each for each in rows if TABLE_1[storage] in each)
        assert rows[what] == tuple(
            f"sshd on {storage}, {clock} clock: {seconds} s" for clock in ("virtual", "wall")
        )
    # The other statements are of other applications.
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("hdd_s", "words"),
    [
        (12.5, ("the same order", "the same order")),
        # On the virtual clock a difference that the overlap may make is none.
        (30.95, ("the same order, but not with the overlap added", "the same order")),
        (31, ("another order", "another order")),
        (31.5, ("another order", "another order")),
        (7, ("another order", "another order")),
    ],
)
def test_the_order_of_table_1_is_asked_for_on_each_clock(hdd_s: float, words: tuple[str, str]) -> None:
    rows = table_1(lambda sample: lasting(sample, nfs_100m=31, hdd=hdd_s, nfs_cached=7.25))
    (ours,) = (each for what, each in rows.items() if "the order" in what)
    total = "another order" if hdd_s < 7.25 else "the same order"
    assert ours == tuple(
        f"sshd on nfs-100m, hdd, nfs-cached, {clock} clock: T_app 31.00 / {hdd_s:.2f} / 7.25 s, {said}; "
        f"T_total 33.00 / {hdd_s:.2f} / 7.25 s, {total}"
        for clock, said in zip(("virtual", "wall"), words, strict=True)
    )


def test_without_one_of_the_three_there_is_no_order() -> None:
    lost = table_1(lambda each: censored(each.cell, each.number) if each.cell.storage == "hdd" else each)
    (ours,) = (each for what, each in lost.items() if "the order" in what)
    assert [line.rpartition(": ")[2] for line in ours] == ["T_app censored; T_total censored"] * 2


def test_ours_stands_beside_what_corresponds() -> None:
    one = found(whole(), "section 4.2 (Figure 1)", "RAMBoot")
    assert one.said.printed == ("7 s", "8.1 s")
    assert [line.partition(":")[0] for line in one.ours] == [
        "apache",
        "apache, our experimental kernel options",
    ]
    assert re.fullmatch(r"apache: 2\.\d\d s → 3\.\d\d s \(0\.\d\d times\)", one.ours[0])
    (initramfs,) = found(whole(), "Table 2", "Nginx").ours
    assert initramfs == "nginx: 31.5 MB"
    assert found(whole(), "section 4.2", "web servers").ours[0] == "apache: 302 → 70 requests (4.3 times)"
    assert found(whole(), "section 4.2", "share").ours[0] == "apache: 83%"


def test_a_stock_image_stands_for_itself_beside_our_options() -> None:
    results = whole()
    cells = [
        each.cell
        for each in results.plan
        if each.cell.configuration != "standard" or each.cell.command_line == "stock"
    ]
    less = dataclasses.replace(
        results,
        plan=tuple(each for each in results.plan if each.cell in cells),
        samples=tuple(each for each in results.samples if each.cell in cells),
    )
    stock, ours = found(less, "section 4.2 (Figure 1)", "T_app): standard").ours
    assert stock.split(" → ")[0].removeprefix("apache: ") == ours.split(" → ")[0].removeprefix(
        "apache, our experimental kernel options: "
    )


def test_what_was_not_measured_or_did_not_get_ready_has_no_number() -> None:
    assert found(realistic(), "Table 2", "MySQL").ours == ()
    assert found(whole(), "Table 1", "local disk").ours == ()
    results = realistic(profiles=("apache",), configurations=("standard", "quickstart"))
    lost = dataclasses.replace(
        results,
        samples=tuple(
            censored(each.cell, each.number) if each.cell.configuration == "standard" else each
            for each in results.samples
        ),
    )
    assert found(lost, "section 4.2 (Figure 1)", "T_app): standard").ours == ("apache: censored",)
    none = dataclasses.replace(
        results, samples=tuple(dataclasses.replace(each, guest=Reads(0, 0)) for each in results.samples)
    )
    assert found(none, "section 4.2", "web servers").ours == ()


@pytest.mark.parametrize("clock", ["virtual", "wall", "kvm"])
def test_five_lines(clock: str) -> None:
    lines = summary(
        realistic(
            configurations=("standard", "minimal", "ramboot", "quickstart"),
            lines=("stock", "ours"),
            clocks=(clock,),
            runs=7,
        )
    )
    assert len(lines) == 5
    assert re.match(
        r".* the ordinary image → quickstart with our experimental kernel options: nginx \d+\.\d → \d",
        lines[0],
    )
    assert "31 MB of initramfs, 70 reads" in lines[3]
    assert "Not measured: EC2." in lines[4] if clock == "kvm" else "Not measured: KVM and EC2." in lines[4]


def test_a_line_that_has_nothing_to_say_is_left_out() -> None:
    (line,) = summary(realistic(configurations=("standard",)))
    assert line.startswith("Measured: 3 runs,")
    results = realistic(configurations=("standard", "quickstart"))
    lost = dataclasses.replace(
        results, samples=tuple(censored(each.cell, each.number) for each in results.samples)
    )
    first, *_, last = summary(lost)
    assert "nginx censored" in first and "Measured: 0 runs, 6 more did not get ready" in last
