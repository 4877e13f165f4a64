"""A small client for the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md). The client uses the fixed
newstyle handshake and simple replies.
"""

from __future__ import annotations

import enum
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from quickstart.errors import VolumeError

LENGTH_MAX = 32 * 1024 * 1024
_MAGIC, _OPTION_MAGIC, _OPTION_REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
_REQUEST_MAGIC, _REPLY_MAGIC = 0x25609513, 0x67446698
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
# The most answers to one option: a server sends one for each kind of information, and one that ends the list.
_MAX_REPLIES = 64
_OPT_GO, _REP_ACK, _REP_INFO, _INFO_EXPORT = 7, 1, 3, 0


class Command(enum.IntEnum):
    """The commands of the protocol (NBD_CMD_*)."""

    READ = 0
    WRITE = 1
    DISCONNECT = 2
    FLUSH = 3
    TRIM = 4
    WRITE_ZEROES = 6


@dataclass(frozen=True)
class Reply:
    """The answer to the request that has the same ``cookie``. ``error`` is an errno or 0, and ``data`` has
    the bytes that were read.
    """

    cookie: int
    error: int
    data: bytearray


class Connection:
    """A client that is connected to the NBD server on the UNIX socket ``path``. Each answer may take at most
    ``limit_s`` seconds. ``size_bytes`` is the size of the volume.

    The constructor raises VolumeError when no server listens. The constructor and the methods raise VolumeError
    when the server disconnects, does not answer in time, or violates the protocol.
    """

    def __init__(self, path: Path, limit_s: float = 60.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(limit_s)
        self._asked: dict[int, int] = {}
        self._cookie = 0
        try:
            self._socket.connect(str(path))
            self.size_bytes = self._handshake()
        except OSError as error:
            self._socket.close()
            raise VolumeError(f"no volume at {path}: {error}") from error
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The server may have gone already, and we are leaving anyway.
        with suppress(OSError, VolumeError):
            self.send(Command.DISCONNECT)
        self._socket.close()

    def send(
        self, command: int, offset: int = 0, length_bytes: int = 0, data: bytes = b"", flags: int = 0
    ) -> int:
        """Send one request, and return its cookie."""
        self._cookie += 1
        head = struct.pack(">IHHQQI", _REQUEST_MAGIC, flags, command, self._cookie, offset, length_bytes)
        self._asked[self._cookie] = length_bytes if command == Command.READ else 0
        try:
            self._socket.sendall(head + data)
        except OSError as error:
            raise VolumeError(f"the volume takes no request: {error}") from error
        return self._cookie

    def receive(self) -> Reply:
        """The next answer, which may belong to any of the requests in flight."""
        magic, error, cookie = struct.unpack(">IIQ", self._take(16))
        if magic != _REPLY_MAGIC or cookie not in self._asked:
            raise VolumeError("the volume's answer is not the NBD protocol")
        length_bytes = self._asked.pop(cookie)
        return Reply(cookie, error, self._take(length_bytes if error == 0 else 0))

    def read(self, offset: int, length_bytes: int) -> Reply:
        """Read from the volume, and wait for the answer. No other request may be in flight."""
        self.send(Command.READ, offset, length_bytes)
        return self.receive()

    def write(self, offset: int, data: bytes) -> Reply:
        """Write to the volume, and wait for the answer. No other request may be in flight."""
        self.send(Command.WRITE, offset, len(data), data)
        return self.receive()

    def _take(self, length_bytes: int) -> bytearray:
        taken = bytearray(length_bytes)
        view = memoryview(taken)
        while view:
            try:
                got = self._socket.recv_into(view)
            except OSError as error:
                raise VolumeError(f"the volume does not answer: {error}") from error
            if got == 0:
                raise VolumeError("the volume has closed the connection")
            view = view[got:]
        return taken

    def _handshake(self) -> int:
        """Do the handshake, and choose the default export. Return the export's size in bytes."""
        magic, option_magic, flags = struct.unpack(">QQH", self._take(18))
        if (magic, option_magic) != (_MAGIC, _OPTION_MAGIC) or not flags & _FIXED_NEWSTYLE:
            raise VolumeError("the volume does not speak NBD's fixed newstyle")
        # The name of the default export is empty, and we ask for no particular information.
        go = struct.pack(">QIIIH", _OPTION_MAGIC, _OPT_GO, 6, 0, 0)
        self._socket.sendall(struct.pack(">I", _FIXED_NEWSTYLE | flags & _NO_ZEROES) + go)
        size_bytes = -1
        for _ in range(_MAX_REPLIES):
            magic, _, kind, length_bytes = struct.unpack(">QIII", self._take(20))
            if magic != _OPTION_REPLY_MAGIC or length_bytes > 4096:
                break
            data = self._take(length_bytes)
            if kind == _REP_INFO and len(data) == 12 and data[:2] == struct.pack(">H", _INFO_EXPORT):
                (size_bytes,) = struct.unpack(">Q", data[2:10])
            elif kind == _REP_ACK and size_bytes >= 0:
                return size_bytes
            elif kind != _REP_INFO:
                raise VolumeError(f"the volume refuses its default export ({kind:#x})")
        raise VolumeError("the volume's answer is not the NBD protocol")


def pieces(extents: Iterable[tuple[int, int]], request_bytes: int) -> Iterator[tuple[int, int]]:
    """The requests that read ``extents`` in order. Extents and requests are (offset, length) in bytes. Each
    request has at most ``request_bytes`` bytes.
    """
    for start, length_bytes in extents:
        for offset in range(start, start + length_bytes, request_bytes):
            yield offset, min(request_bytes, start + length_bytes - offset)


def read_extents(
    path: Path, extents: Iterable[tuple[int, int]], request_bytes: int, depth: int, limit_s: float = 60.0
) -> int:
    """Read ``extents``, which are (offset, length) in bytes, from the volume at the socket ``path``, with
    ``depth`` requests in flight.

    Return the time from the first request to the last answer, in ns. Raises VolumeError when the volume reports an
    error, and when a single answer takes longer than ``limit_s`` seconds.
    """
    if not 1 <= request_bytes <= LENGTH_MAX or depth < 1:
        raise ValueError(f"{depth} requests of {request_bytes} bytes")
    with Connection(path, limit_s) as connection:
        queue = pieces(extents, request_bytes)
        start_ns = time.monotonic_ns()
        in_flight = 0
        for offset, length_bytes in islice(queue, depth):
            connection.send(Command.READ, offset, length_bytes)
            in_flight += 1
        while in_flight:
            reply = connection.receive()
            in_flight -= 1
            if reply.error:
                raise VolumeError(f"the volume fails a read with errno {reply.error}")
            for offset, length_bytes in islice(queue, 1):
                connection.send(Command.READ, offset, length_bytes)
                in_flight += 1
        return time.monotonic_ns() - start_ns
