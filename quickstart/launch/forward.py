"""Use the port of the host's loopback address that is forwarded to a guest. This module checks whether QEMU may open
the port, and sends HTTP requests through the port. It sends them to a machine with an address of its own, too.
"""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from quickstart.errors import BadInputError

_FIRST_FREE = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_LINE = re.compile(rb"HTTP/(\d\.\d) (\d{3})(?: ([^\r\n]*))?\r?\n")
_LINE_BYTES = 512
_LOOPBACK = "127.0.0.1"
_PATH = re.compile(r"/[!-~]{0,2047}", re.ASCII)
_STEP_S = 2.0


def demand_port(port: int | None) -> None:
    """Raise BadInputError for a port on which only root may listen (ip(7)). QEMU never runs as root, so QEMU cannot
    forward such a port.
    """
    if port is None:
        return
    first = int(_FIRST_FREE.read_text()) if _FIRST_FREE.exists() else 0
    if port < first:
        raise BadInputError(
            f"port {port} is root's, and the machine does not run as root",
            hint=f"give a --port from {first} on",
        )


def status_line(
    port: int, path: str, limit_s: float = _STEP_S, address: str = _LOOPBACK, connect_s: float | None = None
) -> str:
    """The status line of the answer to an HTTP request GET for ``path`` through ``port`` of ``address``. The result is
    empty when no answer arrived within ``limit_s``, or no connection within ``connect_s``.

    Only the beginning of a long answer is read, and only printable characters are returned.
    """
    data = _first_bytes(address, port, path, limit_s, connect_s or limit_s) if _PATH.fullmatch(path) else b""
    found = _LINE.match(data)
    if found is None:
        return ""
    words = (found[1], found[2], found[3] or b"")
    version, status, reason = (word.decode(errors="replace") for word in words)
    shown = "".join(char for char in reason if char.isprintable()).strip()
    return f"HTTP/{version} {status} {shown}".rstrip()


def status_of(port: int, path: str, address: str = _LOOPBACK, connect_s: float | None = None) -> int | None:
    """The status of the answer to an HTTP request GET for ``path`` through ``port`` of ``address``, or None when no answer
    arrived.
    """
    words = status_line(port, path, address=address, connect_s=connect_s).split(" ", 2)
    return int(words[1]) if len(words) > 1 else None


def _first_bytes(address: str, port: int, path: str, limit_s: float, connect_s: float) -> bytes:
    end_s = time.monotonic() + limit_s
    data = b""
    try:
        with socket.create_connection((address, port), connect_s) as connection:
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n".encode()
            )
            while b"\n" not in data and len(data) < _LINE_BYTES and (left_s := end_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                piece = connection.recv(_LINE_BYTES)
                if not piece:
                    break
                data += piece
    except OSError:
        # The guest does not run yet, or has ended. The caller tries again.
        return data
    return data
