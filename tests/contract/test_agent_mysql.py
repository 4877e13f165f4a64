"""The launch agent's `mysql` request (docs/internals/agent.md), to a server that repeats what MariaDB 10.11 said.

The packets of ``SERVER`` were recorded from Debian's mariadbd 10.11.19. The client's packets are compared
byte by byte.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.contract.agentbox import ADDRESS, INTERVAL_MS, PORT, SECONDS, Namespaces, Peer, Start, boottime

ACCOUNT = "bench"
SALT = (b"1.6bks!E", b'zV~8<bYvg"p1')
HANDSHAKE = (
    b"\x0a5.5.5-10.11.19-MariaDB-0+deb12u1\0\x06\0\0\0" + SALT[0] + b"\0\xfe\xf7\x2d\x02\0\xff\x81\x15"
    b"\0\0\0\0\0\0\x1d\0\0\0" + SALT[1] + b"\0mysql_native_password\0"
)
OK = b"\0\0\0\2\0\0\0"
DENIED = b"\xff\xa2\x06#28000Access denied for user 'bench'@'192.0.2.10'"
NO_SYNTAX = b"\xff\x28\x04#42000You have an error in your SQL syntax"
SWITCH = b"\xfemysql_native_password\0" + b"".join(SALT) + b"\0"
COLUMN = b"\3def\x12information_schema\x08SCHEMATA\x08SCHEMATA\x08Database\x0bSCHEMA_NAME\x0c\x2d\0\0\1\0\0\xfd\1\x10\0\0\0"
END = b"\xfe\0\0\x22\0"
NAMES = (b"information_schema", b"mysql", b"performance_schema", b"sys")
ROWS = tuple(bytes([len(name)]) + name for name in NAMES)
ANSWER = (b"\1", COLUMN, END, *ROWS, END)
# Capabilities PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH and LONG_PASSWORD; largest packet; utf8mb4; account; no password.
RESPONSE = (
    struct.pack("<IIB23x", 0x88201, 1 << 24, 45)
    + ACCOUNT.encode()
    + b"\0"
    + b"\0"
    + b"mysql_native_password\0"
)
QUERY = b"\3show databases"
QUIT = b"\1"


def packets(payloads: Sequence[bytes], first: int) -> bytes:
    return b"".join(
        len(payload).to_bytes(3, "little") + bytes([first + at]) + payload
        for at, payload in enumerate(payloads)
    )


class Server:
    """One connection of the agent's."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, _ = listener.accept()
        self.socket.settimeout(SECONDS)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def says(self, *payloads: bytes, first: int) -> None:
        self.socket.sendall(packets(payloads, first))

    def hears(self, payload: bytes, number: int) -> None:
        wanted, heard = packets((payload,), number), b""
        while len(heard) < len(wanted):
            piece = self.socket.recv(len(wanted) - len(heard))
            assert piece, f"the client left after {heard!r}"
            heard += piece
        assert heard == wanted

    def logs_in(self) -> None:
        self.says(HANDSHAKE, first=0)
        self.hears(RESPONSE, 1)
        self.says(OK, first=2)
        self.hears(QUERY, 0)

    def is_left(self, last: bytes = b"") -> None:
        try:
            assert self.socket.recv(100) == last
            assert not last or self.socket.recv(100) == b""
        except ConnectionResetError:  # what it had not read yet was thrown away
            assert not last


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "namespaces need root: run the tests with sudo"


@pytest.fixture
def peer(space: Namespaces, start: Start) -> Peer:
    space.add_interface()
    peer = start("mysql", str(PORT), ACCOUNT)
    peer.beacon()
    return peer


@pytest.fixture
def listener(space: Namespaces) -> socket.socket:
    return space.bound_socket()


def answers_well(listener: socket.socket, peer: Peer) -> None:
    """The next try gets the answer, and that makes it ready."""
    assert peer.quiet(0)
    before = boottime()
    with Server(listener) as server:
        server.logs_in()
        server.says(*ANSWER, first=1)
        stamp, text = peer.ready()
        server.is_left(packets((QUIT,), 0))
    assert before < stamp < boottime()
    assert text == "4 databases"


def test_the_whole_list_is_ready_and_the_session_ends_in_order(listener: socket.socket, peer: Peer) -> None:
    assert peer.quiet(5 * INTERVAL_MS / 1000)  # refused
    listener.listen()
    answers_well(listener, peer)
    listener.settimeout(5 * INTERVAL_MS / 1000)
    with pytest.raises(TimeoutError):  # the probe has ended
        listener.accept()


def test_loopback(space: Namespaces, start: Start) -> None:
    space.add_interface()
    peer = start("loopback", "mysql", str(PORT), ACCOUNT)
    peer.beacon()
    with space.bound_socket("127.0.0.1") as listener:
        listener.listen()
        answers_well(listener, peer)


