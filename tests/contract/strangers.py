"""What the tests share in which another user owns, or may replace, a place that QuickStart uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from quickstart.host import witness
from tests.unit.outs import write_manifest

COMMAND = Path(sys.executable).with_name("quickstart")
STRANGER = 4242


def outside(uid: int) -> int:
    """The user ID that ``uid`` has outside of our user namespace, in which an ordinary user runs these tests. QuickStart
    finds the owners of directories there, if this process has a witness there: a worker of pytest-xdist has none.
    """
    if witness.own_user() == os.geteuid():
        return uid
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inner, outer, count = map(int, line.split())
        if inner <= uid < inner + count:
            return outer + uid - inner
    return uid


STRANGER_OUTSIDE = outside(STRANGER)
LIMIT_S = 120.0
CELL = ["--profile=nginx", "--configuration=standard", "--storage=local", "--clock=virtual"]


def out_in(place: Path) -> Path:
    out = place / "out"
    out.mkdir()
    write_manifest(out)
    return out
