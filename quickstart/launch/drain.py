"""Write the output of a guest and of its QEMU to logs of limited size. A log keeps the beginning of the output in a
file, and the newest part of the output in memory.

QEMU writes into pipes. One of our threads reads from the pipes without delay, so the guest never waits for a reader. A
guest may write gigabytes. While the guest runs, a log takes at most HEAD_BYTES bytes on the host's disk and about 2 ×
NEWEST_BYTES bytes in memory.
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
# The beginning of a line of printk (info_print_prefix, kernel/printk/printk.c). Its last part comes from
# printk.caller.
_STAMP = re.compile(rb"\[(?=[ \d]{5}) *\d+\.\d{6}\](?:\[ *[TC]\d+\])? ")


def whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a serial console as the programs and the kernel wrote them, without line ends. A line that
    is too long is cut off.

    The kernel may print a line at any moment, even in the middle of a program's line. The console then has
    the first part of the program's line, the kernel's line, and the rest of the program's line. This function
    yields the kernel's line first, and then the program's line in one piece. An unfinished line comes last.
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
    """A console's output as text that can be searched. The text has the lines that `whole_lines` yields, so a line of
    the kernel does not interrupt a program's line.
    """
    return b"\n".join(whole_lines(data.split(b"\n"))).decode(errors="replace")


class BoundedLog:
    """A log of any length, of which only the beginning and the end are kept. The file ``path`` has the first
    ``head_bytes`` bytes of the log, and memory has at least the last ``newest_bytes`` bytes.

    When the log is closed, the newest part is appended to the file, after a line with the number of bytes
    that were left out. When the file system is full, the file has fewer than ``head_bytes`` bytes, but
    the log can still be written and read.
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
        """The number of bytes that were written to the log, including bytes that are no longer kept."""
        return self._size_bytes

    def append(self, data: bytes) -> None:
        with self._lock:
            self._size_bytes += len(data)
            self._newest += data
            # The buffer may grow to twice the limit, so that each byte is moved only once.
            if len(self._newest) > 2 * self._newest_limit:
                del self._newest[: -self._newest_limit]
            self._keep(data[: self._head_limit - self._head_bytes])

    def _keep(self, data: bytes) -> None:
        """Append ``data`` to the file with the beginning of the output. After the first incomplete write,
        append nothing more, so that the file has no gap.
        """
        if not data or self._head_ended:
            return
        with suppress(OSError):
            written = self._file.write(data)
            self._head_bytes += written
            if written == len(data):
                return
        self._head_ended = True

    def read(self, position: int, limit_bytes: int = _READ_BYTES) -> Piece:
        """At most ``limit_bytes`` bytes of the log from ``position`` on. When the byte at ``position`` is no
        longer kept, the piece begins at the next byte that is kept.
        """
        with self._lock:
            if position < self._head_bytes:
                size_bytes = min(limit_bytes, self._head_bytes - position)
                with self.path.open("rb") as file:
                    return Piece(position, os.pread(file.fileno(), size_bytes, position))
            oldest = self._size_bytes - len(self._newest)
            begin = max(position, oldest)
            return Piece(begin, bytes(self._newest[begin - oldest : begin - oldest + limit_bytes]))

    def lines(self, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """The first match of ``pattern`` in each line that the file or memory still has. The function `whole_lines`
        puts a program's line together if a line of the kernel interrupts it. In a long line, only the beginning is
        searched.
        """
        return (match for line in whole_lines(self._lines()) if (match := pattern.search(line)))

    def _lines(self) -> Iterator[bytes]:
        position, rest = 0, b""
        while (piece := self.read(position)).data:
            if piece.position != position:
                # The bytes that are left out may have had the rest of the line, so the line does not continue behind
                # them.
                yield rest
                rest = b""
            *whole, rest = (rest + piece.data).split(b"\n")
            rest = rest[:_LINE_BYTES]
            yield from whole
            position = piece.position + len(piece.data)
        yield rest

    def tail(self, size_bytes: int) -> bytes:
        """The last ``size_bytes`` bytes of the log, or fewer when less of the log is in memory."""
        with self._lock:
            return bytes(self._newest[-size_bytes:])

    def close(self) -> None:
        """Append the newest part of the log to the file, and close the file."""
        with self._lock, suppress(OSError):
            rest = self.read(self._head_bytes, self._size_bytes)
            if left_out := rest.position - self._head_bytes:
                self._file.write(f"\n[quickstart: {left_out} bytes are left out here]\n".encode())
            self._file.write(rest.data)
        self._file.close()


class Drain:
    """The reading ends of pipes. Each reading end has a log, to which a thread writes the data from the pipe. The
    thread reads until all writers have closed their ends of the pipes.
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
                # With the lock, nobody can see an empty pipe before its data are in the log.
                with self._lock:
                    data = os.read(reader, _READ_BYTES)
                    self._logs[reader].append(data)
                if not data:
                    poll.unregister(reader)
                    left -= 1

    def catch_up(self, limit_s: float = _END_S) -> None:
        """Wait until all output that was written before this call is in the logs. Wait for at most ``limit_s``."""
        end_s = time.monotonic() + limit_s
        with self._lock:
            sizes = {reader: log.size_bytes + _waiting_bytes(reader) for reader, log in self._logs.items()}
        while self._thread.is_alive() and time.monotonic() < end_s:
            with self._lock:
                if all(self._logs[reader].size_bytes >= size for reader, size in sizes.items()):
                    return
            time.sleep(_POLL_S)

    def join(self, limit_s: float = _END_S) -> bool:
        """Wait until all writers have closed their ends of the pipes and all output is in the logs. Return False when a
        writer still has its end of a pipe open after ``limit_s``.
        """
        self._thread.join(limit_s)
        return not self._thread.is_alive()


def _waiting_bytes(reader: int) -> int:
    """The number of bytes that can be read from the pipe ``reader`` (FIONREAD, ioctl_tty(2))."""
    size = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, size)
    return size[0]


@dataclass(frozen=True)
class Drained:
    """The logs of a process, and the thread that fills the logs. Each log has a pipe, into which the process writes.
    ``writers`` are the writing ends of the pipes in the order of the logs.

    ``open_writers`` are the writing ends that our own process has not closed yet.
    """

    logs: tuple[BoundedLog, ...]
    writers: tuple[int, ...]
    drain: Drain
    open_writers: list[int]


@contextmanager
def drained(*paths: Path) -> Iterator[Drained]:
    """A context with a pipe and a log for each of ``paths``, and with a thread that fills the logs. When the process
    that writes has started, the caller closes our copies of the writing ends with `hand_over`.

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
    """Close our copies of the writing ends of ``pipes``. Call this function when the process that writes into the pipes
    has its own copies. After this call, all pipes end when the process that writes into them ends.
    """
    for writer in pipes.open_writers:
        os.close(writer)
    pipes.open_writers.clear()
