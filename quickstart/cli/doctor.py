"""`quickstart doctor`: say which of the things that QuickStart needs this host has, and which are missing."""

from __future__ import annotations

import dataclasses
import sys

import click
from rich.console import Console

from quickstart import doctor as needs
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say
from quickstart.errors import HostLacksError
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

_MARKS = {
    needs.FOUND: ("found", "green"),
    needs.MISSING: ("missing", "red"),
    needs.BROKEN: ("broken", "red"),
}


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Say whether this host has everything that QuickStart needs, and which command installs what is missing. The
    exit status is 3 when something that is not optional is missing or broken.
    """

    def work(verb: Verb) -> int:
        with Store(default_root(), verb.display().note) as store:
            findings = needs.examine(Context(store, verb.display()))
        result = {"needs": [dataclasses.asdict(each) for each in findings]}
        verb.result(result, lambda console: _show(console, findings))
        lacking = [each for each in findings if each.state != needs.FOUND and not each.optional]
        return HostLacksError.exit_code if lacking else 0

    sys.exit(run_verb("doctor", as_json, work))


def _show(console: Console, findings: tuple[needs.Finding, ...]) -> None:
    for each in findings:
        mark, colour = _MARKS[each.state]
        console.print(f"{mark:7}", style=colour, end="")
        console.print(f"  {each.need:20} ", end="")
        say(console, each.detail.partition("\n")[0])
        if each.mend:
            say(console, f"{'':9}{'':20} → {each.mend}")
