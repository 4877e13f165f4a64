"""tests/full.py with a real pytest and a few tests of its own: interrupted, continued, and run in shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SETTINGS = "[pytest]\nmarkers = full: takes long\n"
# Which tests were run is in a file outside the tree, whose hash says whether it has changed.
COMMON = """\
import os, signal
from pathlib import Path
import pytest

def ran(name):
    with Path(os.environ["RAN"]).open("a") as file:
        file.write(name + " ")

def broken():
    return Path(os.environ["RAN"]).with_name("broken").exists()
"""
FIRST = (
    COMMON
    + """
@pytest.mark.full
def test_long():
    ran("long")

def test_short():
    ran("short")

def test_skipped():
    ran("skipped")
    pytest.skip("here")
"""
)
SECOND = (
    COMMON
    + """
@pytest.mark.full
def test_interrupted():
    ran("interrupted")
    if broken():
        os.kill(os.getpid(), signal.SIGINT)

@pytest.mark.parametrize("word", ["a b", "c::d"])
def test_words(word):
    ran("words")

def test_breaks():
    ran("breaks")
    assert not broken()
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "small").mkdir(parents=True)
    (place / "pytest.ini").write_text(SETTINGS)
    (place / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n.full/\n")
    (place / "small/test_first.py").write_text(FIRST)
    (place / "small/test_second.py").write_text(SECOND)
    return place


def full(project: Path, *words: str) -> tuple[int, str, list[str]]:
    """Its status, its last line, and the tests that ran."""
    ran = project.parent / "ran"
    ran.write_text("")
    text = "import pathlib, sys; from tests import full; sys.exit(full.main(sys.argv[2:], pathlib.Path(sys.argv[1]), 'small'))"
    done = subprocess.run(
        [sys.executable, "-c", text, str(project), *words],
        cwd=CHECKOUT,
        env={**os.environ, "RAN": str(ran)},
        capture_output=True,
        timeout=300,
        check=False,
        text=True,
        # One test interrupts pytest, which ignores that where the shell has started these tests in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.stdout, done.stderr
    return done.returncode, done.stdout.splitlines()[-1], ran.read_text().split()


AT_ONCE = [(), ("--", "-n", "2", "--dist", "loadfile")]


def test_those_marked_full_run_and_all_are_counted(project: Path) -> None:
    status, line, ran = full(project)
    assert status == 0
    assert line == "test-full: 7 tests: 6 passed, 0 failed, 1 skipped, 0 not run"
    assert ran == ["long", "short", "skipped", "interrupted", "words", "words", "breaks"]


def test_it_goes_on_where_it_was_interrupted(project: Path) -> None:
    broken = project.parent / "broken"
    broken.touch()
    status, line, ran = full(project)
    assert (status, ran) == (2, ["long", "short", "skipped", "interrupted"])
    assert line == "test-full: 7 tests: 2 passed, 0 failed, 1 skipped, 4 not run"
    broken.unlink()
    status, line, ran = full(project)
    assert status == 0
    assert ran == ["interrupted", "words", "words", "breaks"]
    assert line == "test-full: 7 tests: 6 passed, 0 failed, 1 skipped, 0 not run; 3 of them in an earlier run"
    # Nothing is left to do, and the line is the same.
    assert full(project) == (0, line.replace("; 3 of", "; 7 of"), [])


@pytest.mark.parametrize("words", AT_ONCE, ids=["one", "two"])
def test_what_failed_is_run_again_and_nothing_else(project: Path, words: tuple[str, ...]) -> None:
    text = (project / "small/test_second.py").read_text()
    (project / "small/test_second.py").write_text(text.replace("os.kill(os.getpid(), signal.SIGINT)", "pass"))
    broken = project.parent / "broken"
    broken.touch()
    status, line, ran = full(project, *words)
    assert (status, sorted(ran)) == (
        1,
        ["breaks", "interrupted", "long", "short", "skipped", "words", "words"],
    )
    assert line == "test-full: 7 tests: 5 passed, 1 failed, 1 skipped, 0 not run"
    broken.unlink()
    status, line, ran = full(project, *words)
    assert (status, ran) == (0, ["breaks"])
    assert line == "test-full: 7 tests: 6 passed, 0 failed, 1 skipped, 0 not run; 6 of them in an earlier run"


def test_a_changed_tree_begins_anew(project: Path) -> None:
    assert full(project)[0] == 0
    with (project / "small/test_first.py").open("a") as file:
        file.write("\n# changed\n")
    status, line, ran = full(project)
    assert (status, len(ran)) == (0, 7)
    assert "earlier" not in line


def test_shards_together_are_the_whole(project: Path) -> None:
    found = [full(project, "--shard", f"{index}/3") for index in (1, 2, 3)]
    assert [status for status, _, _ in found] == [0, 0, 0]
    assert sorted(name for _, _, ran in found for name in ran) == sorted(
        ["long", "interrupted", "short", "skipped", "words", "words", "breaks"]
    )
    assert found[1][1].startswith("test-full, shard 2/3: ")
    # The whole, afterwards, has nothing to do.
    assert full(project)[2] == []


def test_a_test_that_cannot_be_collected_ends_it(project: Path) -> None:
    (project / "small/test_third.py").write_text("import nothing_of_this_name\n")
    status, _, ran = full(project)
    assert (status, ran) == (1, [])
