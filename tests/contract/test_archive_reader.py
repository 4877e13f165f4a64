"""Who reads or decompresses a stranger's archive has no power on this host, and does not outlive us."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from quickstart.host.workspace import workspace
from quickstart.inspect.foreign.home import foreign_members
from quickstart.inspect.foreign.reader import NOBODY


def test_who_reads_has_no_power() -> None:
    """Asked from outside while it waits for more: its ids, capabilities, root and network."""
    reading, waiting = os.pipe()
    seen: dict[str, str] = {}
    with workspace("quickstart-test-") as work:
        (work / "empty").mkdir()
        argv = [
            *own_namespaces(network=True),
            sys.executable,
            "-P",
            "-m",
            "quickstart.inspect.foreign.reader",
        ]
        with door.filtered([*argv, "tar", work / "empty"], reading) as found:
            pid = _reader_below(found.process.pid)
            seen = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":\t" in line
            )
            root, network = (Path(f"/proc/{pid}/{name}").readlink() for name in ("root", "ns/net"))
            os.close(waiting)
    os.close(reading)
    assert seen["Uid"].split() == seen["Gid"].split() == [str(NOBODY)] * 4
    assert seen["Groups"].strip() == ""
    assert {int(seen[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert seen["NoNewPrivs"] == "1"
    assert root == (work / "empty").resolve()
    assert network != Path("/proc/self/ns/net").readlink()


def _reader_below(pid: int) -> int:
    """The process at the end of the chain, once it is nobody."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        last = pid
        while below := Path(f"/proc/{last}/task/{last}/children").read_text().split():
            last = int(below[0])
        status = Path(f"/proc/{last}/status").read_text()
        if "NoNewPrivs:\t1" in status:
            return last
        time.sleep(0.02)
    pytest.fail("the reader did not give up its rights")


FORK = """
import os, sys
from pathlib import Path
from quickstart.inspect.foreign.reader import give_up_rights
give_up_rights(Path(sys.argv[1]))
try:
    if os.fork() == 0:
        os._exit(0)
    os.write(1, b"a process more")
except BlockingIOError:
    os.write(1, b"none")
"""


def test_a_reader_that_was_taken_over_starts_no_process(tmp_path: Path) -> None:
    """Its limits of memory and time are a process's: of thousands none would hold."""
    (empty := tmp_path / "empty").mkdir()
    done = subprocess.run([sys.executable, "-c", FORK, empty], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (b"none", 0), done.stderr


def test_what_decompresses_is_a_user_without_other_processes(tmp_path: Path) -> None:
    """As nobody it could write to /proc/PID/mem of the daemons that are nobody, too, and to shared memory of theirs."""
    (source := tmp_path / "a.tar").write_bytes(b"")
    with suppress(InterruptedError), foreign_members(source, "tar", ("sleep", "60")):
        pid = _descendant("sleep")
        seen = Path(f"/proc/{pid}/status").read_text()
        ipc = Path(f"/proc/{pid}/ns/ipc").readlink()
        # To leave without an error would be to wait for it.
        raise InterruptedError
    fields = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    uids = fields["Uid"].split()
    assert len(set(uids)) == 1
    assert int(uids[0]) not in (0, NOBODY, os.getuid())
    assert int(fields["CapBnd"], 16) == 0
    assert ipc != Path("/proc/self/ns/ipc").readlink()


def _descendant(name: str) -> int:
    """The process of that name below ours, once it is there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        waiting = [os.getpid()]
        while waiting:
            pid = waiting.pop()
            # It may have ended meanwhile.
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    return pid
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        time.sleep(0.02)
    pytest.fail(f"there is no {name}")


_READS = """
import sys
from pathlib import Path
from quickstart.inspect.foreign.home import foreign_members
with foreign_members(Path(sys.argv[1]), "tar", tuple(sys.argv[2:])) as members:
    list(members)
"""


def strangers_at(fifo: Path) -> bool:
    """Whether a process that is not root reads ``fifo``."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "fd/0").readlink() == fifo and "\nUid:\t0\t" not in (
                process / "status"
            ).read_text():
                return True
    return False


@pytest.mark.parametrize("decompressor", [(), ("xz", "-dc")])
def test_a_killed_parent_leaves_no_reader(tmp_path: Path, decompressor: tuple[str, ...]) -> None:
    """Each has changed its user, whereby the kernel forgets with whose end it shall end."""
    os.mkfifo(fifo := tmp_path / "fifo")
    parent = subprocess.Popen([sys.executable, "-c", _READS, fifo, *decompressor])
    end_s = time.monotonic() + 60
    try:
        # Whoever writes to it waits for a reader, and knows when there is none.
        with fifo.open("wb") as writer:
            while not strangers_at(fifo):
                assert time.monotonic() < end_s
                time.sleep(0.05)
            time.sleep(0.5)
            parent.kill()
            parent.wait()
            gone = select.poll()
            gone.register(writer, select.POLLERR)
            assert gone.poll(20_000)
    finally:
        parent.kill()
        parent.wait()
