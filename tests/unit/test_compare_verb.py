"""`quickstart bench compare`: its thresholds, its output, its exit codes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quickstart.cli.main import group
from quickstart.errors import BadInputError
from quickstart.measure.results import Results
from quickstart.report import document
from quickstart.report.threshold import Threshold, threshold_of
from tests.unit.benchdata import S
from tests.unit.comparedata import (
    MS,
    bench,
    changed,
    longer,
    lost,
)


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
