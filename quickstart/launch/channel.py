"""Talk to the launch agent, which runs in the guest, from the host. This module sends commands to the agent, and parses
the stream of the agent's messages (docs/internals/agent.md).
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import BinaryIO

from quickstart.errors import GuestError, TooMuchSaidError
from quickstart.guest import Exit, Hello, Message, Output
from quickstart.model import Beacon, Counters, ReadyStamp
from quickstart.parse.printable import brief

PROTOCOL = 2
_MAX_LINE_BYTES = 4096
# docs/internals/agent.md: a message has at most 16 KiB.
_MAX_BODY_BYTES = 1 << 16
# The longest command that the agent takes (agent.c, COMMAND_MAX).
_MAX_COMMAND_BYTES = 1 << 16
# How long the guest may take to read a command. Even for a busy guest, the command is read at once, or there is room
# for it on the way.
SEND_LIMIT_S = 60.0
_MAX_DIGITS = 20
_RECEIVE_BYTES = 1 << 16
# Interface names that the kernel accepts (dev_valid_name, net/core/dev.c), without characters that are special in a
# shell or path.
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}", re.ASCII)
# Messages with a body, and which word of theirs is its size.
_SIZE_AT = {"out": 1, "err": 1, "counters": 3}


@dataclass
class Decoder:
    """Turns the bytes from the launch agent into messages. The bytes may arrive in pieces of any size."""

    _pending: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes, received_ns: int) -> Iterator[Message]:
        """The messages that are complete when ``data`` is appended to the bytes before. Raises GuestError for bytes
        that are not a valid message.
        """
        self._pending += data
        while (end := self._pending.find(b"\n", 0, _MAX_LINE_BYTES)) >= 0:
            words = self._pending[:end].decode(errors="replace").split(" ")
            size = 0
            if words[0] in _SIZE_AT:
                size = _number(words, _SIZE_AT[words[0]])
                if size > _MAX_BODY_BYTES:
                    raise GuestError(f"the guest's agent sends {size} bytes at once")
                if len(self._pending) < end + 1 + size:
                    return
            body = bytes(self._pending[end + 1 : end + 1 + size])
            del self._pending[: end + 1 + size]
            yield _message(words, body, received_ns)
        if len(self._pending) >= _MAX_LINE_BYTES:
            raise GuestError("the guest's agent sends no lines", hint="is something else on its port?")


def _number(words: list[str], index: int) -> int:
    word = words[index] if index < len(words) else ""
    if not (word.isascii() and word.isdecimal() and len(word) < _MAX_DIGITS):
        raise _not_understood(words)
    return int(word)


def _is_ipv4(word: str) -> bool:
    try:
        IPv4Address(word)
    except ValueError:
        return False
    return True


def _printable(text: str) -> str:
    """``text`` with a question mark in place of each character that cannot be printed, such as a terminal's
    control characters.
    """
    return "".join(char if char.isprintable() else "?" for char in text)


def _message(words: list[str], body: bytes, received_ns: int) -> Message:
    match words:
        case ["hello", _]:
            version = _number(words, 1)
            if version != PROTOCOL:
                raise GuestError(f"the guest's agent speaks version {version}, not {PROTOCOL}")
            return Hello(version)
        case ["beacon", _, interface, address] if _INTERFACE.fullmatch(interface) and _is_ipv4(address):
            return Beacon(_number(words, 1), interface, address, received_ns)
        case ["ready", _, *answer]:
            return ReadyStamp(_number(words, 1), _printable(" ".join(answer)), received_ns)
        case ["counters", _, _, _]:
            return Counters(_number(words, 1), _number(words, 2), body.decode(errors="replace"))
        case ["out" | "err" as stream, _]:
            return Output(stream, body)
        case ["exit", _]:
            return Exit(_number(words, 1))
    raise _not_understood(words)


def _not_understood(words: list[str]) -> GuestError:
    return GuestError(f"the guest's agent said {brief(' '.join(words))}")


class Channel:
    """A connection to the launch agent, which uses a virtio-serial port in the guest. On the host, the port is a UNIX
    socket. The Channel owns the socket, and closes it.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = Decoder()
        self._running = 0

    @property
    def busy(self) -> bool:
        """Whether a command is running in the guest. The agent starts the next command only when the running command
        has ended.
        """
        return self._running > 0

    def close(self) -> None:
        self._socket.close()

    def messages(self, deadline_ns: int, alive: Callable[[], bool]) -> Iterator[Message]:
        """The agent's messages until ``deadline_ns`` (on the clock time.monotonic_ns), or until ``alive``
        returns False.
        """
        while True:
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            readable, _, _ = select.select([self._socket], [], [], min(left_s, 0.2))
            if readable:
                data = b""
                # This error comes from a QEMU that was killed before it had read all our data.
                with suppress(ConnectionError):
                    data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    return
                for message in self._decoder.feed(data, time.monotonic_ns()):
                    self._running -= isinstance(message, Exit)
                    yield message
            elif not alive():
                return

    def start(self, command: str, limit_s: float = SEND_LIMIT_S) -> None:
        """Start ``command`` in the guest. `messages` then yields the command's output and, at the command's
        end, an Exit.

        Raises GuestError for a command that is longer than the agent accepts. Raises OSError when the guest has ended,
        or does not read the command within ``limit_s``. The limit is necessary because of hostile guests. A hostile
        guest may report the ends of commands without reading any command, until the socket is full.
        """
        encoded = command.encode()
        if len(encoded) > _MAX_COMMAND_BYTES:
            raise GuestError(
                f"a command for the guest has {len(encoded)} bytes; its agent takes at most {_MAX_COMMAND_BYTES}",
                hint="put it into a file of the guest's, and run that",
            )
        # This counts even if the command is sent only in part, because the agent would take the next command for the
        # rest.
        self._running += 1
        self._socket.settimeout(limit_s)
        try:
            self._socket.sendall(b"exec %d\n" % len(encoded) + encoded)
        finally:
            self._socket.settimeout(None)

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        alive: Callable[[], bool],
        limit_bytes: int | None = None,
    ) -> int | None:
        """Run ``command`` in the guest. Return the command's exit status. Return None when the guest has ended or when
        ``timeout_s`` is over.

        The guest has ``timeout_s`` seconds to read and run the command. Of this time, the guest has at most
        `SEND_LIMIT_S` seconds to read the command. Raises GuestError when the command's output is longer than
        ``limit_bytes``.
        """
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        try:
            self.start(command, min(SEND_LIMIT_S, timeout_s))
        except OSError:
            return None
        said_bytes = 0
        for message in self.messages(deadline_ns, alive):
            if isinstance(message, Output):
                said_bytes += len(message.data)
                if limit_bytes is not None and said_bytes > limit_bytes:
                    raise TooMuchSaidError(f"a command in the guest said more than {limit_bytes} bytes")
                target = stdout if message.stream == "out" else stderr
                target.write(message.data)
                target.flush()
            elif isinstance(message, Exit):
                return message.status
        return None
