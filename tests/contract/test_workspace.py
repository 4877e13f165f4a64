"""The next run removes the workspace of a killed process, and keeps that of a process that still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.host.workspace import workspace

STAYS = """
from quickstart.host.workspace import workspace
with workspace("quickstart-test-") as made:
    (made / "console.log").write_text("")
    print(made, flush=True)
    input()
"""


def test_a_killed_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", STAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        made = Path(process.stdout.readline().strip())
        with workspace("quickstart-test-"):
            assert made.is_dir()
        process.kill()
    assert made.is_dir()
    with workspace("quickstart-test-"):
        assert not made.exists()
