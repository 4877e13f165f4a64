"""bench/results: which files are committed, and that `make reports` makes the committed pictures again, byte for byte."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.report import document
from quickstart.report.report import first_picture

CHECKOUT = Path(__file__).parents[2]
RESULTS = CHECKOUT / "bench/results"
SCRIPT = CHECKOUT / "bench/reports.py"
PICTURES = sorted(RESULTS.rglob("figures/overview.svg"))
# The smallest of them.
ONE = RESULTS / "nginx-wall"


def made_again(directory: Path, seed: str) -> dict[str, bytes]:
    """What `make reports` writes into ``directory``, which gets ONE's results, by its path."""
    directory.mkdir()
    shutil.copyfile(ONE / "results.json", directory / "results.json")
    words = [sys.executable, str(SCRIPT), str(directory)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        words, cwd=CHECKOUT, env=environment, capture_output=True, timeout=600, check=False, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{directory}/report.html\n"), done.stderr
    written = (path for path in directory.rglob("*") if path.is_file() and path.name != "results.json")
    return {str(path.relative_to(directory)): path.read_bytes() for path in written}


def test_every_results_json_is_made_a_report_of() -> None:
    found = runpy.run_path(str(SCRIPT))["directories"]()
    assert {*found} >= {each.parents[1] for each in PICTURES}
    assert RESULTS / "load/idle" in found
    assert len(PICTURES) >= 12


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.parents[1].name)
def test_the_committed_picture_is_that_of_the_results(picture: Path) -> None:
    drawn = first_picture(document.load(picture.parents[1] / "results.json"))
    assert drawn is not None
    assert drawn.svg.encode() == picture.read_bytes(), "make reports"


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = made_again(tmp_path / "first", "1"), made_again(tmp_path / "second", "2")
    assert first == second
    assert first["figures/overview.svg"] == (ONE / "figures/overview.svg").read_bytes()
    assert {"report.html", "figures/overview.png"} < first.keys()


# What git has or would take of the results: no report, and no figure but the overview.
KEPT = ("results.json", "README.md", "figures/overview.svg")


def of_git(checkout: Path) -> list[str]:
    """The names below bench/results that git has or would take."""
    words = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout)]
    words += ["ls-files", "--cached", "--others", "--exclude-standard", "bench/results"]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True, text=True)
    return done.stdout.splitlines()


def test_nothing_else_is_committed(tmp_path: Path) -> None:
    """Of a copy without its git directory all files count but those that .gitignore names."""
    checkout = CHECKOUT
    if not (CHECKOUT / ".git").exists():
        checkout = tmp_path / "copy"
        shutil.copytree(RESULTS, checkout / "bench/results")
        shutil.copy(CHECKOUT / ".gitignore", checkout)
        subprocess.run(["git", "init", "-q", str(checkout)], timeout=60, check=True)
    names = of_git(checkout)
    assert len(names) > len(PICTURES)
    assert [name for name in names if not name.endswith(KEPT)] == []