def test_an_empty_password_for_another_plugin(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    with Server(listener) as server:
        server.says(HANDSHAKE, first=0)
        server.hears(RESPONSE, 1)
        server.says(SWITCH, first=2)
        server.hears(b"", 3)
        server.says(OK, first=4)
        server.hears(QUERY, 0)
        server.says(*ANSWER, first=1)
        assert peer.ready()[1] == "4 databases"


def test_an_answer_in_pieces(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    with Server(listener) as server:
        server.logs_in()
        for byte in packets(ANSWER, 1)[:-1]:
            server.socket.sendall(bytes([byte]))
            time.sleep(0.0005)
        assert peer.quiet(0.02)  # all but one byte
        server.socket.sendall(END[-1:])
        assert peer.ready()[1] == "4 databases"


@pytest.mark.parametrize(
    "greeting",
    [
        b"\xff\x69\x04Host '192.0.2.10' is blocked because of many connection errors",
        b"\x09" + HANDSHAKE[1:],
        HANDSHAKE[:40],
        b"\x0a" + b"5" * 60,
        HANDSHAKE.replace(b"\0\xfe\xf7", b"\0\xfe\xf5"),  # without PROTOCOL_41
        HANDSHAKE.replace(b"\xff\x81\x15", b"\xf7\x81\x15"),  # without PLUGIN_AUTH
        b"",
        b"\x0a" * 5000,
    ],
)
def test_no_handshake(listener: socket.socket, peer: Peer, greeting: bytes) -> None:
    listener.listen()
    with Server(listener) as server:
        server.says(greeting, first=0)
        server.is_left()
    answers_well(listener, peer)


@pytest.mark.parametrize(
    "verdict",
    [DENIED, b"\xfe", b"\xfeclient_ed25519\0" + SALT[0], b"\1", SWITCH[:8], b"\xfemysql_native_passwordx"],
)
def test_an_account_that_is_not_let_in(listener: socket.socket, peer: Peer, verdict: bytes) -> None:
    listener.listen()
    with Server(listener) as server:
        server.says(HANDSHAKE, first=0)
        server.hears(RESPONSE, 1)
        server.says(verdict, first=2)
        server.is_left()
    answers_well(listener, peer)


@pytest.mark.parametrize(
    "answer",
    [
        (NO_SYNTAX,),
        (OK,),
        (b"\2", COLUMN, COLUMN, END, END),
        (b"\1", COLUMN, ROWS[0], END),
        (b"\1", COLUMN, END, END),
        (b"\1", COLUMN, END, *ROWS[1:], END),
        (b"\1", COLUMN, END, ROWS[0], NO_SYNTAX),
        (b"\1", COLUMN, END, ROWS[0], b"\xff" + b"x" * 255),
        (b"\1", COLUMN, END, ROWS[0], b"\5mysq"),
        (b"\1", COLUMN, END, b"\x12INFORMATION_SCHEMA", END),
        (b"\1", b"\4defg", END, *ROWS, END),
    ],
)
def test_not_the_list(listener: socket.socket, peer: Peer, answer: tuple[bytes, ...]) -> None:
    listener.listen()
    with Server(listener) as server:
        server.logs_in()
        server.says(*answer, first=1)
        server.is_left()
    answers_well(listener, peer)


@pytest.mark.parametrize("number", range(1, len(ANSWER) + 1))
def test_a_packet_out_of_order(listener: socket.socket, peer: Peer, number: int) -> None:
    listener.listen()
    with Server(listener) as server:
        server.logs_in()
        server.says(*ANSWER[: number - 1], first=1)
        server.says(ANSWER[number - 1], first=number + 1)
        server.is_left()
    answers_well(listener, peer)


@pytest.mark.parametrize("kept", [1, 4, 5, 20, -6, -1])
def test_an_answer_that_is_cut(listener: socket.socket, peer: Peer, kept: int) -> None:
    listener.listen()
    with Server(listener) as server:
        server.logs_in()
        server.socket.sendall(packets(ANSWER, 1)[:kept])
    answers_well(listener, peer)


def test_garbage(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    for noise in (b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", os.urandom(4000), bytes(4000)):
        with Server(listener) as server:
            server.socket.sendall(noise)
            server.is_left()
    answers_well(listener, peer)


def test_a_silent_server_is_left_and_delays_no_command(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    with Server(listener) as server:
        assert peer.run("echo meanwhile") == (b"meanwhile\n", b"", 0)
        server.is_left()
    answers_well(listener, peer)


def test_a_server_that_never_ends_its_rows_is_left(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    with Server(listener) as server:
        server.logs_in()
        server.says(*ANSWER[:-1], first=1)
        number, begun = len(ANSWER), time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - begun < SECONDS:
                server.says(ROWS[1], first=number % 256)
                number += 1
                time.sleep(0.01)
    answers_well(listener, peer)


def test_the_server_is_asked_at_the_external_address(listener: socket.socket, peer: Peer) -> None:
    listener.listen()
    with Server(listener) as server:
        assert server.socket.getpeername()[0] == server.socket.getsockname()[0] == ADDRESS
        server.logs_in()
        server.says(*ANSWER, first=1)
        assert peer.ready()[1] == "4 databases"


@pytest.mark.parametrize("account", ["", "a" * 33])
def test_accounts_that_no_server_has(agent: Path, account: str) -> None:
    done = subprocess.run([agent, "p", "10", "mysql", "3306", account], capture_output=True, timeout=SECONDS)
    assert done.returncode == 2 and b"ACCOUNT" in done.stderr
