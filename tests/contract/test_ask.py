"""`caretaker ask` against real sockets: the profile's request, and servers that mean harm."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from tests.contract.askbox import NONE, RIGHT, SERVERS, WRONG_CALL, ask, serving


@pytest.mark.parametrize("name", SERVERS)
def test_what_counts_as_an_answer(caretaker: Path, name: str) -> None:
    serve, status = SERVERS[name]
    with serving(serve) as port:
        assert ask(caretaker, port) == (status, b"")


def test_nobody_listens(caretaker: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert ask(caretaker, port) == (NONE, b"")


def test_a_server_that_keeps_us_waiting(caretaker: Path) -> None:
    """It ends by itself; how soon, is not looked at here."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.5):
                connection.sendall(b"x")

    with serving(serve) as port:
        asked = ask(caretaker, port)
        over.set()
    assert asked == (NONE, b"")


def test_a_page_without_end_is_not_read_to_its_end(caretaker: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"x" * 65_536)

    with serving(serve) as port:
        assert ask(caretaker, port) == (RIGHT, b"")


@pytest.mark.parametrize(
    ("port", "status", "path"),
    [("0", "200", "/"), ("65536", "200", "/"), ("80x", "200", "/"), ("80", "20", "/")],
)
def test_a_wrong_call_is_named(caretaker: Path, port: str, status: str, path: str) -> None:
    code, said = ask(caretaker, port, status, path)
    assert (code, said[:6]) == (WRONG_CALL, b"usage:")


def test_a_request_that_is_too_long_asks_nobody(caretaker: Path) -> None:
    assert ask(caretaker, 80, path="/" + "x" * 5000) == (NONE, b"")
