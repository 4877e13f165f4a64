"""bench/services/draw.py and survey.py: what is drawn, how the verbs' documents are judged, and what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.services import coverage, draw, survey
from bench.services.survey import Outcome, Tried

CHECKOUT = Path(__file__).parents[2]
DAEMON = "[Service]\nExecStart=/usr/sbin/d\n[Install]\nWantedBy=multi-user.target\n"
AVAILABLE = """\
Package: tagged
Tag: implemented-in::c, interface::daemon,
 network::server

Package: helped
Pre-Depends: init-system-helpers (>= 1.54~)

Package: folded
Tag: implemented-in::c,
 interface::daemon

Package: other
Description: an interface::daemon in words
Depends: libinit-system

"""


def test_the_pool() -> None:
    assert draw.pool_of(AVAILABLE) == ("folded", "helped", "tagged")


def test_the_same_seed_draws_the_same() -> None:
    names = [f"p{number}" for number in range(100)]
    assert draw.shuffled(names, 1) == draw.shuffled(reversed(names), 1)
    assert draw.shuffled(names, 1) != draw.shuffled(names, 2)


@pytest.mark.parametrize(
    ("units", "scripts", "unit"),
    [
        ({"b.service": DAEMON, "a.service": DAEMON}, (), "a.service"),
        ({"app.service": DAEMON, "a.service": DAEMON}, (), "app.service"),
        ({"app@.service": DAEMON}, (), ""),
        ({"app.service": DAEMON.replace("[Service]", "[Service]\nType=oneshot")}, (), ""),
        ({"app.service": "[Service]\nExecStart=/usr/sbin/d\n"}, (), ""),
        ({}, ("app", "b"), "app.service"),
        ({"app.service": "[Service]\nExecStart=/usr/sbin/d\n"}, ("app",), ""),
        ({}, (), ""),
    ],
)
def test_the_daemon_of_a_package(units: dict[str, str], scripts: tuple[str, ...], unit: str) -> None:
    assert draw.daemon_of("app", units, scripts) == unit


NEW = {"ready": "tcp:1"}
BUILT = {"early": "seen", "trial": {"early_ns": 2_500_000_000, "stock_ns": 20_000_000_000, "fallback": ""}}
RUN = {"ok": True, "result": {"fallback": None, "settled": "running", "failed_units": []}}


@pytest.mark.parametrize(
    ("kind", "details", "outcome"),
    [
        ("NoProfileError", ["app.service fails by itself: exit-code"], Outcome.IDLE),
        (
            "NoProfileError",
            ["app.service does not run once the machine has booted (it is enabled)"],
            Outcome.IDLE,
        ),
        ("NoProfileError", ["app.service cannot be started early: it has Type=dbus"], Outcome.REFUSED),
        ("UnsupportedUnitError", [], Outcome.REFUSED),
        ("GuestError", ["app.service fails by itself: exit-code"], Outcome.FAILED),
    ],
)
def test_an_error_with_its_details(kind: str, details: list[str], outcome: Outcome) -> None:
    error = {"kind": kind, "message": "no profile was written", "details": details}
    found = survey.of_error("app.service", error)
    assert (found.outcome, found.why) == (outcome, "\n".join(("no profile was written", *details)))


def test_a_daemon_that_starts_early() -> None:
    found = survey.judged("app.service", NEW, BUILT, RUN)
    assert found == Tried(unit="app.service", outcome=Outcome.FAST, ready="tcp:1", early_s=2.5, stock_s=20.0)


@pytest.mark.parametrize(
    ("built", "run", "outcome", "why"),
    [
        ({**BUILT, "early": "never"}, RUN, Outcome.STOCK, "the early start was not ready sooner"),
        (
            {**BUILT, "trial": {**BUILT["trial"], "fallback": "fallback 1: x"}},  # type: ignore[dict-item]
            RUN,
            Outcome.STOCK,
            "the early start did not happen: fallback 1: x",
        ),
        (BUILT, {"ok": False, "error": {"message": "no"}}, Outcome.FAILED, "no"),
        (BUILT, {"ok": True, "result": {**RUN["result"], "fallback": "x"}}, Outcome.FAILED, "x"),  # type: ignore[dict-item]
        (
            BUILT,
            {"ok": True, "result": {"fallback": None, "settled": "degraded", "failed_units": ["a.service"]}},
            Outcome.FAILED,
            "the machine is degraded: a.service",
        ),
    ],
)
def test_a_daemon_that_does_not(
    built: dict[str, Any], run: dict[str, Any], outcome: Outcome, why: str
) -> None:
    found = survey.judged("app.service", NEW, built, run)
    assert (found.outcome, found.why) == (outcome, why)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("UnsupportedUnitError", Outcome.REFUSED),
        ("GuestError", Outcome.FAILED),
        ("CommandError", Outcome.FAILED),
    ],
)
def test_an_error_of_a_verb(kind: str, outcome: Outcome) -> None:
    found = survey.of_error("app.service", {"kind": kind, "message": "why"})
    assert (found.outcome, found.why) == (outcome, "why")


def test_the_document_and_the_page() -> None:
    found = {
        "a": survey.judged("a.service", NEW, BUILT, RUN),
        "b": survey.of_error("b.service", {"kind": "NoProfileError", "message": "x | y\nz"}),
    }
    assert survey.read_document(survey.document(found)) == found
    page = survey.page_part((("a", "a.service"), ("b", "b.service"), ("c", "c.service")), found)
    assert "Of 3 daemons, 2 were tried:" in page
    assert "| a | a.service | fast | tcp:1 | 2.5, 20.0 |  |" in page
    assert "| b | b.service | refused |  |  | x / y z |" in page
    assert "| c | c.service | not tried |" in page


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    names = survey.drawn(draw.LIST.read_text())
    assert len(names) == len(dict(names)) == draw.COUNT
    found = survey.read_document(survey.RESULTS.read_text()) if survey.RESULTS.exists() else {}
    assert set(found) <= set(dict(names))
    page = (CHECKOUT / coverage.PAGE).read_text()
    assert coverage.with_part(page, survey.page_part(names, found), survey.MARK) == page
