"""A shell in a tree, on an overlay: nothing of what it does stays, and a tree that cannot be one is a typed error."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from quickstart.host import door

RUN_SHELL = """
import sys
from pathlib import Path
from quickstart.errors import QuickStartError
from quickstart.shell.reference import run_shell
try:
    sys.exit(run_shell(Path(sys.argv[1]), False))
except QuickStartError as error:
    sys.exit(f"{type(error).__name__}: {error.message}")
"""
FOREGROUND = "import sys; from quickstart.host import door; print(door.foreground(sys.argv[1:]))"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    assert os.geteuid() == 0, "a chroot needs root: run the tests with sudo"
    made = tmp_path / "a,b:c"
    for name in ("bin", "dev", "proc", "sys", "etc"):
        (made / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), made / "bin/busybox")
    (made / "bin/sh").symlink_to("busybox")
    (made / "etc/motd").write_text("old\n")
    return made


def shell(tree: Path, script: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-c", RUN_SHELL, str(tree)]
    return subprocess.run(argv, input=script.encode(), capture_output=True, timeout=60, check=False)


def test_what_it_changes_is_gone(tree: Path) -> None:
    script = "echo new >/etc/motd; busybox rm /bin/sh; busybox cat /etc/motd; busybox ls -A /; exit 4\n"
    done = shell(tree, script)
    assert (done.returncode, done.stdout) == (4, b"new\nbin\ndev\netc\nproc\nsys\n"), done.stderr
    assert (tree / "etc/motd").read_text() == "old\n"
    assert (tree / "bin/sh").is_symlink()
    assert not list((tree / "dev").iterdir())


def test_it_is_alone_with_its_processes(tree: Path) -> None:
    done = shell(tree, "busybox ps -o comm | busybox sort | busybox uniq\n")
    assert done.returncode == 0, done.stderr
    assert b"python" not in done.stdout
    assert b"sh" in done.stdout


def test_it_has_no_temporary_directory_of_the_host(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """in-chroot.sh runs the packages' scripts too, which fail where $TMPDIR is not."""
    monkeypatch.setenv("TMPDIR", str(tree.parent))
    done = shell(tree, "echo ${TMPDIR-none}\n")
    assert done.stdout == b"none\n", done.stderr


def test_what_it_starts_ends_with_it(tree: Path) -> None:
    done = shell(tree, "busybox sleep 54321 & echo started\n")
    assert done.stdout == b"started\n"
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [line for line in lines if b"54321" in line]
    assert str(tree) not in Path("/proc/self/mountinfo").read_text()


def test_a_tree_that_cannot_be_mounted(tree: Path) -> None:
    done = shell(tree / "none", "echo never\n")
    assert done.stdout == b""
    assert done.returncode == 1
    assert b"HostLacksError: an overlay on" in done.stderr
    assert b"none" in done.stderr


@pytest.mark.parametrize(("script", "status"), [("exit 3", "3"), ("kill -TERM $$", "143")])
def test_a_program_in_the_foreground_has_our_streams_and_a_status(script: str, status: str) -> None:
    argv = [sys.executable, "-c", FOREGROUND, "sh", "-c", f"cat; {script}"]
    done = subprocess.run(argv, input=b"in\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"in\n{status}\n".encode())


def test_the_terminal_is_as_it_was_after_a_program_in_the_foreground() -> None:
    """It changes the terminal's modes and takes it for a process group of its own, as shells with job control do."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    script = (
        "import os, signal, tty; signal.signal(signal.SIGTTOU, signal.SIG_IGN); "
        "tty.setraw(0); os.setpgid(0, 0); os.tcsetpgrp(0, os.getpid())"
    )
    argv = ["setsid", "-c", "-w", sys.executable, "-c", FOREGROUND, sys.executable, "-c", script]
    done = subprocess.run(argv, stdin=theirs, stdout=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_nothing_of_the_host_is_to_be_seen(tree: Path) -> None:
    """By no process's root, and by no way up from a directory that was left open: a chroot is left so by root."""
    script = (
        "for way in /proc/[0-9]*/root /proc/[0-9]*/cwd; do busybox ls -d $way/usr/bin/env $way/root/.cache; done 2>/dev/null\n"
        "cd /; for up in 1 2 3 4 5 6 7 8; do cd ..; done; busybox ls -A\n"
        "busybox grep -c . /proc/self/mountinfo\n"
    )
    done = shell(tree, script)
    assert done.returncode == 0, done.stderr
    *names, mounts = done.stdout.decode().split()
    assert names == ["bin", "dev", "etc", "proc", "sys"]
    # The root, /dev and its six nodes, /proc, and /sys with what the host has mounted there.
    host = sum(
        line.split()[4].startswith("/sys") for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    assert int(mounts) <= 9 + max(1, host)
