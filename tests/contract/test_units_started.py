"""`tracers/units-started` waits for the companions of a stack."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.host.assets import assets

# It says the next line of the file `says` each time, and notes its words.
SYSTEMCTL = """#!/bin/sh
cd "${0%/*}" || exit
echo "$*" >>asked
read -r states <says
[ "$(wc -l <says)" -eq 1 ] || { tail -n +2 says >rest && mv rest says; }
printf '%s\n' $states
exit 3
"""
# Instead of sleeping, it puts the clock forward.
BUSYBOX = """#!/bin/sh
[ "$1" = sleep ] || exec "$@"
cd "${0%/*}" || exit
read -r now rest <uptime
echo "$((${now%.*} + 10)).50 $rest" >uptime
"""


def asked(directory: Path, *says: str) -> list[str]:
    """The calls of systemctl until the script ends, with a busybox that does not sleep, and a clock of its own."""
    script = (assets("tracers") / "units-started").read_text()
    (directory / "units-started").write_text(script.replace("/proc/uptime", str(directory / "uptime")))
    (directory / "uptime").write_text("7.50 1.00\n")
    (directory / "systemctl").write_text(SYSTEMCTL)
    (directory / "busybox").write_text(BUSYBOX)
    (directory / "says").write_text("".join(f"{each}\n" for each in says))
    for name in ("units-started", "systemctl", "busybox"):
        (directory / name).chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    words: list[str | Path] = [directory / "units-started", "b.service", "-.service"]
    subprocess.run(words, env={"PATH": path}, timeout=60, check=True)
    return (directory / "asked").read_text().splitlines()


@pytest.mark.parametrize("last", ["active active", "active failed", "reloading deactivating", ""])
def test_it_waits_until_all_have_started_or_failed(tmp_path: Path, last: str) -> None:
    calls = asked(tmp_path, "activating active", "active inactive", last)
    assert calls == ["is-active -- b.service -.service"] * 3


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Each time, ten seconds pass."""
    assert len(asked(tmp_path, "active activating")) == 12
