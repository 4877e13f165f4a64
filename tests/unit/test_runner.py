"""What the bench requires of a profile before it makes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.bench import runner
from quickstart.errors import BadInputError
from tests.unit.test_profile import BENCH, GOOD


@pytest.mark.parametrize(
    ("text", "mode", "host_root", "refused"),
    [
        (GOOD + BENCH, 0o666, True, True),
        (GOOD + BENCH, 0o666, False, False),
        (GOOD, 0o666, True, False),
    ],
)
def test_root_runs_no_commands_that_others_could_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, mode: int, host_root: bool, refused: bool
) -> None:
    file = tmp_path / "profile.toml"
    file.write_text(text)
    file.chmod(mode)
    monkeypatch.setattr(runner, "is_host_root", lambda: host_root)
    if not refused:
        layer = runner._bench_layer(str(tmp_path))
        assert (layer.commands if layer else ()) == (("adduser x", "true") if "[bench]" in text else ())
        return
    with pytest.raises(BadInputError, match="others can write to "):
        runner._bench_layer(str(tmp_path))
