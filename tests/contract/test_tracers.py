"""The tracer's own programs, with the host's kernel and its strace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from quickstart.store.store import Store
from quickstart.trace.record import tracer_files, tracer_programs
from quickstart.trace.resident import parse_resident

PAGE = 4096


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        return tracer_programs(store)


@pytest.fixture
def place(tmp_path: Path, programs: Mapping[str, Path]) -> Path:
    """The tracer's directory, as in a guest."""
    for name, source in tracer_files(programs).items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        data = source if isinstance(source, bytes) else source.read_bytes()
        target.write_bytes(data)
        target.chmod(0o755)
    return tmp_path / "trace"


def traced(place: Path, *options: str) -> str:
    """/proc/self/status of a program under the guest's strace, as root of a user namespace."""
    tracer = ("./ld.so", "--library-path", "./lib", *options, "./strace", "-f", "--seccomp-bpf", "-o", "log")
    words = ["unshare", "-Ur", *tracer, "-e", "trace=openat,execve", "cat", "/proc/self/status"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60, check=True)
    assert 'openat(AT_FDCWD, "/proc/self/status"' in (place / "log").read_text()
    return done.stdout


def test_strace_s_filter_leaves_privileges_as_they_are(place: Path) -> None:
    words = traced(place, "--preload", "./strace-filter").split()
    assert words[words.index("NoNewPrivs:") + 1] == "0"
    # 2 is SECCOMP_MODE_FILTER.
    assert words[words.index("Seccomp:") + 1] == "2"


def test_without_the_library_strace_would_take_them(place: Path) -> None:
    words = traced(place).split()
    assert words[words.index("NoNewPrivs:") + 1] == "1"


def test_the_library_is_for_strace_only(place: Path) -> None:
    """It is preloaded by the loader's option, which the executed program does not inherit."""
    traced(place, "--preload", "./strace-filter")
    assert "strace-filter" not in (place / "log").read_text()


def recorded(place: Path, calls: str, script: str) -> str:
    """The log of a Python script under the guest's strace with our filter."""
    tracer = (
        "./ld.so",
        "--library-path",
        "./lib",
        "--preload",
        "./strace-filter",
        "./strace",
        "-f",
        "--seccomp-bpf",
    )
    words = ["unshare", "-Ur", *tracer, "-o", "log", "-e", f"trace={calls}", "/usr/bin/python3", "-c", script]
    subprocess.run(words, cwd=place, timeout=60, check=True)
    return (place / "log").read_text()


def test_only_calls_that_name_a_file_are_recorded(place: Path) -> None:
    script = 'import os; file = os.open("/etc/hostname", 0); os.fstat(file); os.stat("/etc/passwd")'
    log = recorded(place, "%file,mmap", script)
    assert "stat" in log and '"/etc/passwd"' in log and "PROT_EXEC" in log
    assert "AT_EMPTY_PATH" not in log and "MAP_ANONYMOUS" not in log
    assert all("PROT_EXEC" in line for line in log.splitlines() if " mmap(" in line)


def test_of_sockets_only_calls_that_may_look_for_the_network_are_recorded(place: Path) -> None:
    """What a server sends over its connections would make the log long."""
    script = """
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
socket.socket(socket.AF_INET6).setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
socket.socket(socket.AF_INET).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
one.bind(("127.0.0.1", 0))
one.sendto(b"named", one.getsockname())
one.connect(one.getsockname())
one.send(b"connected")
"""
    log = recorded(place, "bind,sendto,setsockopt", script)
    calls = [
        line.partition("(")[0].split()[-1] for line in log.splitlines() if "(" in line and "---" not in line
    ]
    assert calls == ["setsockopt", "setsockopt", "bind", "sendto"], log
    assert "IP_MULTICAST_LOOP" in log and "IPV6_V6ONLY" in log and '"named"' in log


def test_what_is_in_the_page_cache(programs: Mapping[str, Path], tmp_path: Path) -> None:
    written, empty = tmp_path / "a b", tmp_path / "empty"
    written.write_bytes(os.urandom(3 * PAGE + 1))
    empty.touch()
    (tmp_path / "link").symlink_to(written)
    os.mkfifo(tmp_path / "pipe")
    names = [written, empty, tmp_path / "link", tmp_path / "pipe", tmp_path / "absent", tmp_path]
    done = subprocess.run(
        [programs["resident"], *names], capture_output=True, text=True, timeout=60, check=True
    )
    (found,) = parse_resident(done.stdout)
    # A file that was just written is in the cache completely.
    assert (str(found.path), found.size_bytes, found.parts) == (str(written), 3 * PAGE + 1, ((0, 4 * PAGE),))
