"""Run programs without giving them any of our descriptors. The programs get pipes or a terminal of their own, and we
copy the data between these and our own descriptors.

A program that runs as root in an image can change the mode and owner of the files behind its standard streams. It can
also open these files through /proc/self/fd and truncate them. So the standard streams of such a program are never our
own files, devices or terminals.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from quickstart.errors import CommandError
from quickstart.host import door

# Of a program's endless output, only the beginning and the newest part are kept.
HEAD_BYTES = 32 << 20
NEWEST_BYTES = 64 << 10
CHUNK_BYTES = 1 << 16
_TAIL_LINES = 15


class PipeEnds:
    """The two descriptors of a pipe, ``reading`` and ``writing``. Each descriptor is closed only once, at the latest
    when ``stack`` (an ExitStack) is closed.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.reading, self.writing = os.pipe()
        self._open = {self.reading, self.writing}
        stack.callback(self.close, self.reading)
        stack.callback(self.close, self.writing)

    def close(self, end: int) -> None:
        if end in self._open:
            self._open.remove(end)
            os.close(end)


class _Log:
    """A log of limited size. The log writes the first ``HEAD_BYTES`` bytes of the output to the file at once. When the
    log is closed, it writes the newest part of the other output.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._room_bytes = HEAD_BYTES
        self._left_out_bytes = 0
        self._newest = bytearray()
        self._beyond = bytearray()

    def add(self, data: bytes) -> None:
        self._file.write(data[: self._room_bytes])
        _append(self._newest, data)
        self._left_out_bytes += _append(self._beyond, data[self._room_bytes :])
        self._room_bytes -= min(self._room_bytes, len(data))

    def close(self) -> None:
        with self._file as file:
            if self._left_out_bytes:
                file.write(f"\n[{self._left_out_bytes} bytes are left out here]\n".encode())
            file.write(self._beyond)

    @property
    def tail(self) -> str:
        return "\n".join(self._newest[-4096:].decode(errors="replace").splitlines()[-_TAIL_LINES:])


def _append(kept: bytearray, data: bytes) -> int:
    """Append ``data`` to ``kept``, and then keep only the last NEWEST_BYTES bytes of ``kept``. Return the number of
    bytes that were removed.
    """
    kept += data
    too_many = max(0, len(kept) - NEWEST_BYTES)
    del kept[:too_many]
    return too_many


def logged(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    log: Path,
    env: Mapping[str, str] | None = None,
    proxies: bool = False,
) -> None:
    """Run ``argv`` with an empty stdin, and wait for its end. The function appends the output of the program to
    ``log``, up to a limited size.

    Raises MissingToolError when the program is not installed. Raises CommandError when the program's exit status is not
    0, and when the program has not ended after ``timeout_s`` seconds. The process has ended when this function returns
    or raises.
    """
    deadline = time.monotonic() + timeout_s
    words = tuple(str(word) for word in argv)
    with ExitStack() as stack:
        kept = _Log(log)
        stack.callback(kept.close)
        into, out = PipeEnds(stack), PipeEnds(stack)
        into.close(into.writing)
        # The program may open its end of the pipe again and read the data itself, so our reads must not
        # block.
        os.set_blocking(out.reading, False)
        process = stack.enter_context(
            door.background(argv, stdin=into.reading, output=out.writing, env=env, proxies=proxies)
        )
        out.close(out.writing)
        while select.select([out.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            with suppress(BlockingIOError):
                if not (data := os.read(out.reading, CHUNK_BYTES)):
                    break
                kept.add(data)
            if time.monotonic() > deadline:
                break
        # The program may have closed its output, and may still run.
        if not door.has_ended(process, max(0.0, deadline - time.monotonic())):
            raise CommandError(words, None, kept.tail)
        if process.returncode != 0:
            raise CommandError(words, process.returncode, kept.tail)
