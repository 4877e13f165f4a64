"""`quickstart audit`: what somebody who is given an artefact should know of it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact import audit as auditing
from quickstart.artefact import directory as artefacts
from quickstart.cli.completion import artefacts_here
from quickstart.cli.options import JSON
from quickstart.cli.output import Verb, run_verb, say


@click.command()
@click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@JSON
def audit(out: Path, as_json: bool) -> None:
    """Look through the artefact OUT for secrets, wrong modes, strangers and parts that disagree; status 1 when there are errors."""

    def work(verb: Verb) -> int:
        with verb.display().step("audit"):
            findings = auditing.audit(artefacts.load(out.absolute()))
        errors = sum(each.severity == auditing.ERROR for each in findings)
        result = {
            "clean": errors == 0,
            "errors": errors,
            "findings": [dataclasses.asdict(each) for each in findings],
        }
        verb.result(result, lambda console: _show(console, out, findings, errors))
        return 1 if errors else 0

    sys.exit(run_verb("audit", as_json, work))


def _show(console: Console, out: Path, findings: tuple[auditing.Finding, ...], errors: int) -> None:
    for each in findings:
        style = "red" if each.severity == auditing.ERROR else None
        say(console, f"{each.severity}: {each.object}: {each.what}", style)
        say(console, f"{'':4}→ {each.mend}", style)
    notes = len(findings) - errors
    say(console, f"{out}: {errors} errors, {notes} notes" if findings else f"{out}: clean")
