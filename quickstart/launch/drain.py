"""What a guest and its QEMU say without end, kept within bounds: the beginning in a file, the newest part in memory.

QEMU writes into pipes, and a thread of ours reads them at once, so that the guest never waits for whoever looks on. A guest may say
gigabytes; neither disk nor memory of the host grows by more than the two limits.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import select
import termios
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.guest import Piece

HEAD_BYTES = 32 << 20
NEWEST_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_POLL_S = 0.002
_END_S = 5.0
_LINE_BYTES = 4096
# What a line of printk begins with (info_print_prefix, kernel/printk/printk.c); its last part is that of printk.caller.
_STAMP = re.compile(rb"\[(?=[ \d]{5}) *\d+\.\d{6}\](?:\[ *[TC]\d+\])? ")


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a serial console as who wrote them meant them, without their ends; of each at most so many bytes.

    The kernel takes the port for a line of its own whenever it likes, also while a program's line is half out: what the program has
    said so far, a line of printk, and the rest of the program's line then come one after the other. Such a line of printk is given
    before the line that it broke, and the program's is given whole. What has no end yet comes last.
    """
    begun = b""
    for line in lines:
        if stamp := _STAMP.search(line):
            yield line[stamp.start() :].rstrip(b"\r")[:_LINE_BYTES]
            begun = (begun + line[: stamp.start()])[:_LINE_BYTES]
        else:
            yield (begun + line).rstrip(b"\r")[:_LINE_BYTES]
            begun = b""
    if begun:
        yield begun.rstrip(b"\r")


def whole_text(data: bytes) -> str:
    """What a console has said, by `whole_lines`, for who looks for something in it."""
    return b"\n".join(whole_lines(data.split(b"\n"))).decode(errors="replace")


