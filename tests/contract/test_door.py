"""The one door to subprocesses: time limits, the end of the output, logs, and no process that keeps running."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart.errors import CommandError, CpuLimitError, MissingToolError
from quickstart.host import door

LIMIT_S = 20.0


class Lifeline:
    """A pipe whose writing end a process and all its children hold: it is at its end when the last of them is gone."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.path = f"/proc/{os.getpid()}/fd/{self.writer}"

    def all_gone(self) -> bool:
        """Whether every holder ends within the limit."""
        os.close(self.writer)
        while select.select([self.reader], [], [], LIMIT_S)[0]:
            if not os.read(self.reader, 4096):
                os.close(self.reader)
                return True
        return False


def test_output_and_status() -> None:
    done = door.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert door.run(["cat"], timeout_s=LIMIT_S, stdin=b"in").stdout == b"in"


def test_the_environment_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE")
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    monkeypatch.setenv("http_proxy", "http://p:1")
    shown = (
        door.run(["env"], timeout_s=LIMIT_S, env={"EXTRA": "e"}, cwd=tmp_path).stdout.decode().splitlines()
    )
    assert {"LC_ALL=C.UTF-8", "EXTRA=e", "http_proxy=http://p:1"} <= set(shown)
    assert not [line for line in shown if line.startswith("LD_PRELOAD_X")]
    assert door.run(["pwd"], timeout_s=LIMIT_S, cwd=tmp_path).stdout.decode().strip() == str(tmp_path)


def test_an_error_has_the_end_of_the_output() -> None:
    with pytest.raises(CommandError) as caught:
        door.run(["sh", "-c", "yes begin | head -n 9999; echo the end >&2; exit 7"], timeout_s=LIMIT_S)
    assert caught.value.returncode == 7
    assert caught.value.tail.endswith("the end\n")
    assert len(caught.value.tail) <= 4096
    assert "ended with status 7" in caught.value.message


def test_a_log_takes_both_outputs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("one", "two"):
        done = door.run(["sh", "-c", f"echo {word}; echo {word} >&2"], timeout_s=LIMIT_S, log=log)
        assert (done.stdout, done.stderr) == (b"", b"")
    assert log.read_text() == "one\none\ntwo\ntwo\n"
    with pytest.raises(CommandError) as caught:
        door.run(["sh", "-c", "echo why; exit 1"], timeout_s=LIMIT_S, log=log)
    assert caught.value.tail.endswith("why")


def test_a_tool_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUICKSTART_TOOL_PATH", str(tmp_path))
    with pytest.raises(MissingToolError) as caught:
        door.run(["mkfs.ext4", "-V"], timeout_s=LIMIT_S)
    assert (caught.value.tool, caught.value.hint) == ("mkfs.ext4", "apt-get install e2fsprogs")


def test_the_time_limit_kills_grandchildren() -> None:
    line = Lifeline()
    script = f"exec 9>{line.path}; (sh -c 'sleep 600; :'; :) & echo begun; sleep 600; :"
    with pytest.raises(CommandError) as caught:
        door.run(["sh", "-c", script], timeout_s=1)
    assert caught.value.returncode is None
    assert "ran out of time" in caught.value.message
    assert caught.value.tail == "begun\n"
    assert line.all_gone()


def test_the_limit_of_cpu_time_ends_the_program_by_name() -> None:
    with pytest.raises(CpuLimitError, match="sh ran out of time") as caught:
        door.run(["sh", "-c", "while :; do :; done"], timeout_s=600, cpu_s=1)
    assert caught.value.details == ("it used more than 1 s of CPU time",)


def test_the_limit_of_cpu_time_leaves_the_hard_limit_and_no_core() -> None:
    script = "ulimit -St; ulimit -Ht; ulimit -Sc"
    soft, hard, core = door.run(["bash", "-c", script], timeout_s=LIMIT_S, cpu_s=7).stdout.split()
    before = resource.getrlimit(resource.RLIMIT_CPU)[1]
    assert (soft, hard) == (b"7", b"unlimited" if before == resource.RLIM_INFINITY else b"%d" % before)
    # In KiB: one byte is none of them.
    assert core == b"0"


@pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"])
def test_children_that_outlive_their_leader_are_killed(output: str) -> None:
    """With the output kept open the limit has to end the wait; without, the command has just ended."""
    line = Lifeline()
    script = f"exec 9>{line.path}; sleep 600 {output} & exit 0"
    if output:
        assert door.run(["sh", "-c", script], timeout_s=LIMIT_S).returncode == 0
    else:
        with pytest.raises(CommandError):
            door.run(["sh", "-c", script], timeout_s=1)
    assert line.all_gone()


@pytest.mark.parametrize("script", ["echo no rights >&2", "yes no rights | head -c 1000000 >&2"])
def test_a_filter_that_may_write_no_file_says_why_it_failed(script: str) -> None:
    """However much it says, and nobody listens meanwhile."""
    with (
        Path("/dev/null").open("rb") as source,
        door.filtered(
            ["prlimit", "--fsize=0", "--", "sh", "-c", f"{script}; exit 3"], source.fileno()
        ) as found,
    ):
        assert found.stdout.read() == b""
        assert found.fault() == "no rights"


def test_background_ends_with_its_context(tmp_path: Path) -> None:
    line = Lifeline()
    script = f"exec 9>{line.path}; echo begun; exec sleep 600"
    with door.background(["sh", "-c", script], log=tmp_path / "log") as process:
        assert not door.has_ended(process, 0.5)
    assert process.returncode == -signal.SIGKILL
    assert line.all_gone()
    assert (tmp_path / "log").read_text() == "begun\n"


@pytest.mark.parametrize(
    "call",
    [
        "door.run(argv, timeout_s=600)",
        "with door.background(argv, log=pathlib.Path(sys.argv[2])) as process:\n    process.wait()",
    ],
)
def test_a_killed_parent_leaves_nothing(tmp_path: Path, call: str) -> None:
    line = Lifeline()
    script = f"exec 9>{line.path}; echo begun >&9; exec sleep 600"
    program = (
        "import pathlib, sys\nfrom quickstart.host import door\nargv = ['sh', '-c', sys.argv[1]]\n" + call
    )
    parent = subprocess.Popen([sys.executable, "-c", program, script, tmp_path / "log"])
    try:
        assert select.select([line.reader], [], [], LIMIT_S)[0]
        assert os.read(line.reader, 6) == b"begun\n"
    finally:
        parent.kill()
        parent.wait()
    assert line.all_gone()
