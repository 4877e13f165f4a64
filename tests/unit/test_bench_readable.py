"""What `bench` saves can be loaded, whatever a guest or a stranger's initramfs says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from quickstart.bench.series import RESULTS, run_matrix
from quickstart.errors import ResultsError
from quickstart.measure.results import Cell, Phase, Reads, Sample
from quickstart.report import document
from tests.unit.benchdata import censored, circumstances
from tests.unit.test_bench import STANDARD, Shown, Stand, asked

BIG = 10**19


@pytest.mark.parametrize(
    "numbers",
    [
        {"ready_uptime_ns": BIG},
        {"uptime_ns": -1},
        {"before_kernel_ns": -BIG},
        {"units": (Phase("x" * 5000, 0, 1),)},
        {"units": (Phase("", 0, 1),)},
        {"units": tuple(Phase(f"{each}.service", 0, 1) for each in range(10_001))},
        {"phases": tuple(Phase(f"{each}", 0, 1) for each in range(65))},
        {"volume": Reads(BIG, 0)},
    ],
)
def test_a_guest_whose_numbers_nobody_could_read_costs_its_own_run_only(
    tmp_path: Path, numbers: dict[str, object]
) -> None:
    """What is saved can be loaded, so the samples of other cells are kept."""

    class Lying(Stand):
        def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
            found = super().run(cell, number, timeout_s)
            if cell != STANDARD:
                return found
            return tuple(dataclasses.replace(each, **numbers) for each in found)  # type: ignore[arg-type]

    results = run_matrix(asked(tmp_path), Lying(), shown := Shown())
    assert document.load(tmp_path / RESULTS) == results
    assert {bool(each.censored) for each in results.samples if each.cell == STANDARD} == {True}
    assert {each.censored for each in results.samples if each.cell != STANDARD} == {""}
    assert any("numbers are none of a run" in line for line in shown.said)


def test_names_of_a_stranger_s_initramfs_cost_no_run(tmp_path: Path) -> None:
    """They are left out when the file could not be read with them."""
    facts = dataclasses.replace(circumstances().facts, contents={"a": {"," * 300_000: 1}})
    results = run_matrix(asked(tmp_path), Stand(facts=facts), Shown())
    assert not any(each.censored for each in results.samples)
    assert document.load(tmp_path / RESULTS).circumstances.facts.contents == {}


def test_a_file_without_room_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples that it has stay readable."""
    monkeypatch.setattr(document, "_MAX_VALUES", 120)
    with pytest.raises(ResultsError, match="more than"):
        run_matrix(asked(tmp_path), Stand(), Shown())
    assert document.load(tmp_path / RESULTS).samples


def test_a_guest_s_long_reason_is_no_row_of_ours(tmp_path: Path) -> None:
    class Talking(Stand):
        def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
            super().run(cell, number, timeout_s)
            return (censored(cell, number, "x" + " " * 90 + "quickstart bench: run this" + "y" * 1000),)

    run_matrix(asked(tmp_path), Talking(), shown := Shown())
    said = [line for line in shown.said if line.startswith("censored")]
    assert len(said) == 4
    assert all("  " not in line and len(line) < 1000 for line in said)
