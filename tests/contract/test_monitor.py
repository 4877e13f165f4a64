"""QEMU's sockets (quickstart/launch/monitor.py): nobody listens yet, no answer comes, QEMU has ended; and the
monitor of a real QEMU.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.errors import GuestError
from quickstart.launch.monitor import Monitor, reach

LIMIT_S = 30.0
SHORT_S = 0.3


def deadline_ns(limit_s: float = LIMIT_S) -> int:
    return time.monotonic_ns() + int(limit_s * 1e9)


def test_a_socket_that_is_there_before_anybody_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    asked = threading.Event()

    def alive() -> bool:
        asked.set()
        return True

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))

        def listen() -> None:
            asked.wait(LIMIT_S)
            listener.listen()

        late = threading.Thread(target=listen)
        late.start()
        with reach(path, deadline_ns(), alive) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"heard")
                assert server.recv(10) == b"heard"
        late.join()
    assert asked.is_set()


@pytest.mark.parametrize("bound", [True, False])
def test_a_socket_that_nobody_will_listen_on(tmp_path: Path, bound: bool) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as nobody:
        if bound:
            nobody.bind(str(path))
        error = ConnectionRefusedError if bound else FileNotFoundError
        with pytest.raises(error):
            reach(path, deadline_ns(SHORT_S), lambda: True)
        with pytest.raises(error):
            reach(path, deadline_ns(), lambda: False)


def test_a_monitor_that_does_not_greet_is_not_waited_for_for_ever() -> None:
    """And nothing of the failed connection is left, which Python would say when it ends."""
    script = f"""
import socket
from quickstart.errors import GuestError
from quickstart.launch.monitor import Monitor
ours, theirs = socket.socketpair()
try:
    Monitor(ours, {SHORT_S})
except GuestError as error:
    print(error)
theirs.settimeout({LIMIT_S})
print(theirs.recv(1))
theirs.close()
ours, theirs = socket.socketpair()
theirs.close()
try:
    Monitor(ours, {LIMIT_S})
except GuestError as error:
    print("gone")
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"QEMU's monitor said nothing for {SHORT_S} s\nb''\ngone\n", "")


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [
        "-M",
        "none",
        "-nodefaults",
        "-display",
        "none",
        "-qmp",
        f"unix:{tmp_path}/qmp,server=on,wait=off",
    ]
    with subprocess.Popen(["qemu-system-x86_64", *words]) as process:
        yield process
        process.kill()


def test_the_monitor_of_a_qemu(qemu: subprocess.Popen[bytes], tmp_path: Path) -> None:
    monitor = Monitor(reach(tmp_path / "qmp", deadline_ns(), lambda: qemu.poll() is None), LIMIT_S)
    status = monitor.command("query-status")
    assert isinstance(status, dict) and status["status"] == "running"
    with pytest.raises(GuestError, match="no-such-command"):
        monitor.command("no-such-command")
    qemu.kill()
    with pytest.raises(GuestError, match="QEMU's monitor"):
        monitor.command("query-status")
    monitor.close()


def test_a_qemu_that_is_stopped(qemu: subprocess.Popen[bytes], tmp_path: Path) -> None:
    connected = reach(tmp_path / "qmp", deadline_ns(), lambda: qemu.poll() is None)
    monitor = Monitor(connected, SHORT_S * 10)
    qemu.send_signal(signal.SIGSTOP)
    with pytest.raises(GuestError, match="said nothing for 3 s"):
        monitor.command("query-status")
    monitor.close()


def taken_over(theirs: socket.socket, flood: bytes, times: int) -> None:
    """A QEMU that greets, and says ``flood`` so many times before it answers the second command."""
    with theirs:
        theirs.sendall(b'{"QMP": {"version": {}, "capabilities": []}}\n')
        for before in (0, times):
            # A question comes at once, without an end of line.
            asked = json.loads(theirs.recv(65536))
            for _ in range(before):
                theirs.sendall(flood)
            numbered = {"id": asked["id"]} if "id" in asked else {}
            theirs.sendall(json.dumps({"return": {}, **numbered}).encode() + b"\n")
        theirs.recv(1)


FLOOD_BYTES = 32 << 20
EVENT = b'{"event": "X", "data": {"said": "%s"}, "timestamp": {"seconds": 1, "microseconds": 1}}\n' % (
    b"x" * 10_000
)


def test_events_without_end_are_not_kept() -> None:
    """Those that nobody reads were, so that a QEMU could fill the memory of who had started it."""
    ours, theirs = socket.socketpair()
    qemu = threading.Thread(target=taken_over, args=(theirs, EVENT, FLOOD_BYTES // len(EVENT)))
    qemu.start()
    monitor = Monitor(ours, LIMIT_S)
    tracemalloc.start()
    try:
        assert monitor.command("query-status") == {}
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        monitor.close()
        qemu.join(LIMIT_S)
    assert kept_bytes < FLOOD_BYTES // 16
    assert peak_bytes < FLOOD_BYTES // 2
