"""The instance metadata service of one machine, at 169.254.169.254 of the machine's own network (Amazon EC2 User Guide,
"Use the Instance Metadata Service to access instance metadata" and "Instance metadata categories").
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import unquote

from quickstart.ec2.emulator.ebs import Answer

ADDRESS = "169.254.169.254"
_PORT = 80
_MOST_TTL_S = 21600
# The versions for which cloud-init asks, and the newest one. EC2 answers other words by 404.
_VERSIONS = ("latest", "2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "2024-04-11")
# Beyond these, the oldest token is forgotten: the guest may ask for tokens without end.
_MOST_TOKENS = 256
_TOKEN_HEADER, _TTL_HEADER = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"
_SILENT_S = 10.0
_TEXT = {"Content-Type": "text/plain"}
# Amazon's own words for a body that says why.
_NOT_FOUND = b"<html><head><title>404 - Not Found</title></head></html>"


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What the service of a machine knows. The keys of ``items`` are paths below meta-data/. ``document`` is the
    machine's identity document. ``user_data`` is None for a machine without user data. If ``needs_token``, only
    requests with a session token are answered (IMDSv2).
    """

    items: Mapping[str, str]
    document: Mapping[str, str]
    user_data: bytes | None = None
    needs_token: bool = True
    is_enabled: bool = True


class Service:
    """The answers of the service. Only one thread uses it. ``now`` is a clock in seconds."""

    def __init__(self, metadata: Metadata, now: Callable[[], float] = time.monotonic) -> None:
        self._metadata = metadata
        self._now = now
        self._tokens: dict[str, float] = {}

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        """The answer to a request. The names of ``headers`` are in lower case."""
        path = re.sub(r"/+", "/", unquote(target.partition("?")[0]))
        if not self._metadata.is_enabled:
            return _refused(HTTPStatus.FORBIDDEN)
        if method == "PUT":
            return self._token(path, headers)
        if method not in ("GET", "HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED)
        given = headers.get(_TOKEN_HEADER)
        if given is None and self._metadata.needs_token:
            return _refused(HTTPStatus.UNAUTHORIZED)
        if given is not None and not self._is_valid(given):
            return _refused(HTTPStatus.UNAUTHORIZED)
        body = self._body(path)
        return Answer(404, _NOT_FOUND, {"Content-Type": "text/html"}) if body is None else body

    def _token(self, path: str, headers: Mapping[str, str]) -> Answer:
        # A proxy that passes requests on adds this header.
        if path != "/latest/api/token" or "x-forwarded-for" in headers:
            return _refused(HTTPStatus.FORBIDDEN)
        text = headers.get(_TTL_HEADER, "")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= _MOST_TTL_S:
            return _refused(HTTPStatus.BAD_REQUEST)
        # EC2's token has 56 characters.
        token = f"AQAEA{secrets.token_urlsafe(37)}"[:54] + "=="
        while len(self._tokens) >= _MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[token] = self._now() + int(text)
        return Answer(200, token.encode(), {**_TEXT, _TTL_HEADER: text})

    def _is_valid(self, token: str) -> bool:
        return self._now() < self._tokens.get(token, float("-inf"))

    def _body(self, path: str) -> Answer | None:
        """The answer to a request that is allowed, or None if there is no such thing."""
        parts = path.strip("/").split("/")
        if parts == [""]:
            return Answer(200, "\n".join(_VERSIONS).encode(), _TEXT)
        version, *rest = parts
        if version not in _VERSIONS:
            return None
        match rest:
            case []:
                known = ["dynamic", "meta-data"] + ["user-data"] * (self._metadata.user_data is not None)
                return Answer(200, "\n".join(known).encode(), _TEXT)
            case ["user-data"]:
                data = self._metadata.user_data
                return (
                    None if data is None else Answer(200, data, {"Content-Type": "application/octet-stream"})
                )
            case ["meta-data", *names]:
                return _item(self._metadata.items, "/".join(names))
            case ["dynamic", *names]:
                document = json.dumps(dict(self._metadata.document), indent=2)
                return _item({"instance-identity/document": document}, "/".join(names))
        return None


def _item(items: Mapping[str, str], path: str) -> Answer | None:
    """The value of the item ``path``, or the names below ``path``. A name that has names below it ends with a slash."""
    if path in items:
        return Answer(200, items[path].encode(), _TEXT)
    begin = f"{path}/" if path else ""
    names = {_first(key.removeprefix(begin)) for key in items if key.startswith(begin)}
    return Answer(200, "\n".join(sorted(names)).encode(), _TEXT) if names else None


def _first(path: str) -> str:
    name, slash, _ = path.partition("/")
    return f"{name}{slash}"


def _refused(status: HTTPStatus) -> Answer:
    return Answer(status.value, f"{status.value} - {status.phrase}\n".encode(), _TEXT)


class _Handler(BaseHTTPRequestHandler):
    """One connection, which has one request: HTTP/1.0, so that no client keeps others waiting."""

    timeout = _SILENT_S
    service: Service

    # http.server calls these names.
    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        answer = self.service.answer(self.command, self.path, headers)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "EC2ws"

    def log_message(self, *_: object) -> None:
        """Say nothing: the requests have tokens."""


class _Server(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing: a machine could fill the terminal."""


@contextmanager
def serving(metadata: Metadata, address: str = ADDRESS, port: int = _PORT) -> Iterator[int]:
    """Serve ``metadata`` during the ``with`` block, in the network namespace of the calling thread. The result is the
    port. Raises OSError when the address cannot be used.
    """
    handler = type("_OwnHandler", (_Handler,), {"service": Service(metadata)})
    server = _Server((address, port), handler)
    thread = threading.Thread(target=server.serve_forever, name="metadata", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
