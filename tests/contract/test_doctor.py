"""`quickstart doctor` on this host, on a host that lacks everything, and on a host with a tool that does not work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("quickstart")


def doctor(tmp_path: Path, tools: str | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and the findings by need; the store is empty, so that no guest is booted for long."""
    env = {**os.environ, "QUICKSTART_CACHE": str(tmp_path / "store")}
    if tools is not None:
        env["QUICKSTART_TOOL_PATH"] = tools
    done = subprocess.run(
        [str(COMMAND), "doctor", "--json"], capture_output=True, timeout=120, env=env, check=False
    )
    document = json.loads(done.stdout)
    assert document["ok"], document
    return done.returncode, {each["need"]: each for each in document["result"]["needs"]}


def test_after_make_setup_nothing_is_lacking(tmp_path: Path) -> None:
    status, needs = doctor(tmp_path)
    lacking = {
        name: each for name, each in needs.items() if each["state"] != "found" and not each["optional"]
    }
    assert (status, lacking) == (0, {})


def test_a_host_without_tools(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, needs = doctor(tmp_path, str(tmp_path / "empty"))
    assert status == 3
    assert needs["strace"]["state"] == "missing"
    assert needs["strace"]["mend"] == "apt-get install strace"
    assert needs["mkfs.ext4"]["mend"] == "apt-get install e2fsprogs"


def test_a_tool_that_does_not_work(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin/strace"
    broken.write_text("#!/bin/sh\necho 'cannot run' >&2\nexit 1\n")
    broken.chmod(0o755)
    status, needs = doctor(tmp_path, f"{tmp_path / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin")
    assert status == 3
    assert needs["strace"]["state"] == "broken"
    assert "cannot run" in needs["strace"]["detail"]
    assert needs["strace"]["mend"] == "apt-get install --reinstall strace"
