"""Connect a guest's serial line with the user's terminal. When our stdin is not a terminal, connect the serial line
with our stdin and stdout.
"""

from __future__ import annotations

import enum
import os
import select
import socket
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import GuestError

# Ctrl-], as telnet(1) and virsh(1) have it.
ESCAPE = b"\x1d"
# The terminal's VEOF (termios(3)): what a shell takes for the end of its input.
END_OF_INPUT = b"\x04"
_STEP_S = 0.05
_CHUNK_BYTES = 4096
_LAST_CHUNKS = 100


class Outcome(enum.Enum):
    """How a session ended. ENDED means that the session ended normally. LEFT means that the user pressed Ctrl-].
    CLOSED means that the guest ended. LATE means that the program in the guest did not end in time after the end of
    our input.
    """

    ENDED = "ended"
    LEFT = "left"
    CLOSED = "closed"
    LATE = "late"


@dataclass(frozen=True)
class Local:
    """The user's side of a session, as file descriptors. ``terminal`` says whether ``stdin`` is a terminal."""

    stdin: int
    stdout: int
    terminal: bool


def local(stdin: int, stdout: int) -> Local:
    return Local(stdin, stdout, os.isatty(stdin))


def window_size(side: Local) -> tuple[int, int]:
    """The rows and columns of our terminal. The result is 24 and 80 when our stdin is not a terminal, or when the
    terminal does not report its size.
    """
    size = os.terminal_size((0, 0))
    if side.terminal:
        size = os.get_terminal_size(side.stdin)
    return (size.lines or 24, size.columns or 80)


@contextmanager
def raw(side: Local) -> Iterator[None]:
    """A context in which our terminal is in raw mode, so that every key is passed on. At the end of the context, the
    terminal gets its former settings back.
    """
    if not side.terminal:
        yield
        return
    before = termios.tcgetattr(side.stdin)
    try:
        tty.setraw(side.stdin, termios.TCSADRAIN)
        yield
    finally:
        # The terminal may be gone (SIGHUP).
        with suppress(termios.error):
            termios.tcsetattr(side.stdin, termios.TCSADRAIN, before)


def connect(path: Path) -> socket.socket:
    """A connection to the guest's serial line, which QEMU connects with a UNIX socket. Raises GuestError when the
    socket cannot be reached.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(str(path))
    except OSError as error:
        line.close()
        raise GuestError(f"the guest's console cannot be reached: {error.strerror}") from error
    return line


def skip_to(line: socket.socket, mark: bytes, limit_s: float) -> bytes | None:
    """Read until ``mark`` arrives. Return the bytes after ``mark``. Return None when the line has ended, or when
    ``limit_s`` is over.
    """
    seen = b""
    deadline = time.monotonic() + limit_s
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([line], [], [], left_s)[0]:
            continue
        data = _receive(line)
        if not data:
            return None
        head, found, rest = (seen + data).partition(mark)
        if found:
            return rest
        seen = head[-len(mark) :]
    return None


def join(line: socket.socket, side: Local, ended: Callable[[], bool], limit_s: float) -> Outcome:
    """Pass bytes in both directions until ``ended`` returns True. After the end of our input, this function waits at
    most ``limit_s`` until ``ended`` returns True.

    On a terminal, Ctrl-] leaves the session. When ``stdin`` is not a terminal, the guest's shell gets the end of our
    input as Ctrl-D on a line of its own.
    """
    to_guest = _Input(side)
    while not ended():
        if not _pass(line, side, to_guest, _STEP_S):
            return Outcome.CLOSED
        if to_guest.left:
            return Outcome.LEFT
        if to_guest.ended_s and time.monotonic() > to_guest.ended_s + limit_s:
            return Outcome.LATE
    # The guest's output from before its end is here already. It is at most what a socket holds.
    for _ in range(_LAST_CHUNKS):
        if not select.select([line], [], [], _STEP_S)[0] or not (data := _receive(line)):
            break
        _write(side.stdout, data)
    return Outcome.ENDED


class _Input:
    """The state of our input. ``pending`` are bytes that the guest has not got yet. ``ended_s`` is the time
    when the input ended. ``left`` says that the user has pressed Ctrl-].
    """

    def __init__(self, side: Local) -> None:
        self._side = side
        self._last = b"\n"
        self.pending = b""
        self.ended_s = 0.0
        self.left = False

    def wanted(self) -> bool:
        return not self.ended_s and len(self.pending) < _CHUNK_BYTES

    def take(self) -> None:
        data = os.read(self._side.stdin, _CHUNK_BYTES)
        if not data:
            self.ended_s = time.monotonic()
            data = END_OF_INPUT if self._last == b"\n" else b"\n" + END_OF_INPUT
        elif self._side.terminal:
            data, escape, _ = data.partition(ESCAPE)
            self.left = bool(escape)
        self._last = data[-1:]
        self.pending += data


def _pass(line: socket.socket, side: Local, to_guest: _Input, wait_s: float) -> bool:
    """Copy data once in each direction. Wait at most ``wait_s`` for data. Return False when the line has ended."""
    sources: list[socket.socket | int] = [line, *([side.stdin] if to_guest.wanted() else [])]
    readable, writable, _ = select.select(sources, [line] if to_guest.pending else [], [], wait_s)
    if writable:
        try:
            to_guest.pending = to_guest.pending[line.send(to_guest.pending) :]
        except OSError:
            return False
    if line in readable:
        data = _receive(line)
        if not data:
            return False
        _write(side.stdout, data)
    if side.stdin in readable:
        to_guest.take()
    return True


def _receive(line: socket.socket) -> bytes:
    """The next bytes from the line. The result is empty when the line has ended. A line has also ended when a killed
    QEMU has reset the connection.
    """
    try:
        return line.recv(_CHUNK_BYTES)
    except OSError:
        return b""


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
