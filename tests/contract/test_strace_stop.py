"""`tracers/strace-stop` ends the strace of a PID 1, and the log has all that happened until then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from quickstart.host.assets import assets

# The script runs beside PID 1 and is not traced, as the agent in a guest. Its status goes to a file, and PID 1 may end then.
BOX = """
# Of its own, for what is frozen must not be the host's.
mount -t tmpfs groups /sys/fs/cgroup
for group in init.scope system.slice; do
	mkdir "/sys/fs/cgroup/$group"
	echo 0 >"/sys/fs/cgroup/$group/cgroup.freeze"
done
(
	while [ ! -e started ]; do sleep 0.1; done
	sleep 1
	trace/strace-stop "$1"
	echo $? >status
	cat /sys/fs/cgroup/init.scope/cgroup.freeze /sys/fs/cgroup/system.slice/cgroup.freeze >frozen
	sed -n 's/^TracerPid:[[:space:]]*//p' /proc/1/status >tracer
	: >release
) &
shift
exec "$@"
"""


def box(directory: Path, *init: str, tenths: int) -> int:
    """Run ``init`` as PID 1 of a PID namespace; returns the status of strace-stop."""
    shutil.copy(assets("tracers") / "strace-stop", directory / "trace" / "strace-stop")
    for tool, package in (("busybox", "busybox-static"), ("strace", "strace"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} is not installed: apt-get install {package}")
    (directory / "trace" / "busybox").symlink_to(str(shutil.which("busybox")))
    os.mkfifo(directory / "release")
    source = Path(__file__).parent / "vforker.c"
    subprocess.run(["gcc", "-O1", "-o", directory / "vforker", source], check=True, timeout=60)
    subprocess.run(
        ["unshare", "-Urpf", "--kill-child", "--mount-proc", "sh", "-c", BOX, "sh", str(tenths), *init],
        cwd=directory,
        timeout=60,
        check=False,
    )
    assert (directory / "tracer").read_text() == "0\n"
    assert (directory / "afterwards").exists()
    return int((directory / "status").read_text())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "trace").mkdir()
    return tmp_path


def test_a_strace_that_waits_for_a_process_in_vfork_ends_and_its_log_is_whole(directory: Path) -> None:
    tracing = (
        "strace",
        "-D",
        "-I2",
        "-f",
        "-q",
        "-e",
        "trace=%file,%process",
        "-o",
        "trace/strace.log",
        "./vforker",
    )
    assert box(directory, *tracing, tenths=20) == 0
    lines = (directory / "trace/strace.log").read_text().split("\n")
    # strace itself says so of a call that did not return, and the parser leaves the call out.
    assert lines[-2].endswith('"release", O_RDONLY <detached ...>')
    assert lines[-1] == ""
    assert (directory / "frozen").read_text() == "0\n1\n"
    assert [line for line in lines if '"started", O_WRONLY|O_CREAT' in line]
    assert not [line for line in lines if '"afterwards"' in line]


def test_a_pid_1_that_nothing_traces_is_told_apart(directory: Path) -> None:
    assert box(directory, "./vforker", tenths=20) == 2
    assert (directory / "frozen").read_text() == "0\n0\n"
