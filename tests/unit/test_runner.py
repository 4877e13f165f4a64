"""What the bench demands of a profile before it makes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.bench import runner
from quickstart.errors import BadInputError
from quickstart.profile import BenchLayer, parse_profile
from tests.unit.test_profile import GOOD

COMMANDS = BenchLayer(parse_profile(GOOD, "x").ready, (), ("true",))


@pytest.mark.parametrize(("mode", "host_root", "refused"), [(0o666, True, True), (0o666, False, False)])
def test_root_runs_no_commands_that_others_could_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, host_root: bool, refused: bool
) -> None:
    file = tmp_path / "profile.toml"
    file.write_text("")
    file.chmod(mode)
    monkeypatch.setattr(runner, "is_host_root", lambda: host_root)
    if not refused:
        runner._demand_own_commands(str(tmp_path), COMMANDS)
        return
    with pytest.raises(BadInputError, match="others can write to it"):
        runner._demand_own_commands(str(tmp_path), COMMANDS)
