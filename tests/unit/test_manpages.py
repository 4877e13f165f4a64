"""The committed manual pages agree with the commands' help."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.cli.main import group
from quickstart.cli.manpages import pages, write

COMMITTED = Path(__file__).parents[2] / "docs/man"
SECTIONS = (
    *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"),
)


def test_every_page_is_as_the_command_says() -> None:
    committed = {path.name: path.read_text() for path in COMMITTED.iterdir()}
    assert committed == pages(), "`make man` makes them again"


def test_every_verb_has_a_page() -> None:
    assert {f"quickstart-{verb}.1" for verb in group.commands} < pages().keys()
    assert {"quickstart.1", "quickstart-cache-gc.1"} < pages().keys()


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_has_its_sections_in_order(name: str) -> None:
    found = [line.removeprefix(".SH ") for line in pages()[name].splitlines() if line.startswith(".SH ")]
    assert [each for each in found if each != "COMMANDS"] == list(SECTIONS)


@pytest.mark.parametrize("name", sorted(pages()))
def test_no_line_is_an_unmeant_request(name: str) -> None:
    requests = {line.split()[0] for line in pages()[name].splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".PP", ".TP", ".B", ".BR"}
    assert "" not in pages()[name].splitlines()


def test_what_is_no_more_is_removed(tmp_path: Path) -> None:
    (tmp_path / "quickstart-gone.1").write_text("")
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == pages().keys()
