"""`quickstart bench compare`: compare two files results.json that have the same cells. A cell is a combination of
measured values, such as a profile, a configuration and a storage model. The exit status is 1 when the guests of a cell
have become slower.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from quickstart.bench.series import invalid
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb as Called
from quickstart.cli.output import run_verb, say
from quickstart.host.cpulimit import RESULTS_HINT, RESULTS_LIMIT_S, cpu_limit
from quickstart.measure.results import words_of
from quickstart.parse.printable import in_full
from quickstart.report import document
from quickstart.report.causes import PHASES_OF, Cause
from quickstart.report.compare import Compared, Comparison, PhaseDifference, Time, compare
from quickstart.report.threshold import threshold_of

_REGRESSION, _NOT_VALID = 1, 4
# This many facts of a kind are named. The JSON output has all facts.
_NAMED = 12
# Phases that differ by less are not shown. The JSON output has all phases.
_SHOWN_NS = 20_000_000
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("compare")
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="TIME|SHARE",
    help="By how much B may be later: a time, or a percentage of A's T_total. Give one of each [100ms, 3%].",
)
@click.option(
    "--across-versions",
    is_flag=True,
    help="Compare the results even if QEMU, the guest kernel or packages have different versions.",
)
@JSON
def compare_command(
    first: Path, second: Path, thresholds: tuple[str, ...], across_versions: bool, as_json: bool
) -> None:
    """Compare two results.json of the same cells, and say how much later guests become ready in B than in A, in
    which phases of the boot the times differ, and which possible causes have changed.

    A cell is one combination of values that was measured, such as a profile, a configuration and a storage model.
    The exit status is 1 when guests of at least one cell become ready later in B than in A by more than the
    threshold (docs/users/compare.md says which difference each clock can show). It is 2 when the two files cannot
    be compared, and 4 when the measurement in one of them is not valid. No machine is booted.
    """

    @cpu_limit("the results", RESULTS_LIMIT_S, RESULTS_HINT)
    def work(verb: Called) -> int:
        threshold = threshold_of(thresholds)
        sides = document.load(first), document.load(second)
        found = compare(*sides, threshold, across_versions=across_versions)
        wrong = [f"{word}: {each}" for word, side in zip("AB", sides, strict=True) for each in invalid(side)]
        faults = tuple(dict.fromkeys((*wrong, *found.faults)))
        verb.result(_result(found, faults), lambda console: _show(console, found, faults))
        return _NOT_VALID if faults else _REGRESSION if found.regression else 0

    sys.exit(run_verb("bench compare", as_json, work))


def _result(found: Comparison, faults: Sequence[str]) -> Mapping[str, object]:
    return {
        "regression": found.regression,
        "valid": not faults,
        "faults": list(faults),
        "notes": list(found.notes),
        "cells": [_cell(each) for each in found.cells],
    }


def _cell(found: Compared) -> Mapping[str, object]:
    return {
        **dataclasses.asdict(found.cell),
        "n": dict(zip("ab", (n - c for n, c in zip(found.runs, found.censored, strict=True)), strict=True)),
        "censored": dict(zip("ab", found.censored, strict=True)),
        "regression": found.regression,
        "times": [_time(each) for each in found.times],
        "phases": [dataclasses.asdict(each) for each in found.phases],
        "causes": [dataclasses.asdict(each) for each in found.causes],
    }


def _time(found: Time) -> Mapping[str, object]:
    entry = dataclasses.asdict(found)
    return entry if found.p is not None else {k: v for k, v in entry.items() if k not in ("p", "interval_ns")}


def _show(console: Console, found: Comparison, faults: Sequence[str]) -> None:
    for note in found.notes:
        say(console, f"note: {in_full(note)}")
    for each in found.cells:
        for line in _lines(each):
            say(console, line)
    for fault in faults:
        say(console, f"not valid: {in_full(fault)}")
    later = sum(each.regression for each in found.cells)
    verdict = (
        f"{later} of {len(found.cells)} cells are later" if later else "nothing is later beyond the threshold"
    )
    say(console, verdict if not faults else f"not valid; besides, {verdict}")


def _lines(found: Compared) -> Iterator[str]:
    later = [each for each in found.times if each.verdict == "later"]
    sooner = [each for each in found.times if each.verdict == "earlier"]
    word = "REGRESSION" if later else "earlier" if sooner else "same"
    yield f"{words_of(found.cell)}: {word} ({_runs(found)})"
    for time in found.times:
        yield f"  {_said(time)}"
    if not later and not sooner:
        return
    phases = [each for each in found.phases if abs(each.difference_ns) >= _SHOWN_NS]
    kinds = [kind for kind in PHASES_OF if any(cause.kind == kind for cause in found.causes)]
    for kind in kinds:
        named = [each for each in found.causes if each.kind == kind]
        yield from _of_kind(kind, named, [each for each in phases if _is_named(each, found, kind)])
    if rest := [each for each in phases if not each.causes]:
        yield f"  {_differences(rest)}: nothing that is recorded has changed for it"


def _is_named(phase: PhaseDifference, found: Compared, kind: str) -> bool:
    return any(found.causes[at].kind == kind for at in phase.causes)


def _of_kind(kind: str, named: Sequence[Cause], phases: Sequence[PhaseDifference]) -> Iterator[str]:
    """Lines of text about changes of the kind ``kind``, such as changes of packages. The first line has the phases of
    the boot that these changes may affect. Then there is one line for each change. If there are more than _NAMED
    changes, the last line has the number of the other changes.
    """
    of = f"{_differences(phases)}: " if phases else "in no phase that it belongs to: "
    yield f"  {of}{kind.replace('_', ' ')}, {len(named)} changed"
    for cause in named[:_NAMED]:
        yield f"    {cause.text}"
    if len(named) > _NAMED:
        yield f"    and {len(named) - _NAMED} more"


def _differences(phases: Sequence[PhaseDifference]) -> str:
    largest = sorted(phases, key=lambda each: -abs(each.difference_ns))
    return ", ".join(f"{each.name} {each.difference_ns / 1e9:+.2f} s" for each in largest)


def _runs(found: Compared) -> str:
    """A text that says how many runs became ready and how many runs did not, for each of the two results."""
    ready = [n - c for n, c in zip(found.runs, found.censored, strict=True)]
    lost = f", censored {found.censored[0]} and {found.censored[1]}" if any(found.censored) else ""
    return f"{ready[0]} and {ready[1]} runs{lost}"


def _said(time: Time) -> str:
    interval = (
        ""
        if time.interval_ns is None
        else f", 95 % {_signed(time.interval_ns[0])} … {_signed(time.interval_ns[1])}"
    )
    return (
        f"{time.name:8} {time.a_ns / 1e9:.2f} s → {time.b_ns / 1e9:.2f} s  {_signed(time.difference_ns)}{interval}  "
        f"{time.verdict} (threshold {time.threshold_ns / 1e9:.2f} s; {time.why})"
    )


def _signed(ns: int) -> str:
    return f"{ns / 1e9:+.2f} s"
