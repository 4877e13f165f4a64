"""A shell in a tree, on an overlay: its changes are thrown away, and a tree without a usable root raises a typed error."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.reference import confine
from quickstart.store.store import Store

RUN_SHELL = """
import sys
from pathlib import Path
from quickstart.errors import QuickStartError
from quickstart.cli.shells.reference import run_shell
try:
    sys.exit(run_shell(Path(sys.argv[1]), Path(sys.argv[2])))
except QuickStartError as error:
    sys.exit(f"{type(error).__name__}: {error.message}")
"""
FOREGROUND = (
    "import sys; from quickstart.host import foreground; print(foreground.run(lambda _: sys.argv[1:]))"
)


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


class Image:
    """A tree, and shells in it."""

    def __init__(self, tree: Path, confiner: Path) -> None:
        self.tree = tree
        self.argv = [sys.executable, "-c", RUN_SHELL, str(tree), str(confiner)]

    def shell(self, script: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.argv, input=script.encode(), capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def confiner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield confine.confiner(store)


@pytest.fixture
def image(tree: Path, confiner: Path) -> Image:
    return Image(tree, confiner)


def test_what_it_changes_is_gone(image: Image, tree: Path) -> None:
    script = "echo new >/etc/motd; busybox rm /bin/sh; busybox cat /etc/motd; busybox ls -A /; exit 4\n"
    done = image.shell(script)
    assert (done.returncode, done.stdout) == (4, b"new\nbin\ndev\netc\nproc\nsys\n"), done.stderr
    assert (tree / "etc/motd").read_text() == "old\n"
    assert (tree / "bin/sh").is_symlink()
    assert not list((tree / "dev").iterdir())


def test_it_is_alone_with_its_processes(image: Image) -> None:
    done = image.shell("busybox ps -o comm | busybox sort | busybox uniq\n")
    assert done.returncode == 0, done.stderr
    assert b"python" not in done.stdout
    assert b"sh" in done.stdout


def test_it_has_no_temporary_directory_of_the_host(
    image: Image, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages' scripts, which are confined as it is, fail where $TMPDIR is not."""
    monkeypatch.setenv("TMPDIR", str(tree.parent))
    done = image.shell("echo ${TMPDIR-none}\n")
    assert done.stdout == b"none\n", done.stderr


def test_what_it_starts_ends_with_it(image: Image, tree: Path) -> None:
    done = image.shell("busybox sleep 54321 & echo started\n")
    assert done.stdout == b"started\n"
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [line for line in lines if b"54321" in line]
    assert str(tree) not in Path("/proc/self/mountinfo").read_text()


def test_a_tree_that_cannot_be_mounted(tree: Path, confiner: Path) -> None:
    done = Image(tree / "none", confiner).shell("echo never\n")
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
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    script = "import tty; tty.setraw(0)"
    argv = ["setsid", "-c", "-w", sys.executable, "-c", FOREGROUND, sys.executable, "-c", script]
    done = subprocess.run(argv, stdin=theirs, stdout=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_nothing_of_the_host_is_to_be_seen(image: Image) -> None:
    """By no process's root, and by no way up from a directory that was left open: a chroot is left so by root."""
    script = (
        "for way in /proc/[0-9]*/root /proc/[0-9]*/cwd; do busybox ls -d $way/usr/bin/env $way/root/.cache; done 2>/dev/null\n"
        "cd /; for up in 1 2 3 4 5 6 7 8; do cd ..; done; busybox ls -A\n"
        "busybox grep -c . /proc/self/mountinfo\n"
    )
    done = image.shell(script)
    assert done.returncode == 0, done.stderr
    *names, mounts = done.stdout.decode().split()
    assert names == ["bin", "dev", "etc", "proc", "sys"]
    # The root, /dev and its six nodes, /proc, /sys.
    assert int(mounts) == 10


def test_files_behind_our_streams_are_not_its_own(image: Image, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(
        "for fd in 0 1 2; do busybox chmod 0777 /proc/self/fd/$fd; busybox stat -L -c %F /proc/self/fd/$fd; done\n"
    )
    files = [tmp_path / name for name in ("in", "out", "errors")]
    for file in files:
        file.touch(mode=0o640)
        file.chmod(0o640)
    with files[0].open() as stdin, files[1].open("w") as stdout, files[2].open("w") as stderr:
        done = subprocess.run(image.argv, stdin=stdin, stdout=stdout, stderr=stderr, timeout=60, check=False)
    assert (done.returncode, files[1].read_text()) == (0, "fifo\n" * 3), files[2].read_text()
    assert [file.stat().st_mode & 0o777 for file in files] == [0o640] * 3


def test_a_terminal_of_its_own(image: Image) -> None:
    """It is the shell's controlling one, has the size of ours, and what root does with it does nothing to ours."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    mode = os.fstat(theirs).st_mode
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 33, 101, 0, 0))
    script = (
        "busybox stty size; busybox stat -L -c %F /proc/self/fd/1; busybox chmod 0 /proc/self/fd/0 /proc/self/fd/1; "
        "echo tty-$(echo works >/dev/tty && echo too); exit 6\n"
    )
    with subprocess.Popen(
        ["setsid", "-c", "-w", *image.argv], stdin=theirs, stdout=theirs, stderr=theirs
    ) as shell:
        os.write(ours, script.encode())
        said = until_ended(shell, ours)
    assert shell.returncode == 6, said
    assert b"33 101\r\ncharacter special file\r\nworks\r\ntty-too\r\n" in said
    assert os.fstat(theirs).st_mode == mode
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def until_ended(shell: subprocess.Popen[bytes], ours: int) -> bytes:
    """What is shown until ``shell`` has ended, a minute at most."""
    said, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        ended = shell.poll() is not None
        while select.select([ours], [], [], 0.1)[0]:
            said += os.read(ours, 4096)
        if ended:
            return said
    shell.kill()
    return said


def test_what_is_said_at_its_end_is_not_lost(image: Image) -> None:
    done = image.shell("busybox seq 200000; echo complaint >&2; exit 1\n")
    assert done.returncode == 1
    assert done.stdout == b"".join(b"%d\n" % each for each in range(1, 200001))
    assert done.stderr == b"complaint\n"


def test_it_may_leave_its_input_unread(image: Image) -> None:
    assert image.shell("exit 9\n" + "#" * 1_000_000).returncode == 9
