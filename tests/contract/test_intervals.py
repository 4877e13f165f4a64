"""docs/figures/intervals.svg is what its script draws, and has every interval that docs/users/measuring.md names."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "figures/intervals.py"


def test_the_committed_picture_is_what_the_script_draws() -> None:
    committed = SCRIPT.with_suffix(".svg").read_text(encoding="utf-8")
    assert runpy.run_path(str(SCRIPT))["drawn"]() == committed, "make figures"


def test_every_interval_of_the_table_is_in_the_picture() -> None:
    # The SVG has outlines for text, so the script is what can be asked.
    rows = re.findall(r"^\| `(\w+_ns)` \|", (DOCS / "users/measuring.md").read_text(), re.MULTILINE)
    assert len(rows) >= 5
    drawn = SCRIPT.read_text()
    assert [name for name in rows if name.removesuffix("_ns").replace("t_", "T_") not in drawn] == []
