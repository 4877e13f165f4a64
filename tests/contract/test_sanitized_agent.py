"""The sanitized launch agent: the host's requests, and the application's answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.agentbox import PORT, SECONDS, Namespaces, Start
from tests.sanitize.seeds import mysql_answer


@pytest.fixture(scope="module")
def agent(sanitized: Callable[[str], Path]) -> Path:
    return sanitized("agent")


REQUESTS = {
    "no newline": b"exec " + b"1" * 100_000,
    "no number": b"exec \nexec x\nexec\n\n\n",
    "too many bytes": b"exec 65537\n" + b"x" * 65_537,
    "a sign": b"exec -1\nexec -0\nexec +3\nabc",
    "not the protocol": bytes(range(256)) * 1000,
    "NULs": bytes(200_000),
    "a shell of 64 KiB": b"exec 65536\n" + b":;" * 32768,
    "a flood": b"exec 1\n:" * 1000,
}


@pytest.mark.parametrize("said", REQUESTS)
def test_the_agent_obeys_after(start: Start, said: str) -> None:
    peer = start("none")
    with socket.socket(fileno=peer.port) as port:
        port.setblocking(False)
        rest = memoryview(REQUESTS[said])
        until = time.monotonic() + 60
        # What it answers is to be read, or it would wait for us.
        while rest and time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                rest = rest[port.send(rest) :]
            while peer.fill(0.001):
                pass
        port.setblocking(True)
        assert not rest
        # The end of what was said may be the beginning of a request: what comes next is lost with it then.
        while b"still here\n" not in peer.buffer and time.monotonic() < until:
            peer.request("echo still here")
            peer.fill(1.0)
        assert b"still here\n" in peer.buffer
        port.detach()


def _every_packet(change: Callable[[bytes], bytes]) -> bytes:
    return change(mysql_answer(b"information_schema", b"x"))


ANSWERS = {
    "http": (
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1_700_000, "HTTP/1.1 200 OK"),
        (b"HTTP/1.1 200 " + b"x" * 10_000_000, None),
        (b"HTTP/1.1 20", None),
        (bytes(100_000) + b"\n", None),
        (b"\n" * 100_000, None),
        (b"HTTP/1.1 404 HTTP/1.1 200 OK\n", None),
        (b"HTTP/1.1 200\x1b]0;x\x07\xff \n" + b"ffffffff\r\n" * 1000, None),
        (b"HTTP/1.1 200 " + b"\x1b" * 9000 + b"\n", "HTTP/1.1 200 " + "?" * 498),
    ),
    "mysql": (
        (b"\xff\xff\xff\0" + b"\x0a" * 100_000, None),
        (b"\0\0\0\0" * 10_000, None),
        (_every_packet(lambda answer: answer[:-1]), None),
        (_every_packet(lambda answer: answer.replace(b"10.11\0", b"9" * 6)), None),
        (_every_packet(lambda answer: answer.replace(b"\x12information", b"\xfbinformation")), None),
        (_every_packet(lambda answer: answer.replace(b"\x12information", b"\xfainformation")), None),
        (b"\xff\xff\xff\0\xfe", None),
        (_every_packet(lambda answer: answer), "2 databases"),
    ),
}


def _until_right(kind: str) -> Iterator[tuple[str, list[bytes], str]]:
    """What comes until an answer is right, and what is told of that."""
    wrong: list[bytes] = []
    for data, told in ANSWERS[kind]:
        wrong.append(data)
        if told is not None:
            yield kind, wrong, told
            wrong = []


@pytest.mark.parametrize(
    ("kind", "answers", "told"),
    [*_until_right("http"), *_until_right("mysql")],
    ids=["http-header-of-10-mb", "http", "mysql"],
)
def test_the_agent_asks_again_after(
    start: Start, space: Namespaces, kind: str, answers: list[bytes], told: str
) -> None:
    """Each wrong answer comes once; what is right is told, and only that."""
    space.add_interface()
    with space.bound_socket() as server:
        server.listen(16)
        words = ("200", "/") if kind == "http" else ("quickstart",)
        thread = threading.Thread(target=_answer, args=(server, answers), daemon=True)
        thread.start()
        peer = start(kind, str(PORT), *words)
        peer.beacon()
        assert peer.ready()[1] == told
        thread.join(SECONDS)


def _answer(server: socket.socket, answers: list[bytes]) -> None:
    for data in answers:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(3.0)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
