"""Connect to QEMU's sockets, and talk to QEMU's monitor (QMP).

A hostile guest may have taken over the QEMU in which the guest runs. So each exchange with QEMU has a time limit, and
everything except the expected answer is discarded.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from qemu.qmp import QMPClient, QMPError

from quickstart.errors import GuestError

_POLL_S = 0.005
_FAREWELL_S = 5.0
# The longest line that is read. The longest answer to our questions has some KB.
_LINE_BYTES = 1 << 20
_Found = TypeVar("_Found")


def reach(path: Path, deadline_ns: int, alive: Callable[[], bool]) -> socket.socket:
    """A connection to the UNIX socket ``path`` of a process that was started shortly before.

    This function tries to connect repeatedly, because the socket's file may not exist yet, and the process may not
    listen yet. The attempts end at ``deadline_ns`` (on the clock time.monotonic_ns), or when ``alive`` returns False.
    Then this function raises the OSError of the last attempt.
    """
    while True:
        with ExitStack() as stack:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                client.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                if not alive() or time.monotonic_ns() > deadline_ns:
                    raise
            else:
                stack.pop_all()
                return client
        time.sleep(_POLL_S)


class Monitor:
    """QEMU's monitor on the connected socket ``connected``. This object owns the socket, and closes it. QEMU must give
    each answer within ``limit_s``.

    Raises GuestError when QEMU does not answer in time, has ended, or reports an error.
    """

    def __init__(self, connected: socket.socket, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.new_event_loop()
        self._client = QMPClient()
        self._client.readbuflen = _LINE_BYTES
        # Nobody reads the events. Without this filter, all of them would be kept in memory.
        self._client.events.event_filter = lambda event: False
        try:
            self._within(self._client.connect(connected), limit_s)
        except BaseException:
            self._loop.close()
            connected.close()
            raise

    def command(self, name: str, **arguments: object) -> object:
        """QEMU's answer to the QMP command ``name``."""
        return self._within(self._client.execute(name, arguments), self._limit_s)

    def close(self) -> None:
        """Close the connection, even if QEMU has already closed it."""
        with suppress(GuestError):
            self._within(self._client.disconnect(), _FAREWELL_S)
        self._loop.close()

    def _within(self, step: Coroutine[Any, Any, _Found], limit_s: float) -> _Found:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(step, limit_s))
        except TimeoutError as error:
            raise GuestError(f"QEMU's monitor said nothing for {limit_s:g} s") from error
        # qemu.qmp asserts that the other side is still connected after its greeting, and reads JSON of any depth.
        except (OSError, EOFError, QMPError, AssertionError, RecursionError, ValueError) as error:
            raise GuestError(f"QEMU's monitor: {error or 'it went away'}") from error
