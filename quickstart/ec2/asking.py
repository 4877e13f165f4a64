"""The readiness request of an image, asked from this host. A machine in EC2 has no launch agent of QuickStart, so only a
request that comes over the network can be asked.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from quickstart.errors import BadInputError
from quickstart.launch.forward import status_of
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind

# A machine without a network yet drops packets without a word, and the kernel repeats them only after 1 s.
_CONNECT_S = 0.3
# Whoever accepts a connection for another closes it at once when there is no other.
_STAYS_S = 0.2
_WORD = re.compile(
    r"(?P<kind>http|tcp):(?P<port>[0-9]{1,5})(?P<path>/[!-~]{0,200})?(?: (?P<status>[0-9]{3}))?"
)
_MOST_PORT = 65535
# What every service of AWS takes in a tag (Tagging AWS Resources User Guide, "Tag naming limits and requirements").
_OF_TAGS = re.compile(r"[A-Za-z0-9 +=._:/@-]{0,256}")


@dataclass(frozen=True)
class Request:
    """A readiness request. For ``path`` None, the port only has to accept a connection."""

    port: int
    path: str | None = None
    status: int = 200

    def url(self, address: str) -> str:
        """Where the application is, for people."""
        if self.path is None:
            return f"{address}:{self.port}"
        port = "" if self.port == 80 else f":{self.port}"
        return f"http://{address}{port}{self.path}"


def word_of(ready: Readiness) -> str:
    """The request as a text for a tag of the image. Empty if another host cannot ask it, or if a tag cannot have it."""
    word = ""
    if ready.kind is ReadyKind.HTTP:
        word = f"http:{ready.port}{ready.path} {ready.status}"
    elif ready.kind in (ReadyKind.TCP, ReadyKind.MYSQL):
        word = f"tcp:{ready.port}"
    return word if not ready.loopback and _OF_TAGS.fullmatch(word) else ""


def request_of(word: str) -> Request:
    """The request in ``word``: ``http:PORT/PATH``, ``http:PORT/PATH STATUS`` or ``tcp:PORT``. Raises BadInputError for any
    other text.
    """
    match = _WORD.fullmatch(word)
    is_http = match is not None and match["kind"] == "http"
    if match is None or not 1 <= int(match["port"]) <= _MOST_PORT or (not is_http and match["path"]):
        raise BadInputError(f"{word[:80]!r} is no readiness request", hint="for example --ready http:80/")
    if not is_http:
        return Request(int(match["port"]))
    return Request(int(match["port"]), match["path"] or "/", int(match["status"] or 200))


def is_answered(address: str, request: Request) -> bool:
    """Whether the machine at ``address`` gives the right answer to the request now."""
    if request.path is not None:
        return status_of(request.port, request.path, address, _CONNECT_S) == request.status
    try:
        with socket.create_connection((address, request.port), _CONNECT_S) as connection:
            return _stays(connection)
    except OSError:
        return False


def _stays(connection: socket.socket) -> bool:
    connection.settimeout(_STAYS_S)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        # The server waits for its client to speak.
        return True
