"""Endless output of a guest and its QEMU, kept within bounds: the beginning in a file, the newest part in
memory.

QEMU writes into pipes, and a thread of ours reads them at once, so the guest never waits for a reader. A
guest may write gigabytes, but neither the disk nor the memory of the host grows by more than the two
limits.
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
    """The lines of a serial console as their writers meant them, without line ends. A line is cut at a limit.

    The kernel may print a line of its own at any moment, also in the middle of a program's line. Then the
    console has the first part of the program's line, a line of printk, and the rest of the program's line.
    This function yields the line of printk first, and then the program's line in one piece. A last line
    without an end comes last.
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
    """A console's output by `whole_lines`, for a search in it."""
    return b"\n".join(whole_lines(data.split(b"\n"))).decode(errors="replace")


class BoundedLog:
    """A log of any length. Its first ``head_bytes`` are in the file ``path``, and at least its last
    ``newest_bytes`` in memory.

    When it is closed, the file also gets the newest part, after a line that says how many bytes were left
    out between the two. A full file system shortens the beginning, and stops nobody.
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
        """The number of bytes so far, kept or not."""
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
        """Add ``data`` to the beginning, as long as it has no gap."""
        if not data or self._head_ended:
            return
        with suppress(OSError):
            written = self._file.write(data)
            self._head_bytes += written
            if written == len(data):
                return
        self._head_ended = True

    def read(self, position: int, limit_bytes: int = _READ_BYTES) -> Piece:
        """At most ``limit_bytes`` from ``position`` on, or from the first byte after it that is still kept."""
        with self._lock:
            if position < self._head_bytes:
                size_bytes = min(limit_bytes, self._head_bytes - position)
                with self.path.open("rb") as file:
                    return Piece(position, os.pread(file.fileno(), size_bytes, position))
            oldest = self._size_bytes - len(self._newest)
            begin = max(position, oldest)
            return Piece(begin, bytes(self._newest[begin - oldest : begin - oldest + limit_bytes]))

    def lines(self, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """The first match of ``pattern`` in each line that is kept (`whole_lines`). Only the beginning of a
        long line is searched.
        """
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
        """The last ``size_bytes`` bytes, or as many as are in memory."""
        with self._lock:
            return bytes(self._newest[-size_bytes:])

    def close(self) -> None:
        """Append the newest part to the file, and close it."""
        with self._lock, suppress(OSError):
            rest = self.read(self._head_bytes, self._size_bytes)
            if left_out := rest.position - self._head_bytes:
                self._file.write(f"\n[quickstart: {left_out} bytes are left out here]\n".encode())
            self._file.write(rest.data)
        self._file.close()


class Drain:
    """The reading ends of pipes, each with the log that it fills. A thread reads them until every writer
    has gone.
    """

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
        """Wait until all that has been written by now is in the logs."""
        end_s = time.monotonic() + limit_s
        with self._lock:
            sizes = {reader: log.size_bytes + _waiting_bytes(reader) for reader, log in self._logs.items()}
        while self._thread.is_alive() and time.monotonic() < end_s:
            with self._lock:
                if all(self._logs[reader].size_bytes >= size for reader, size in sizes.items()):
                    return
            time.sleep(_POLL_S)

    def join(self, limit_s: float = _END_S) -> bool:
        """Wait until every writer has gone and all output is in the logs. Returns False when a writer is
        left.
        """
        self._thread.join(limit_s)
        return not self._thread.is_alive()


def _waiting_bytes(reader: int) -> int:
    """The number of bytes in a pipe (FIONREAD, ioctl_tty(2))."""
    size = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, size)
    return size[0]


@dataclass(frozen=True)
class Drained:
    """The logs of a process, and the thread that fills them. ``writers`` are the writing ends, in the order
    of the logs.

    ``open_writers`` are those that we have not closed yet.
    """

    logs: tuple[BoundedLog, ...]
    writers: tuple[int, ...]
    drain: Drain
    open_writers: list[int]


@contextmanager
def drained(*paths: Path) -> Iterator[Drained]:
    """A pipe for each of the files ``paths``, and the thread that fills them. `hand_over` closes our
    writing ends.

    The process that writes must have ended before the context ends.
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
    """Close our own writing ends. The process has its copies by now, and the pipes shall end when it does."""
    for writer in pipes.open_writers:
        os.close(writer)
    pipes.open_writers.clear()
