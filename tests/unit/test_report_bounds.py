"""What the comparison of two results and a report may take: they may be a stranger's."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quickstart.cli import bench as cli_bench
from quickstart.cli import compare as verb
from quickstart.cli.main import group
from quickstart.errors import BadInputError
from quickstart.measure.drawing import dots_per_inch
from quickstart.measure.patterns import picture_problems
from quickstart.measure.results import (
    COMMAND_LINES,
    DELIVERIES,
    PAYLOADS,
    STORAGES,
    Booted,
    Facts,
    Phase,
    Sample,
)
from quickstart.measure.statistics import median
from quickstart.report import causes, compare, document
from quickstart.report.report import write_report
from quickstart.report.wholefile import distinct, file_name
from tests.unit.benchdata import CELL, realistic, sample
from tests.unit.comparedata import bench
from tests.unit.test_compare_verb import called

# Quadratic, each of these took tens of seconds.
LINEAR_S = 5


def booted(line: str) -> Booted:
    return Booted(kernel="", initramfs="", image="", command_lines={"stock": line}, unit="", unit_lines=())


def words_by_hand(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Slow and plain: each lost word takes the first new one with its key."""
    lost = list((Counter(old) - Counter(new)).elements())
    added = list((Counter(new) - Counter(old)).elements())
    for word in lost:
        again = next((each for each in added if each.partition("=")[0] == word.partition("=")[0]), None)
        if again is not None:
            added.remove(again)
        yield word, again
    yield from ((None, word) for word in added)


def test_the_words_of_a_command_line() -> None:
    chance = random.Random(3)
    for _ in range(500):
        old, new = (
            [chance.choice("ab") + chance.choice(["", "=1", "=2", "=3"]) for _ in range(6)] for _ in "ab"
        )
        found = causes._command_line(booted(" ".join(old)), booted(" ".join(new)), "stock")
        assert [(each.a, each.b) for each in found] == list(words_by_hand(old, new))


def with_units(*units: tuple[str, int]) -> Sample:
    return sample(units=tuple(Phase(name, 0, length_ns) for name, length_ns in units))


def test_the_times_of_units() -> None:
    chance = random.Random(4)
    for _ in range(200):
        sides = [
            [
                with_units(
                    *(
                        (chance.choice("abc"), chance.randrange(-(10**8), 10**8))
                        for _ in range(chance.randrange(4))
                    )
                )
                for _ in range(chance.randrange(1, 6))
            ]
            for _ in "ab"
        ]
        found = {each.name: (each.a or 0, each.b or 0) for each in causes._units(*sides)}
        for name in "abc":
            old, new = (
                median([sum(each.end_ns for each in run.units if each.name == name) for run in side])
                for side in sides
            )
            assert found.get(name, (0, 0)) == ((old, new) if abs(new - old) >= causes._SHORT_NS else (0, 0))


def test_many_words_units_and_files_take_no_square() -> None:
    began_s = time.process_time()
    old, new = (booted(" ".join(f"{side}{number}" for number in range(30_000))) for side in "ab")
    assert len(list(causes._command_line(old, new, "stock"))) == 60_000
    runs = [[with_units(*((f"{side}{number}", 10**9) for number in range(20_000)))] for side in "ab"]
    assert len(list(causes._units(*runs))) == 40_000
    small = {side: {f"{side}{number}": 1 for number in range(50_000)} for side in "ab"}
    found = list(causes._files(*files(small)))
    assert [each.text for each in found] == ["100000 files of at most 4096 bytes, +0 bytes"]
    assert time.process_time() - began_s < LINEAR_S


def files(contents: dict[str, dict[str, int]]) -> tuple[Any, ...]:
    first = bench()
    circumstances = dataclasses.replace(first.circumstances, facts=Facts(contents=contents))
    results = dataclasses.replace(first, circumstances=circumstances)
    before, after = (dataclasses.replace(booted(""), initramfs=side) for side in "ab")
    return results, before, results, after


def test_more_changes_than_anybody_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_MOST_CAUSES", 3)
    monkeypatch.setattr(compare, "causes", lambda *_: (None,) * 4)
    with pytest.raises(BadInputError, match="more than 3 changes"):
        compare.compare(bench(), bench())


def test_a_picture_has_a_bounded_number_of_pixels() -> None:
    assert dots_per_inch(8.6, 20) == 150
    assert dots_per_inch(8.6, 1000) * 1000 <= 65_000
    for size_in in ((8.6, 430.0), (300.0, 400.0)):
        assert size_in[0] * size_in[1] * dots_per_inch(*size_in) ** 2 <= (32 << 20) + 1


def test_a_figure_has_a_bounded_number_of_bars() -> None:
    """Cells that are on one volume only have an empty bar on each other one."""
    several = [dataclasses.replace(CELL, profile=f"p{number}") for number in range(3)]
    rows = [
        dataclasses.replace(each, delivery=delivery, payload=payload, command_line=line)
        for each in several
        for delivery, payload, line in itertools.product(DELIVERIES, PAYLOADS, COMMAND_LINES)
    ]
    elsewhere = [dataclasses.replace(CELL, storage=each) for each in STORAGES]
    assert not list(picture_problems(rows))
    often = [dataclasses.replace(each, profile=f"{each.profile}{n}") for each in rows for n in range(4)]
    said = list(picture_problems([*often, *elsewhere]))
    assert said == [f"figures with {6 * (len(often) + 1)} bars, and at most 2000 are drawn"]


def test_names_of_figures_are_distinct() -> None:
    words = ("a/b", "a-b", "A-B", "a-b-2", "c")
    spelled = distinct(words)
    assert tuple(spelled) == words
    assert len({file_name("phases", each, "small") for each in spelled.values()}) == len(words)
    assert (spelled["a/b"], spelled["c"]) == ("a/b", "c")


def test_profiles_that_are_spelled_alike_have_figures_of_their_own(tmp_path: Path) -> None:
    results = realistic(profiles=("a/b", "a-b"), configurations=("quickstart",), storages=("local",))
    write_report(results, (), tmp_path)
    page = (tmp_path / "report.html").read_text()
    for number, name in (("", "a/b"), ("-2", "a-b")):
        assert (tmp_path / f"figures/phases-a-b{number}-small-virtual-local.svg").exists()
        assert f"Where the time goes: {name}" in page


def forever(*_: object, **__: object) -> None:
    while True:
        pass


def test_a_comparison_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "RESULTS_LIMIT_S", 0.05)
    monkeypatch.setattr(verb, "compare", forever)
    found = called(tmp_path, bench(), bench())
    assert found.exit_code == 2
    assert "reading the results takes more than 0.05 s of CPU time" in found.output


def test_a_report_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_bench, "REPORT_LIMIT_S", 0.05)
    monkeypatch.setattr(cli_bench, "REPORT_PLACE_LIMIT_S", 0.0)
    monkeypatch.setattr(cli_bench, "_finish", forever)
    document.save(bench(), tmp_path / "results.json")
    found = CliRunner().invoke(group, ["bench", "--report", "-o", str(tmp_path)])
    assert found.exit_code == 2
    assert "reading the results takes more than 0.05 s of CPU time" in found.output
