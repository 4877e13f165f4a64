"""The volume emulator's protocol with any bytes from a client, and its log of requests (docs/users/storage.md)."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import read_log, served
from quickstart.volume.nbd import Command, Connection
from tests.contract.volumebox import LIMIT_S, LOCAL, MIB, WARM

EINVAL, ENOSPC = 22, 28


@pytest.mark.parametrize(
    ("command", "offset", "length", "flags", "error"),
    [
        (Command.READ, 40 * MIB, 513, 0, EINVAL),
        (Command.READ, 41 * MIB, 1, 0, EINVAL),
        (Command.READ, 2**64 - 1, 1, 0, EINVAL),
        (Command.READ, 0, 0, 0, EINVAL),
        (Command.READ, 0, 33 * MIB, 0, EINVAL),
        (Command.READ, 0, 512, 4, EINVAL),
        (Command.WRITE_ZEROES, 40 * MIB, 513, 0, ENOSPC),
        (Command.WRITE_ZEROES, 0, 512, 16, EINVAL),
        (Command.WRITE_ZEROES, 0, 512, 3, 0),
        (Command.TRIM, 0, 4096, 1, 0),
        (Command.TRIM, 40 * MIB, 513, 0, EINVAL),
        (Command.FLUSH, 0, 0, 1, 0),
        (Command.FLUSH, 0, 1, 0, EINVAL),
        (5, 0, 512, 0, EINVAL),
        (77, 0, 512, 0, EINVAL),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_client_stays(
    emulator: Path, image: Path, command: int, offset: int, length: int, flags: int, error: int
) -> None:
    with served(emulator, image, WARM) as volume, Connection(volume.socket) as connection:
        connection.send(command, offset, length, flags=flags)
        assert connection.receive().error == error
        assert connection.write(40 * MIB, bytes(513)).error == ENOSPC
        assert connection.read(40 * MIB, 512).data == image.read_bytes()[-512:]
        assert [each.error for each in volume.log()] == [error, ENOSPC, 0]


def test_options_are_answered_by_the_protocol(emulator: Path, image: Path) -> None:
    magic = b"IHAVEOPT"
    unsupported, invalid, unknown = 0x80000001, 0x80000003, 0x80000006
    with served(emulator, image, LOCAL) as volume, socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(LIMIT_S)
        raw.connect(str(volume.socket))
        stream = raw.makefile("rb")
        assert stream.read(18) == b"NBDMAGIC" + magic + b"\0\3"
        raw.sendall(b"\0\0\0\1")

        def ask(option: int, data: bytes) -> list[tuple[int, bytes]]:
            raw.sendall(magic + option.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
            found: list[tuple[int, bytes]] = []
            while not found or found[-1][0] == 3:
                head = stream.read(20)
                assert head[:12] == bytes.fromhex("0003e889045565a9") + option.to_bytes(4, "big")
                found.append(
                    (int.from_bytes(head[12:16], "big"), stream.read(int.from_bytes(head[16:], "big")))
                )
            return found

        export = b"\0\0" + (40 * MIB + 512).to_bytes(8, "big") + b"\0\x6d"
        assert ask(3, b"") == [(unsupported, b"")]
        assert ask(8, b"") == [(unsupported, b"")]
        assert ask(6, bytes(6)) == [(3, export), (1, b"")]
        assert ask(6, b"\0\0\0\4name\0\0") == [(unknown, b"")]
        assert ask(6, b"\0\0\0\4nam") == [(invalid, b"")]
        assert ask(7, b"\0\0\0\0\0\1\0\3") == [(3, export), (1, b"")]
        raw.sendall(bytes.fromhex("25609513 0000 0002") + bytes(20))
        assert stream.read(1) == b""
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(LIMIT_S)
            other.connect(str(volume.socket))
            stream = other.makefile("rb")
            stream.read(18)
            other.sendall(b"\0\0\0\1" + magic + b"\0\0\0\1" + bytes(4))
            assert stream.read(134) == export[2:] + bytes(124)


@pytest.mark.parametrize("before_the_handshake", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_after_garbage_the_next_client_is_served(
    emulator: Path, image: Path, seed: int, before_the_handshake: bool
) -> None:
    garbage = random.Random(seed).randbytes(100_000)
    with served(emulator, image, LOCAL) as volume:
        if before_the_handshake:
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(volume.socket))
                raw.settimeout(LIMIT_S)
                try:
                    raw.sendall(garbage)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(4096):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass
        else:
            connection = Connection(volume.socket)
            connection.send(Command.READ, 0, 512)
            with pytest.raises(VolumeError):
                for part in range(0, len(garbage), 1000):
                    connection.send(Command.WRITE, 0, 33 * MIB, garbage[part : part + 1000])
                while True:
                    connection.receive()
        with Connection(volume.socket) as connection:
            assert connection.read(0, 512).data == image.read_bytes()[:512]


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(emulator: Path, image: Path) -> None:
    """No place that is taken, no payload on the link."""
    with served(emulator, image, WARM) as volume:
        for _ in range(3):
            with Connection(volume.socket) as connection:
                for number in range(40):
                    connection.send(Command.READ, number * MIB, MIB)
                assert connection.receive().error == 0
                connection._socket.close()  # without NBD_CMD_DISC
        with Connection(volume.socket) as connection:
            assert connection.read(0, 4096).error == 0
            log = volume.log()
    assert [each.sequence for each in log] == list(range(1, 122))
    for client in (1, 2, 3):
        answered = [each.done_ns > 0 for each in log if each.client == client]
        assert len(answered) == 40
        assert answered[0]
        assert not answered[-1]
    assert log[-1].in_flight == 1
    assert log[-1].due_ns == log[-1].arrival_ns + 800_000 + 31_250


def test_requests_sent_before_a_farewell_are_answered(emulator: Path, image: Path) -> None:
    with served(emulator, image, WARM) as volume, Connection(volume.socket) as connection:
        for number in range(20):
            connection.send(Command.READ, number * 4096, 4096)
        connection.send(Command.DISCONNECT)
        assert {connection.receive().error for _ in range(20)} == {0}
        with pytest.raises(VolumeError, match="closed the connection"):
            connection.receive()


def test_the_log_has_every_request_in_order(emulator: Path, image: Path) -> None:
    """More than its buffer holds, asked for before, in the middle and at the end."""
    begin_ns = time.monotonic_ns()
    with served(emulator, image, LOCAL) as volume:
        assert volume.log() == ()
        offsets = [(number * 4096) % (40 * MIB) for number in range(3000)]
        with Connection(volume.socket) as connection:
            for offset in offsets:
                assert connection.read(offset, 4096).error == 0
            assert len(volume.log()) == 3000
            assert connection.write(512, b"x" * 1024).error == 0
        log = volume.log()
    assert [each.sequence for each in log] == list(range(1, 3002))
    assert [each.offset for each in log[:-1]] == offsets
    assert {(each.length_bytes, each.command, each.error, each.client) for each in log[:-1]} == {
        (4096, 0, 0, 1)
    }
    assert (log[-1].command, log[-1].length_bytes, log[-1].costs) == (Command.WRITE, 1024, True)
    assert sum(each.touched for each in log) == 24
    for each in log:
        assert begin_ns < each.arrival_ns <= each.due_ns <= each.done_ns < time.monotonic_ns()


def test_a_damaged_log_is_refused() -> None:
    assert read_log(b"QSVOL  1") == ()
    for data in (b"", b"QSVOL  2", b"QSVOL  1" + bytes(63)):
        with pytest.raises(VolumeError, match="damaged"):
            read_log(data)