class BoundedLog:
    """A log of any length: its first ``head_bytes`` are in the file ``path``, its last ``newest_bytes`` at least in memory.

    When it is closed the file gets the newest part too, after a line that says how many bytes are left out between the two. A file
    system that is full shortens the beginning, and stops nobody.
    """

    def __init__(self, path: Path, head_bytes: int, newest_bytes: int) -> None:
        self.path = path
        self._head_limit, self._newest_limit = head_bytes, newest_bytes
        self._file = path.open("wb", buffering=0)
        self._head_bytes = 0
        self._head_ended = False
        self._newest = bytearray()
        self._size_bytes = 0
        self._lock = threading.RLock()

    @property
    def size_bytes(self) -> int:
        """How much was said so far, kept or not."""
        return self._size_bytes

    def append(self, data: bytes) -> None:
        with self._lock:
            self._size_bytes += len(data)
            self._newest += data
            # Twice as much for a moment: so each byte is moved once.
            if len(self._newest) > 2 * self._newest_limit:
                del self._newest[: -self._newest_limit]
            self._keep(data[: self._head_limit - self._head_bytes])

    def _keep(self, data: bytes) -> None:
        """Add ``data`` to the beginning, as long as all before it is there."""
        if not data or self._head_ended:
            return
        with suppress(OSError):
            written = self._file.write(data)
            self._head_bytes += written
            if written == len(data):
                return
        self._head_ended = True

    def read(self, position: int, limit_bytes: int = _READ_BYTES) -> Piece:
        """At most ``limit_bytes`` from ``position`` on, or from the first byte behind it that is still there."""
        with self._lock:
            if position < self._head_bytes:
                size_bytes = min(limit_bytes, self._head_bytes - position)
                with self.path.open("rb") as file:
                    return Piece(position, os.pread(file.fileno(), size_bytes, position))
            oldest = self._size_bytes - len(self._newest)
            begin = max(position, oldest)
            return Piece(begin, bytes(self._newest[begin - oldest : begin - oldest + limit_bytes]))

    def lines(self, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """Where ``pattern`` is first in each line that is kept (`whole_lines`); of a line only so many bytes are looked at."""
        return (match for line in whole_lines(self._lines()) if (match := pattern.search(line)))

    def _lines(self) -> Iterator[bytes]:
        position, rest = 0, b""
        while (piece := self.read(position)).data:
            if piece.position != position:
                # What is left out may have had the rest of the line; no line goes on behind it.
                yield rest
                rest = b""
            *whole, rest = (rest + piece.data).split(b"\n")
            rest = rest[:_LINE_BYTES]
            yield from whole
            position = piece.position + len(piece.data)
        yield rest

    def tail(self, size_bytes: int) -> bytes:
        """The last so many bytes, or as many as there are in memory."""
        with self._lock:
            return bytes(self._newest[-size_bytes:])

    def close(self) -> None:
        """End the file with the newest part."""
        with self._lock, suppress(OSError):
            rest = self.read(self._head_bytes, self._size_bytes)
            if left_out := rest.position - self._head_bytes:
                self._file.write(f"\n[quickstart: {left_out} bytes are left out here]\n".encode())
            self._file.write(rest.data)
        self._file.close()


class Drain:
    """The reading ends of pipes, each with the log that it fills, read by a thread until everybody who writes has gone."""

    def __init__(self, logs: Mapping[int, BoundedLog]) -> None:
        self._logs = dict(logs)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="drain", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for reader in self._logs:
            poll.register(reader, select.POLLIN)
        left = len(self._logs)
        while left:
            for reader, _ in poll.poll():
                # Nobody finds the pipe empty while what was in it is not in the log yet.
                with self._lock:
                    data = os.read(reader, _READ_BYTES)
                    self._logs[reader].append(data)
                if not data:
                    poll.unregister(reader)
                    left -= 1

    def catch_up(self, limit_s: float = _END_S) -> None:
        """Wait until what has been written by now is in the logs."""
        end_s = time.monotonic() + limit_s
        with self._lock:
            sizes = {reader: log.size_bytes + _waiting_bytes(reader) for reader, log in self._logs.items()}
        while self._thread.is_alive() and time.monotonic() < end_s:
            with self._lock:
                if all(self._logs[reader].size_bytes >= size for reader, size in sizes.items()):
                    return
            time.sleep(_POLL_S)

    def join(self, limit_s: float = _END_S) -> bool:
        """Wait until everybody who writes has gone and all that they wrote is in the logs; False when somebody is still there."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()


def _waiting_bytes(reader: int) -> int:
    """How much is in a pipe (FIONREAD, ioctl_tty(2))."""
    size = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, size)
    return size[0]


@dataclass(frozen=True)
class Drained:
    """The logs of a process and what fills them; ``writers`` are the writing ends for it, in the order of the logs.

    ``open_writers`` are those that we have not closed yet.
    """

    logs: tuple[BoundedLog, ...]
    writers: tuple[int, ...]
    drain: Drain
    open_writers: list[int]


@contextmanager
def drained(*paths: Path) -> Iterator[Drained]:
    """A pipe for each of the files ``paths``, and the thread that fills them; `hand_over` closes our writing ends.

    The process that writes has to be gone when the context ends.
    """
    with ExitStack() as stack:
        logs = []
        for path in paths:
            logs.append(BoundedLog(path, HEAD_BYTES, NEWEST_BYTES))
            stack.callback(logs[-1].close)
        pipes = [os.pipe() for _ in paths]
        found = Drained(
            tuple(logs),
            tuple(writer for _, writer in pipes),
            Drain({reader: log for (reader, _), log in zip(pipes, logs, strict=True)}),
            [writer for _, writer in pipes],
        )
        try:
            yield found
        finally:
            hand_over(found)
            # A descriptor that the thread still reads from must not become another file's.
            if found.drain.join():
                for reader, _ in pipes:
                    os.close(reader)


def hand_over(pipes: Drained) -> None:
    """Close our own writing ends: the process has them by now, and their end is to be seen when it goes."""
    for writer in pipes.open_writers:
        os.close(writer)
    pipes.open_writers.clear()
