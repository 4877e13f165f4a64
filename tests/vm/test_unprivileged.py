"""What needs no root: to look inside an artefact that is one's own, and to run it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.conftest import BOOT_S, COMMAND, Called

NOBODY = "65534"


def as_nobody(home: Path, *words: str | Path, temporary: Path | None = None) -> Called:
    """Run the command as another user. Of root's power it keeps reading, so that it finds itself wherever the checkout is."""
    capabilities = "-all,+dac_read_search"
    done = subprocess.run(
        [
            *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
            *("--inh-caps", capabilities, "--ambient-caps", capabilities, "--bounding-set", capabilities),
            *(str(COMMAND), *(str(word) for word in words)),
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(temporary or home)},
        capture_output=True,
        timeout=BOOT_S,
        check=False,
    )
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of nobody's own, outside pytest's, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["chown", f"{NOBODY}:{NOBODY}", place], check=True)
        yield Path(place)


def test_ones_own_artefact(artefact: Path, home: Path) -> None:
    mine = home / "nginx"
    subprocess.run(["cp", "-a", "--sparse=always", artefact, mine], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", mine], check=True)
    assert "fast/usr/sbin/nginx" in as_nobody(home, "ls", mine).out
    assert as_nobody(home, "cat", mine, "/etc/nginx/nginx.conf").out.startswith("user www-data;")
    assert "trace: exec by nginx" in as_nobody(home, "why", mine, "/usr/sbin/nginx").out
    assert as_nobody(home, "audit", mine).out.endswith(": clean\n")
    # A directory whose name is too long for a socket, and that QEMU would take for an option's end.
    deep = home / ("temporary, and long" * 6)
    deep.mkdir(mode=0o777)
    deep.chmod(0o777)
    ran = as_nobody(home, "run", mine, "--exec", "readlink /proc/$(cat /run/nginx.pid)/exe", temporary=deep)
    assert ran.out == "/fast/usr/sbin/nginx\n", ran.err
    assert list(deep.iterdir()) == []


def test_a_build_says_at_once_that_it_needs_root(home: Path) -> None:
    for verb in (("build", "--profile", "nginx", "-o", home / "out"), ("trace", "--profile", "nginx")):
        called = as_nobody(home, *verb, "--json")
        assert (called.status, called.error["kind"]) == (3, "NeedsRootError")
        assert "sudo" in called.error["hint"]
    # Nothing was begun: no store, no OUT.
    assert list(home.iterdir()) == []
