"""A root shell at each of the three places, by a pipe and by a terminal: each gives an answer that only its place can give."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest

from quickstart.launch.drain import whole_text
from tests.vm.conftest import BOOT_S, COMMAND, guest_file, quickstart


def scripted(script: str, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(COMMAND), "shell", *(str(word) for word in words)],
        input=script.encode(),
        capture_output=True,
        timeout=BOOT_S,
        check=False,
    )


class Terminal:
    """The command on a terminal of its own, of 30 rows and 100 columns."""

    def __init__(self, *words: str | Path) -> None:
        self.fd, theirs = pty.openpty()
        os.set_blocking(self.fd, False)
        env = {**os.environ, "TERM": "vt100"}
        # Who starts us in the background has SIGINT ignored, and so would have the shell.
        argv = ["env", "--default-signal=INT,QUIT", "setsid", "-c", "-w", COMMAND, "shell", *words]
        subprocess.run(["stty", "rows", "30", "cols", "100"], stdin=theirs, check=True)
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self.seen = b""

    def wait_for(self, mark: bytes) -> bytes:
        """What comes up to ``mark``; every mark is waited for behind the last one."""
        deadline = time.monotonic() + BOOT_S
        while mark not in self.seen and time.monotonic() < deadline and self.process.poll() is None:
            if select.select([self.fd], [], [], 0.2)[0]:
                self._read()
        before, found, self.seen = self.seen.partition(mark)
        assert found, before.decode(errors="replace")
        return before

    def _read(self) -> None:
        try:
            self.seen += os.read(self.fd, 4096)
        except OSError:
            # EIO: the other end is closed.
            time.sleep(0.1)

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def end(self) -> int:
        """Read to the end, so that nobody waits for us; the status."""
        deadline = time.monotonic() + BOOT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.2)[0]:
                self._read()
        os.close(self.fd)
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()


def test_a_script_in_the_guest(used: Path) -> None:
    """Its output comes as it is, its status is ours, and what it wrote is on the disk: the guest was shut down in order."""
    done = scripted(
        "echo it-is $(cat /proc/1/comm) $(readlink /proc/$(cat /run/nginx.pid)/exe)\necho kept$((6 * 7)) >/root/note\nexit 7\n",
        *("--at", "guest", used),
    )
    assert done.returncode == 7, done.stderr
    # Ready is when the one hands over to the other, which is called init until it has named itself.
    assert re.search(r"it-is (busybox|init|systemd) /fast/usr/sbin/nginx\n", whole_text(done.stdout)), (
        done.stdout
    )
    assert guest_file(used, "/root/note") == "kept42\n"
    assert quickstart("run", used, "--snapshot", "--check").status == 0


def test_a_script_in_the_guest_of_a_stock_boot(artefact: Path) -> None:
    done = scripted("echo it-is $(cat /proc/1/comm) $(tty)\n", "--stock", "--snapshot", artefact)
    assert done.returncode == 0, done.stderr
    assert "it-is systemd /dev/ttyS0\n" in whole_text(done.stdout)


def test_a_script_in_the_initramfs(artefact: Path) -> None:
    """The root volume is mounted, and not yet the root; then the boot goes on until it is ready."""
    done = scripted(
        "echo it-is $(cat /proc/1/comm) with $(lsmod | grep -c '^virtio_blk ') driver, $(mount | grep -c vda) mounts\n"
        "echo below: $(find /newroot/etc /var -maxdepth 0 2>&1)\n",
        *("--at", "initramfs", "--snapshot", artefact),
    )
    assert done.returncode == 0, done.stderr
    assert "it-is init with 1 driver, 1 mounts\n" in whole_text(done.stdout)
    assert "below: /newroot/etc find: /var: No such file or directory\n" in whole_text(done.stdout)
    # What init says at the hand-off may come after ready, when the guest is gone.
    assert b"fallback" not in done.stdout
    assert b"ready, after" in done.stderr


def test_a_script_in_the_reference_image(artefact: Path) -> None:
    """The image of OUT, changed to the user's liking, and next time as it was."""
    script = "dpkg-query -W -f '${db:Status-Status}\\n' nginx; echo changed$((6 * 7)) >/etc/changed; cat /etc/changed; exit 9"
    done = scripted(f"{script}\n", "--at", "reference", artefact)
    assert (done.returncode, done.stdout) == (9, b"installed\nchanged42\n"), done.stderr
    again = scripted("ls /etc/changed || echo as-it-was", "--at", "reference", "--profile", "nginx")
    assert again.stdout == b"as-it-was\n", again.stderr
    assert "quickstart-shell" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("place", ["guest", "reference"])
def test_a_terminal(artefact: Path, place: str) -> None:
    """A prompt, the window's size, Ctrl-C for the command and not for us, and the shell's status."""
    words = ("--snapshot",) if place == "guest" else ()
    terminal = Terminal("--at", place, *words, artefact)
    terminal.wait_for(b"# ")
    terminal.type(b"stty size; echo token$((6 * 7))\r")
    assert b"30 100" in terminal.wait_for(b"token42")
    terminal.type(b"sleep 1000; echo never\r")
    terminal.wait_for(b"never")
    time.sleep(1)
    terminal.type(b"\x03")
    terminal.wait_for(b"# ")
    terminal.type(b"exit 6\r")
    assert terminal.end() == 6


def test_ctrl_bracket_leaves_and_shuts_down_in_order(used: Path) -> None:
    terminal = Terminal("--at", "guest", used)
    terminal.wait_for(b"# ")
    terminal.type(b"echo kept$((6 * 7)) >/root/note; sleep 1000; echo never\r")
    terminal.wait_for(b"never")
    time.sleep(1)
    terminal.type(b"\x1d")
    assert terminal.end() == 0
    assert guest_file(used, "/root/note") == "kept42\n"


def test_a_guest_that_panics_has_no_shell(artefact: Path) -> None:
    done = scripted(
        "id\n",
        "--at",
        "initramfs",
        "--snapshot",
        "--append",
        "rdinit=/none root=/dev/none panic=-1",
        artefact,
    )
    assert done.returncode == 1
    assert b"no shell came up in the initramfs" in done.stderr
    assert b"Kernel panic" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "guest", "--profile", "nginx"), "give OUT, and no --profile"),
        (("--at", "reference"), "needs either OUT or --profile"),
        (("--at", "initramfs", "--stock", "OUT"), "which --stock does not boot"),
    ],
)
def test_what_does_not_go_together(artefact: Path, words: tuple[str, ...], said: str) -> None:
    called = quickstart("shell", *(artefact if word == "OUT" else word for word in words))
    assert (called.status, said in " ".join(called.err.split())) == (2, True), called.err


def test_a_store_without_the_reference_image(artefact: Path, tmp_path: Path) -> None:
    for words in (("--profile", "nginx"), (artefact,)):
        called = quickstart("shell", "--at", "reference", *words, env={"QUICKSTART_CACHE": str(tmp_path)})
        assert (called.status, "no reference image" in called.err) == (2, True), called.err
