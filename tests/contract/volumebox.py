"""Shared by the tests of the volume emulator: sizes, models, and a reader of the answers."""

from __future__ import annotations

from quickstart.volume.emulator import Request, Volume
from quickstart.volume.nbd import Command, Connection
from quickstart.volume.storage import StorageModel, load_model
from tests.queueing import Asked, expected_ns

KIB = 1024
MIB = 1024 * KIB
GRANULE = 512 * KIB
# Of the image of conftest.py: the last sector is in no whole block.
IMAGE_BYTES = 40 * MIB + 512
LIMIT_S = 20.0
LOCAL, WARM, COLD = (load_model(name) for name in ("local", "ebs-warm", "ebs-cold"))


def asked_of(request: Request) -> Asked:
    """What the arithmetic needs of a request."""
    return Asked(Command(request.command), request.offset, request.length_bytes)


def errors_of(volume: Volume, count: int) -> list[int]:
    with Connection(volume.socket) as connection:
        return [connection.read(0, 512).error for _ in range(count)]


def demand_modelled(model: StorageModel, log: tuple[Request, ...]) -> None:
    """All requests, whoever sent them, are due as those of one queue, and answered then or later."""
    due_ns = expected_ns(model, [(each.arrival_ns, asked_of(each)) for each in log])
    assert [each.due_ns for each in log] == list(due_ns)
    assert all(each.done_ns >= each.due_ns for each in log)
