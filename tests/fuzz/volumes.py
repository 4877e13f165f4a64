"""The targets for what a volume says: its log, and NBD."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from quickstart.measure import counting
from quickstart.volume.emulator import read_log
from quickstart.volume.nbd import Connection
from tests.fuzz.target import Target

_LIMIT_S = 0.3


def _volume_log(data: bytes, _: Path) -> None:
    found = read_log(data)
    counting.root_reads(found, 0, 10**12)
    counting.in_flight_ns(found, 0, 10**12)
    counting.modelled_ns(found, 10**12)
    counting.unanswered_ns(found, 10**12)


def _nbd(data: bytes, base: Path) -> None:
    path = base / "socket"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen(1)

        def serve() -> None:
            with suppress(OSError), listening.accept()[0] as client:
                client.settimeout(_LIMIT_S)
                client.sendall(data[:100_000])
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        try:
            with Connection(path, _LIMIT_S) as connection:
                connection.read(0, 512)
        finally:
            server.join()


TARGETS: Mapping[str, Target] = {
    "volume-log": Target(_volume_log, (b"QSVOL  1",)),
    "nbd": Target(_nbd, (b"NBDMAGICIHAVEOPT\0\3", b"\0\3\xe8\x89\4\x55\x65\xa9", b"gDf\x98")),
}
