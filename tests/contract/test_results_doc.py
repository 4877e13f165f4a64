"""docs/users/results.md and docs/users/measuring.md describe exactly what the code reads and writes."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from quickstart.measure.matrix import parse_matrix
from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    PATTERNS,
    PAYLOADS,
    SIZES,
    STORAGES,
)
from quickstart.report.document import text_of
from quickstart.volume.storage import load_model, parse_model
from tests.unit.benchdata import realistic

DOCS = Path(__file__).parents[2] / "docs"


def sections() -> dict[str, dict[str, str]]:
    """Heading → field → its type, as docs/users/results.md has them."""
    found: dict[str, dict[str, str]] = {}
    for part in (DOCS / "users/results.md").read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE)
        found[part.partition("\n")[0]] = dict(rows)
    return found


def test_every_field_is_described_and_every_described_field_is_there() -> None:
    raw = json.loads(text_of(realistic()))
    whole, cell, plan, run, phase, boot = list(sections().values())[:6]
    assert list(raw) == list(whole)
    assert list(raw["plan"][0]) == [*cell, *plan]
    assert list(raw["runs"][0]) == [*cell, *run]
    assert list(raw["runs"][0]["phases"][0]) == list(phase)
    assert list(raw["boots"]["nginx/quickstart"]) == list(boot)


def test_the_words_of_a_cell_are_all_named() -> None:
    cell = list(sections().values())[1]
    for field, words in (
        ("configuration", CONFIGURATIONS),
        ("command_line", COMMAND_LINES),
        ("storage", STORAGES),
        ("clock", CLOCKS),
        ("size", SIZES),
        ("payload", PAYLOADS),
        ("pattern", PATTERNS),
    ):
        assert tuple(re.findall(r"`([^`]+)`", cell[field])) == words


def test_the_example_of_a_matrix_holds_and_names_every_word() -> None:
    example = (DOCS / "users/measuring.md").read_text().partition("```toml\n")[2].partition("```")[0]
    assert parse_matrix(example, "docs/users/measuring.md", ["nginx"]).plan
    for words in (CONFIGURATIONS, STORAGES, CLOCKS):
        assert ", ".join(words) in example


def test_the_example_of_a_storage_model_holds() -> None:
    example = (DOCS / "users/measuring.md").read_text().partition("   ```toml\n")[2].partition("   ```")[0]
    model = parse_model(textwrap.dedent(example), "docs/users/measuring.md")
    assert f"bench/storage/{model.name}.toml" in (DOCS / "users/measuring.md").read_text()


def test_the_models_table_says_the_figures_of_the_files() -> None:
    lines = (DOCS / "users/storage.md").read_text().partition("\n## The models\n")[2].splitlines()
    rows = [[each.strip() for each in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    table = {row[0]: row[1 : 1 + len(STORAGES)] for row in rows}
    assert table[""] == [f"`{name}`" for name in STORAGES]
    models = [load_model(name) for name in STORAGES]
    for figure in {figure: None for model in models for figure, _ in model.sources}:
        found = [getattr(model, figure) for model in models]
        said = ["no limit" if each is None else f"{each:,}".replace(",", " ") for each in found]
        assert table[figure] == said, figure
