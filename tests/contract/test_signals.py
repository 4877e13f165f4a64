"""Signals that end us: a closed terminal interrupts us as Ctrl-C does, unless we are told to ignore it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 60.0
# Whatever who starts the tests ignores.
HEARS = ("env", "--default-signal=HUP")
# A verb that has a machine to shut down: it says so, on a terminal that may be gone, and is told of the end a second time.
VERB = """
import os, signal, sys, time
from pathlib import Path
from quickstart.cli.main import handle_signals
from quickstart.cli.output import run_verb
from quickstart.cli.shells import terminal
def work(verb):
    try:
        with terminal.raw(terminal.local(0, 1)):
            os.write(1, b"ready")
            time.sleep(600)
    finally:
        with verb.display().step("shut the machine down"):
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.2)
        verb.display().note("it is down")
        Path(sys.argv[1]).write_text("in order")
    return 0
handle_signals()
sys.exit(run_verb("run", False, work))
"""
ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [*HEARS, sys.executable, "-c", ON_A_TERMINAL, VERB, str(tmp_path / "end")]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as verb:
        os.close(theirs)
        assert os.read(ours, 5) == b"ready"
        # The kernel sends SIGHUP to the session.
        os.close(ours)
        try:
            assert verb.wait(LIMIT_S) == 130
        finally:
            verb.kill()
    assert (tmp_path / "end").read_text() == "in order"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_without_a_terminal(tmp_path: Path, number: signal.Signals) -> None:
    argv = [*HEARS, sys.executable, "-c", VERB, str(tmp_path / "end")]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as verb:
        assert verb.stdout is not None
        assert verb.stdout.read(5) == b"ready"
        verb.send_signal(number)
        try:
            assert verb.wait(LIMIT_S) == 130
        finally:
            verb.kill()
    assert (tmp_path / "end").read_text() == "in order"


def test_under_nohup_it_goes_on(tmp_path: Path) -> None:
    argv = ["nohup", sys.executable, "-c", VERB, str(tmp_path / "end")]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as verb:
        assert verb.stdout is not None
        assert verb.stdout.read(5) == b"ready"
        verb.send_signal(signal.SIGHUP)
        status = Path(f"/proc/{verb.pid}/status").read_text()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
        assert int(ignored.split()[1], 16) & 1 << (signal.SIGHUP - 1)
        assert verb.poll() is None
        verb.terminate()
        assert verb.wait(LIMIT_S) == 130
    assert (tmp_path / "end").read_text() == "in order"
