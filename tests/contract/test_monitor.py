"""QEMU's sockets (quickstart/launch/monitor.py): before anybody listens, silent, gone; and the monitor of a real QEMU."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
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
