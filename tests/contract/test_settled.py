"""The question that we ask a guest until it has settled. A real shell runs it, and its systemctl answers as systemd 252 does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.launch.settled import ASK, Answer, parse

SYSTEMCTL = """\
#!/bin/sh
case $1 in
is-system-running) STATE ;;
show) echo 12050123 ;;
list-units) printf 'b.service loaded failed failed Breaks\\na.mount   loaded failed failed A mount\\n' ;;
list-jobs) printf ' 97 b.service       start waiting\\n101 a.service       start running\\n' ;;
*) exit 2 ;;
esac
"""


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ("echo running", Answer("running", 12_050_123, ("a.mount", "b.service"), ())),
        ("echo degraded; exit 1", Answer("degraded", 12_050_123, ("a.mount", "b.service"), ())),
        # It waits to the end of its slice, and is ended before it says anything.
        ("kill -TERM $$", Answer("starting", 0, (), ("a.service start", "b.service start"))),
        # No systemd yet, or none that answers.
        ("echo offline; exit 1", Answer("offline", 0, (), ("a.service start", "b.service start"))),
    ],
)
def test_what_systemctl_says_is_understood(tmp_path: Path, state: str, answer: Answer) -> None:
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.replace("STATE", state))
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", ASK],
        capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=120,
        check=True,
    )
    assert parse(done.stdout.decode()) == answer
