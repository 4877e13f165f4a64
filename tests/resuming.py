"""A pytest plugin that lists the tests, runs only those of a list, and records the outcome of each (tests/full.py).

A record is a line of JSON, ``["ID", "OUTCOME"]``. It is written when the test ends, so a later kill does not
lose it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
_WORSE = (PASSED, SKIPPED, FAILED)


@dataclass(frozen=True)
class Test:
    """A test that was collected, and whether it is marked ``full``."""

    __test__ = False

    id: str
    full: bool


@dataclass
class Outcomes:
    """Puts the reports of a test's three phases together."""

    _seen: dict[str, str] = field(default_factory=dict)

    def add(self, test: str, when: str, outcome: str) -> str | None:
        """The worst outcome of the phases of ``test``, once it was torn down; before that None."""
        worst = max(self._seen.get(test, PASSED), outcome, key=_WORSE.index)
        self._seen[test] = worst
        return self._seen.pop(test) if when == "teardown" else None


def write_list(file: Path, tests: Iterable[Test]) -> None:
    file.write_text("".join(json.dumps([test.id, test.full]) + "\n" for test in tests))


def read_list(file: Path) -> tuple[Test, ...]:
    return tuple(Test(*json.loads(line)) for line in file.read_text().splitlines())


def append_record(file: Path, test: str, outcome: str) -> None:
    """In one write(2), so that two shards may write side by side."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, json.dumps([test, outcome]).encode() + b"\n")
    finally:
        os.close(fd)


def read_records(file: Path) -> dict[str, str]:
    """What became of each test at last. A line that was cut off, by a full disk or a loss of power, is none."""
    found: dict[str, str] = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            test, outcome = json.loads(line)
        except ValueError:
            continue
        if outcome in _WORSE:
            found[test] = outcome
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("resuming")
    group.addoption("--list-tests", type=Path, help="Write the tests that were collected into this file.")
    group.addoption("--only-tests", type=Path, help="Run only the tests of this file's list.")
    group.addoption("--record", type=Path, help="Append what became of each test to this file.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if file := config.getoption("--list-tests"):
        write_list(file, (Test(item.nodeid, item.get_closest_marker("full") is not None) for item in items))
    if file := config.getoption("--only-tests"):
        wanted = {test.id for test in read_list(file)}
        left_out = [item for item in items if item.nodeid not in wanted]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in wanted]


class Recorder:
    """Of the process that shows the results; pytest-xdist's workers only run tests."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self._outcomes.add(report.nodeid, report.when or "", report.outcome)
        if outcome is not None:
            append_record(self._file, report.nodeid, outcome)


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record", default=None)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(file))
