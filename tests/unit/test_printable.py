"""Untrusted strings on a terminal: no control sequences and no markup."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.table import Table

from quickstart.bench.series import RESULTS
from quickstart.cli import output
from quickstart.cli.followed import followed
from quickstart.cli.main import group
from quickstart.cli.output import Plain, run_verb, say
from quickstart.launch.drain import BoundedLog
from quickstart.parse.printable import brief, console_shown, shown
from quickstart.report import document
from tests.unit.benchdata import censored, realistic

ORDERS = "\x1b]0;owned\x07\x1b[2J\x1b]8;;http://x\x1b\\\x9b31m\u202e\u2066"
MARKUP = "[red]x[/red] [link=file:///etc]y[/link] [/nothing] :warning: a:key:b"


def printed(text: str) -> str:
    """As a line, in a table, as its title, in a table's heading and by print, on a terminal."""
    console = Plain()
    console.file = io.StringIO()
    console._force_terminal = True
    table = Table(title=text)
    table.add_column(text, no_wrap=True)
    table.add_row(text)
    console.print(table, width=4000)
    console.print(text, soft_wrap=True)
    say(console, text)
    return console.file.getvalue()


def test_no_order_gets_to_the_terminal() -> None:
    said = printed(ORDERS)
    # rich's own: the style of a title and of a heading.
    for order in ("\x1b[3m", "\x1b[1m", "\x1b[1;3m", "\x1b[0m"):
        said = said.replace(order, "")
    assert [char for char in said if not (char.isprintable() or char == "\n")] == []
    assert said.count(shown(ORDERS)) == 5


def test_markup_and_emoji_are_letters() -> None:
    assert printed(MARKUP).count(MARKUP) == 5


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A results directory of a stranger, with a name that would be markup."""
    base = realistic(configurations=("standard", "quickstart"), runs=2)
    cells = {each.cell: dataclasses.replace(each.cell, profile=f"{ORDERS}{MARKUP}") for each in base.plan}
    plan = tuple(dataclasses.replace(each, cell=cells[each.cell]) for each in base.plan)
    samples = tuple(censored(cells[each.cell], each.number, ORDERS) for each in base.samples)
    directory = tmp_path / "[/red][bold]"
    directory.mkdir(parents=True)
    document.save(dataclasses.replace(base, plan=plan, samples=samples, name=MARKUP), directory / RESULTS)
    return directory


def test_the_results_of_a_stranger_are_only_shown(poisoned: Path) -> None:
    found = CliRunner().invoke(group, ["bench", "--report", "-o", str(poisoned)])
    # Nothing got ready: not valid.
    assert found.exit_code == 4, found.output
    said = found.stdout + found.stderr
    assert [char for char in said if not (char.isprintable() or char == "\n")] == []
    assert "[/red][bold]" in found.stdout
    file = str(poisoned / RESULTS)
    compared = CliRunner().invoke(group, ["bench", "compare", file, file])
    assert compared.exit_code == 4, compared.output
    said = compared.stdout + compared.stderr
    assert [char for char in said if not (char.isprintable() or char == "\n")] == []


def test_json_has_escapes_of_its_own(poisoned: Path) -> None:
    found = CliRunner().invoke(group, ["bench", "--report", "-o", str(poisoned), "--json"])
    assert found.stdout.isascii()
    assert "\x1b" not in found.stdout
    assert json.loads(found.stdout)["result"]["cells"][0]["profile"] == f"{ORDERS}{MARKUP}"


def test_an_error_with_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(verb: output.Verb) -> int:
        raise FileNotFoundError(13, "[/b]", MARKUP + ORDERS)

    assert run_verb("x", False, fail) == 3
    assert f"{MARKUP}{shown(ORDERS)}: [/b]" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_console_keeps_its_colours_and_loses_its_orders(size: int) -> None:
    """However the text is cut when it comes."""
    text = f"\x1b[0;32m  OK  \x1b[0m é started\r\n{ORDERS}\x1b[6n\x1bP+q\x1b\\\x1b[38;5;1mend\x1b["
    said, begun = "", ""
    for at in range(0, len(text), size):
        more, begun = console_shown(begun + text[at : at + size])
        said += more
    orders = shown(f"{ORDERS}\x1b[6n\x1bP+q\x1b\\")
    assert said == f"\x1b[0;32m  OK  \x1b[0m é started\r\n{orders}\x1b[38;5;1mend"
    assert begun == "\x1b["


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        self.raw = io.BytesIO()
        super().__init__(self.raw)

    def isatty(self) -> bool:
        return True


def test_what_a_guest_says_is_followed_without_its_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = BoundedLog(tmp_path / "console.log", 1 << 20, 1 << 20), Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    with followed(log):
        log.append(b"\x1b]52;c;eA==\x07hello \xc2\x9b \xff\xc3")
        threading.Event().wait(0.25)
        log.append(b"\xa9\n")
    said.flush()
    assert said.raw.getvalue().decode() == "\\x1b]52;c;eA==\\x07hello \\x9b \\xffé\n"


def test_blanks_of_a_name_make_no_line() -> None:
    """A terminal breaks a long line at a run of blanks, and what follows would look like a hint."""
    assert brief("a b  c   d") == "a b \\x20c \\x20\\x20d"
    assert brief("a\u3164\u2800b") == "a\\u3164\\u2800b"
