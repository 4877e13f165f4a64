"""`quickstart audit`: check an artefact before it is passed on or used."""

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
from quickstart.image.kerneloptions import added
from quickstart.parse.printable import in_full


@click.command()
@click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@JSON
def audit(out: Path, as_json: bool) -> None:
    """Check the artefact OUT for secrets, wrong modes, files that no build makes, and parts that contradict each
    other. The exit status is 1 when the check finds errors.
    """

    def work(verb: Verb) -> int:
        with verb.display().step("audit"):
            artefact = artefacts.load(out.absolute())
            found = auditing.audit(artefact)
            words = added(artefact.cmdline, artefact.stock_cmdline)
        result = {
            "clean": found.errors == 0,
            "errors": found.errors,
            "notes": found.notes,
            "findings": [dataclasses.asdict(each) for each in found.first],
            "left_out": found.left_out,
            "kernel_options": list(words),
        }
        verb.result(result, lambda console: _show(console, out, found, words))
        return 1 if found.errors else 0

    sys.exit(run_verb("audit", as_json, work))


def _show(console: Console, out: Path, found: auditing.Findings, words: tuple[str, ...]) -> None:
    for each in found.first:
        style = "red" if each.severity == auditing.ERROR else None
        say(console, f"{each.severity}: {in_full(each.object)}: {in_full(each.what)}", style)
        say(console, f"{'':4}→ {each.mend}", style)
    if found.left_out:
        say(console, f"and {found.left_out} more findings, which are not shown")
    say(console, f"kernel options: {' '.join(words) or 'none'}")
    say(console, f"{out}: {found.errors} errors, {found.notes} notes" if found.first else f"{out}: clean")
