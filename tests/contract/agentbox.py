"""Runs a launch agent in network and PID namespaces of its own, and holds the host's side of its port."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

ADDRESS = "192.0.2.10"
PORT = 8080
INTERVAL_MS = 10
SECONDS = 10.0  # no single step takes that long
MESSAGE_MAX = 16384

Start = Callable[..., "Peer"]


class Namespaces:
    """Kept by a process that only waits, and gone when it is."""

    def __init__(self) -> None:
        # `read` ends with this test process, however that ends.
        command = ["unshare", "-nmp", "--kill-child", "--mount-proc", "sh", "-c", "echo up; read forever"]
        self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout is not None
        assert self.keeper.stdout.read(3) == b"up\n", "unshare failed"
        self.path = f"/proc/{self.keeper.pid}/ns"

    def inside(self, *command: str) -> list[str]:
        # A mount namespace has a root of its own; ours may be a chroot.
        root = f"--root=/proc/{self.keeper.pid}/root"
        return ["nsenter", f"--net={self.path}/net", f"--mount={self.path}/mnt", root, *command]

    def add_interface(self) -> None:
        for words in (
            "link add app0 type veth peer name app1",
            "link set app1 up",
            "link set app0 up",
            "link set lo up",
            f"address add {ADDRESS}/24 dev app0",
        ):
            subprocess.run(self.inside("ip", *words.split()), check=True, timeout=SECONDS)

    def bound_socket(self, address: str = ADDRESS) -> socket.socket:
        """Refuses connections until it listens. A socket stays in the namespace its thread made it in."""
        made: list[socket.socket] = []

        def make() -> None:
            with Path(self.path, "net").open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0:
                    made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join(SECONDS)
        made[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made[0].bind((address, PORT))
        made[0].settimeout(SECONDS)
        return made[0]

    def close(self) -> None:
        self.keeper.kill()
        self.keeper.communicate(timeout=SECONDS)


class Peer:
    """The host's side: one agent and its port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.buffer = b""

    def fill(self, seconds: float) -> bool:
        readable, _, _ = select.select([self.port], [], [], seconds)
        if not readable:
            return False
        chunk = os.read(self.port, 1 << 16)
        assert chunk, "the agent closed its port"
        self.buffer += chunk
        return True

    def message(self) -> tuple[str, bytes]:
        """(first line, payload)"""
        while b"\n" not in self.buffer:
            assert self.fill(SECONDS), "no message in time"
        line, _, self.buffer = self.buffer.partition(b"\n")
        words = line.decode().split(" ")
        if words[0] not in ("out", "err", "counters"):
            return line.decode(), b""
        length = int(words[-1])
        assert length > 0 and len(line) + 1 + length <= MESSAGE_MAX
        while len(self.buffer) < length:
            assert self.fill(SECONDS), "a message without its end"
        payload, self.buffer = self.buffer[:length], self.buffer[length:]
        return line.decode(), payload

    def quiet(self, seconds: float) -> bool:
        return not self.buffer and not self.fill(seconds)

    def request(self, *commands: str) -> None:
        os.write(self.port, "".join(f"exec {len(command)}\n{command}" for command in commands).encode())

    def answer(self) -> tuple[bytes, bytes, int]:
        """(stdout, stderr, status) of one command"""
        output = {"out": b"", "err": b""}
        while True:
            line, payload = self.message()
            kind, value = line.split(" ")
            if kind == "exit":
                return output["out"], output["err"], int(value)
            output[kind] += payload

    def run(self, command: str) -> tuple[bytes, bytes, int]:
        self.request(command)
        return self.answer()

    def beacon(self) -> int:
        kind, stamp, *place = self.message()[0].split(" ")
        assert (kind, place) == ("beacon", ["app0", ADDRESS])
        return int(stamp)

    def ready(self) -> tuple[int, str]:
        kind, stamp, text = self.message()[0].split(" ", 2)
        assert kind == "ready"
        return int(stamp), text

    def counters(self) -> tuple[int, int, list[str]]:
        """(uptime, time stamp counter, lines)"""
        line, payload = self.message()
        kind, stamp, tsc, _ = line.split(" ")
        assert kind == "counters" and payload.endswith(b"\n")
        return int(stamp), int(tsc), payload.decode().splitlines()


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
