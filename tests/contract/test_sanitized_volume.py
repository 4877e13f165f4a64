"""The sanitized volume emulator: whoever speaks NBD to it may say anything."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import Volume, served
from quickstart.volume.nbd import Command, Connection
from tests.contract.volumebox import LIMIT_S, LOCAL, MIB
from tests.sanitize.build import COMPLAINTS
from tests.sanitize.seeds import nbd_option, nbd_request


@pytest.fixture(scope="module")
def emulator(sanitized: Callable[[str], Path]) -> Path:
    return sanitized("volume")


HELLO = b"\0\0\0\3" + nbd_option(7, bytes(6))
HOSTILE = {
    "flags": b"\xff\xff\xff\xff",
    "option magic": b"\0\0\0\3IHAVENOT" + bytes(8),
    "option of 4 GiB": b"\0\0\0\3" + nbd_option(7, b"x" * 10_000, 2**32 - 1),
    "option of one too many": b"\0\0\0\3" + nbd_option(3, bytes(8193)),
    "name of 4 GiB": b"\0\0\0\3" + nbd_option(7, b"\xff\xff\xff\xff\0\0"),
    "more wishes than there are": b"\0\0\0\3" + nbd_option(6, bytes(4) + b"\xff\xff"),
    "ten thousand options": b"\0\0\0\3" + nbd_option(6, bytes(6)) * 10_000,
    "structured replies": b"\0\0\0\3" + nbd_option(8, b"") + nbd_option(7, bytes(6)) + nbd_request(0, 0, 512),
    "extended header": HELLO + bytes.fromhex("21e41c71") + bytes(28),
    "request magic": HELLO + b"\0" * 28,
    "every command": HELLO + b"".join(nbd_request(each, 0, 512) for each in range(256) if each not in (1, 2)),
    "past the end": HELLO + b"".join(nbd_request(each, 2**64 - 512, 1024) for each in (0, 3, 4, 5, 6)),
    "4 GiB of everything": HELLO + b"".join(nbd_request(each, 0, 2**32 - 1) for each in (0, 3, 4, 5, 6)),
    "write of 4 GiB": HELLO + nbd_request(1, 0, 2**32 - 1, data=b"x" * 10_000),
    "half a write": HELLO + nbd_request(1, 0, 32 * MIB, data=b"x" * MIB),
    "nothing, ten thousand times": HELLO + nbd_request(0, 0, 0) * 10_000,
    "odd places": HELLO + b"".join(nbd_request(0, number * 4097 + 511, number) for number in range(1, 2000)),
}


def tell(volume: Volume, data: bytes, seconds: float = LIMIT_S) -> None:
    """Say that, hear what comes back until the volume closes or, when all is said, has nothing more to say."""
    with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.settimeout(seconds)
        raw.connect(str(volume.socket))
        reader = threading.Thread(target=_hear, args=(raw,), daemon=True)
        reader.start()
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        reader.join(seconds)


def _hear(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while raw.recv(65536):
            pass


def demand_good(volume: Volume, image: Path) -> None:
    with Connection(volume.socket) as connection:
        assert connection.read(39 * MIB, 4096).data == image.read_bytes()[39 * MIB : 39 * MIB + 4096]
    assert volume.is_running()
    assert not any(each in volume.last_words for each in COMPLAINTS)


@pytest.mark.parametrize("said", HOSTILE)
def test_the_volume_serves_the_next_client_after(emulator: Path, image: Path, said: str) -> None:
    with served(emulator, image, LOCAL) as volume:
        tell(volume, HOSTILE[said])
        demand_good(volume, image)


def test_a_client_may_be_cut_off_at_every_byte(emulator: Path, image: Path) -> None:
    session = HELLO + nbd_request(1, 0, 600, data=b"w" * 600) + nbd_request(0, 0, 600) + nbd_request(6, 0, 9)
    with served(emulator, image, LOCAL) as volume:
        for length in (*range(120), *range(120, len(session), 37)):
            tell(volume, session[:length])
        with Connection(volume.socket) as connection:
            assert connection.read(9, 591).data == b"w" * 591
        assert volume.is_running()


def test_many_clients_and_a_slow_one(emulator: Path, image: Path) -> None:
    """The volume serves one after the other; a hundred that say nothing and leave do not keep the next one out."""
    with served(emulator, image, LOCAL) as volume:
        waiting = []
        for _ in range(100):
            raw = socket.socket(socket.AF_UNIX)
            raw.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                raw.connect(str(volume.socket))
            waiting.append(raw)
        for raw in waiting:
            raw.close()
        with socket.socket(socket.AF_UNIX) as slow:
            # Without a time limit connect(2) waits for a place in the queue, which those that left have still.
            slow.connect(str(volume.socket))
            slow.settimeout(LIMIT_S)
            for byte in HELLO + nbd_request(0, 0, 512):
                slow.sendall(bytes([byte]))
            with slow.makefile("rb") as stream:
                answer = stream.read(18 + 32 + 20 + 16 + 512)
            assert answer[-512:] == image.read_bytes()[:512]
        demand_good(volume, image)


def test_a_model_of_centuries_does_not_overflow(emulator: Path, tmp_path: Path) -> None:
    """An hour for each of eight million granules: more nanoseconds than 63 bits hold. The request is just never answered."""
    large = tmp_path / "large.raw"
    with large.open("wb") as file:
        file.truncate(5 << 30)
    slow = replace(LOCAL, granule_bytes=512, first_touch_ns=3600 * 10**9)
    with served(emulator, large, slow) as volume:
        with Connection(volume.socket) as connection:
            connection.send(Command.WRITE_ZEROES, 0, 2**32 - 4096)
            connection._socket.settimeout(1.0)
            with pytest.raises(VolumeError, match="timed out"):
                connection.receive()
        assert volume.is_running(), volume.last_words
        (noted,) = volume.log()
    assert (noted.touched, noted.due_ns, noted.done_ns) == (2**23 - 8, 0, 0)
