"""A unit of each type, with many directives, in the application's place: the real hand-off adopts it, and the real settle ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.parity_adopted import adopt_alone, taken
from tests.vm.parity_list import unlisted
from tests.vm.parity_units import ADOPTED

pytestmark = pytest.mark.full


@pytest.mark.parametrize("kind", ADOPTED)
def test_it_is_adopted_and_agrees_with_itself_restarted(artefact: Path, tmp_path: Path, kind: str) -> None:
    said = taken(adopt_alone(artefact, kind, ADOPTED[kind], tmp_path / "root"))
    unit = f"parity-{kind}.service"
    (early,) = said.processes[unit, "early"]
    # No failed unit, nothing of ours in /run.
    assert early.files["machine"].split() == ["running"]
    show = dict(line.split("=", 1) for line in said.about(unit, "adopted", "unit", "show").splitlines())
    assert show["Type"] == {"guessed": "forking"}.get(kind, kind)
    assert (show["MainPID"], show["ActiveState"], show["DropInPaths"]) == (str(early.pid), "active", "")
    assert unlisted(said, unit) == []
