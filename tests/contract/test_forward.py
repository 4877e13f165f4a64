"""The guest chooses what answers behind the forwarded port. We read only the beginning of it, within the time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from quickstart.errors import BadInputError
from quickstart.launch import forward
from quickstart.launch.forward import demand_port, status_line, status_of


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that answers one connection, on the port that it gives."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


def once(data: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(data)

    return answer


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nbody", "HTTP/1.1 200 OK"),
        (b"HTTP/1.0 404 Not Found\r\n", "HTTP/1.0 404 Not Found"),
        (b"HTTP/1.1 204\r\n", "HTTP/1.1 204"),
        (b"HTTP/1.1 200 \x1b]0;x\x07\r\n", "HTTP/1.1 200 ]0;x"),
        (b"220 smtp\r\n", ""),
        (b"HTTP/1.1 9999999 OK\r\n", ""),
        (b"", ""),
        (b"HTTP/1.1 200 OK", ""),
    ],
)
def test_the_first_line_of_an_answer(said: bytes, line: str) -> None:
    with answering(once(said)) as port:
        assert status_line(port, "/") == line


def flood(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection.sendall(b"x" * 65536)


def trickle(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection.sendall(b"x")
            time.sleep(0.01)


@pytest.mark.parametrize("answer", [flood, trickle])
def test_an_answer_without_end_is_not_read_to_it(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as port:
        assert status_line(port, "/", 0.5) == ""


def test_a_path_adds_no_line_to_the_request() -> None:
    assert status_line(1, "/ HTTP/1.1\r\nHost: x\r\n\r\n") == ""


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert status_line(port, "/") == ""


def test_a_port_of_root_s(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    demand_port(None)
    demand_port(65535)
    first = int(forward._FIRST_FREE.read_text())
    if first:
        with pytest.raises(BadInputError, match=f"port {first - 1} is root's"):
            demand_port(first - 1)


def test_only_the_status_itself_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, status in (("HTTP/1.1 404 it is 200 here", 404), ("HTTP/1.0 200", 200), ("", None)):
        monkeypatch.setattr(
            "quickstart.launch.forward.status_line", lambda port, path, address, connect_s, line=line: line
        )
        assert status_of(80, "/") == status
