"""What the guest leaves out of its trace before the trace comes home, by the real grep(1)."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

from quickstart.verify.ftrace import FETCH

DROPPED = (
    "sys_futex(uaddr: 7f, op: 80)",
    "sys_futex -> 0x0",
    "sys_poll -> 0x1",
    "sys_ppoll(ufds: 0)",
    "sys_pselect6(n: 1)",
    "sys_getegid()",
    "sys_setsockopt(fd: 3)",
    "sys_socket(family: 1)",
)
KEPT = (
    "sys_read(fd: 3, buf: 7f)",
    "sys_openat -> 0x3",
    "sys_socketpair(family: 1)",
    'qs_name2: (0x0 <- getname) name="/x\xff: sys_futex"',
    "block_rq_issue: 254,0 R 4096 () 16 + 8 [app]",
)


def line(said: str, program: str = "app") -> bytes:
    return f"         {program}-7     [000] .....    12.345678: {said}\n".encode("latin-1")


def test_calls_without_files_stay_in_the_guest(tmp_path: Path) -> None:
    # A process of that name would hide what it reads.
    hiding = line("sys_read(fd: 3)", ".123456: sys_br") + line("sys_read(fd: 3)", "a: sys_brk")
    kept = b"".join(map(line, KEPT)) + hiding
    (tmp_path / "trace").write_bytes(b"".join(map(line, DROPPED)) + kept)
    command = FETCH.splitlines()[-1].replace("$t", str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=30, check=True)
    assert gzip.decompress(done.stdout) == kept
