"""An OUT that cannot be renamed is named before the long work, and stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
# Says what a build would, and whether its work began.
BUILD = """\
import sys
from pathlib import Path
from quickstart.artefact.output import new_directory
from quickstart.errors import HostLacksError
out = Path(sys.argv[1])
try:
    with new_directory(out) as partial:
        print("work")
        (partial / "new").touch()
except HostLacksError as error:
    print(error.message, error.hint, sep="\\n")
print(*sorted(each.name for each in out.parent.iterdir()), *sorted(each.name for each in out.iterdir()))
"""
OVERLAY = """\
mkdir -p /tmp/a/low /tmp/a/up /tmp/a/work
mount -t overlay over -o lowerdir=/tmp/a/low,upperdir=/tmp/a/up,workdir=/tmp/a/work,userxattr /tmp/place
cd /tmp/place
"""
MOUNTS = {
    "mount point": "mkdir OUT; mount -t tmpfs old OUT; touch OUT/old",
    "mount inside": "mkdir -p OUT/old; mount -t tmpfs inside OUT/old",
    # As in a container whose image has an OUT.
    "lower layer": f"mkdir -p /tmp/a/low/OUT; touch /tmp/a/low/OUT/old\n{OVERLAY}",
    # As in a container that has made it.
    "upper layer": f"{OVERLAY}mkdir OUT\n",
    "plain": "mkdir OUT",
}


def build(mounts: str) -> list[str]:
    """What a build prints that replaces OUT, below a tmpfs of its own where ``mounts`` were made."""
    script = f'mount -t tmpfs own /tmp; mkdir /tmp/place; cd /tmp/place; {mounts}\nexec "$@" /tmp/place/OUT'
    argv = ["unshare", "-Urm", "sh", "-ec", script, "sh", sys.executable, "-c", BUILD]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mount point", "/tmp/place/OUT is mounted in the OUT that is to be replaced"),
        ("mount inside", "/tmp/place/OUT/old is mounted in the OUT that is to be replaced"),
        ("lower layer", "/tmp/place/OUT cannot be replaced: Invalid cross-device link"),
    ],
)
def test_an_out_that_cannot_be_renamed(kind: str, message: str) -> None:
    said, hint, left = build(MOUNTS[kind])
    assert (said, left) == (message, "OUT old")
    assert "choose another -o" in hint


@pytest.mark.parametrize("kind", ["upper layer", "plain"])
def test_an_out_that_can_be_renamed(kind: str) -> None:
    assert build(MOUNTS[kind]) == ["work", "OUT new"]
