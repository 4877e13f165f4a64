"""The volume emulator (quickstart/volume/emulator) against its model and QEMU's own NBD client.

The due time of each answer is compared with the model exactly, and no answer may come before it is due
(storage.md). The delay after that depends on the host. So it fails a test only when all of five runs take
three times as long as the model says.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import served
from quickstart.volume.nbd import Command, Connection, read_extents
from quickstart.volume.storage import StorageModel
from tests.contract.volumebox import (
    COLD,
    GRANULE,
    KIB,
    LOCAL,
    MIB,
    WARM,
    asked_of,
    demand_modelled,
    errors_of,
)
from tests.queueing import Asked, closed_loop_ns, expected_ns

RUNS = 5
TOLERANCE = 2.0


def spread(*sizes: int) -> list[tuple[int, int]]:
    """64 extents of these sizes by turns, each in a granule of its own."""
    return [(number * GRANULE, sizes[number % len(sizes)]) for number in range(64)]


def called(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


@pytest.mark.parametrize("depth", [1, 16])
def test_64_cold_and_warm_reads_take_what_the_model_says(emulator: Path, tmp_path: Path, depth: int) -> None:
    """By the client's clock, for the arrivals that its own pace has made; and never in less than an ideal client's time."""
    large = tmp_path / "large.raw"
    with large.open("wb") as file:
        file.truncate(64 * GRANULE)
    extents = spread(4 * KIB, 128 * KIB, 16 * KIB, 64 * KIB, 8 * KIB, 32 * KIB)
    asked = [Asked(Command.READ, offset, length) for offset, length in extents]
    ratios: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(RUNS):
        with served(emulator, large, COLD) as volume:
            cold_ns = read_extents(volume.socket, extents, 128 * KIB, depth)
            warm_ns = read_extents(volume.socket, extents, 128 * KIB, depth)
            log = volume.log()
        assert [each.touched for each in log] == [1] * 64 + [0] * 64
        for kind, took_ns, model, part in (
            ("cold", cold_ns, COLD, log[:64]),
            ("warm", warm_ns, WARM, log[64:]),
        ):
            due_ns = expected_ns(model, [(each.arrival_ns, asked_of(each)) for each in part])
            ratios[kind].append(took_ns / (max(due_ns) - part[0].arrival_ns))
            assert took_ns >= closed_loop_ns(model, asked, depth)
    assert {kind: 1 <= min(each) <= 1 + TOLERANCE for kind, each in ratios.items()} == {
        "cold": True,
        "warm": True,
    }, ratios


@pytest.mark.parametrize("size", [4 * KIB, 128 * KIB])
@pytest.mark.parametrize("depth", [1, 16])
def test_every_answer_is_due_exactly_when_the_model_says_and_is_given_then(
    emulator: Path, image: Path, depth: int, size: int
) -> None:
    extents = [(number * 640 * KIB, size) for number in range(64)]
    took = []
    for _ in range(RUNS):
        with served(emulator, image, COLD) as volume:
            read_extents(volume.socket, extents * 2, size, depth)
            log = volume.log()
        assert len(log) == 128
        demand_modelled(COLD, log)
        warm = log[64:]
        took.append(
            sum(each.done_ns - each.arrival_ns for each in warm)
            / sum(each.due_ns - each.arrival_ns for each in warm)
        )
    assert 1 <= min(took) <= 1 + TOLERANCE


def test_reads_and_writes_of_any_kind_are_due_when_the_model_says(emulator: Path, image: Path) -> None:
    dice = random.Random(11)
    model = replace(
        COLD, first_touch_ns=3_000_000, queue_depth=5, write_latency_ns=300_000, seek_ns=20_000_000
    )
    with served(emulator, image, model) as volume, Connection(volume.socket) as connection:
        in_flight = 0
        for _ in range(200):
            length = dice.choice([512, 4096, 100_000, MIB])
            offset = dice.randrange(0, 40 * MIB - length)
            command = dice.choice([Command.READ, Command.READ, Command.WRITE, Command.WRITE_ZEROES])
            data = bytes(length) if command == Command.WRITE else b""
            connection.send(command, offset, length, data, flags=dice.choice([0, 1]) if data else 0)
            in_flight += 1
            while in_flight > dice.randrange(12):
                assert connection.receive().error == 0
                in_flight -= 1
        while in_flight:
            assert connection.receive().error == 0
            in_flight -= 1
        log = volume.log()
    assert len(log) == 200
    assert max(each.in_flight for each in log) > model.queue_depth
    demand_modelled(model, log)


def test_a_model_of_every_kind_is_accepted(emulator: Path, image: Path) -> None:
    extreme = StorageModel(
        name="extreme",
        description="",
        read_latency_ns=0,
        write_latency_ns=0,
        bandwidth_bytes_s=10**15,
        queue_depth=65536,
        granule_bytes=2**40,
        first_touch_ns=0,
        sources=(),
    )
    with served(emulator, image, extreme) as volume:
        assert errors_of(volume, 1) == [0]


def test_qemu_sees_the_image(emulator: Path, image: Path, tmp_path: Path) -> None:
    with served(emulator, image, LOCAL) as volume:
        assert "virtual size: 40 MiB (41943552 bytes)" in called("qemu-img", "info", volume.uri)
        called("qemu-img", "compare", "-f", "raw", "-F", "raw", image, volume.uri)
        called("qemu-img", "convert", "-f", "raw", "-O", "raw", volume.uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == image.read_bytes()


def test_random_reads_and_writes_agree_with_a_plain_copy(emulator: Path, image: Path) -> None:
    dice = random.Random(3)
    plain = bytearray(image.read_bytes())
    size = len(plain)
    with served(emulator, image, LOCAL) as volume, Connection(volume.socket) as connection:
        assert connection.size_bytes == size
        for _ in range(1500):
            length = dice.choice([1, 511, 4096, 4097, 70_000, dice.randrange(1, 300_000)])
            offset = dice.choice([dice.randrange(0, size - length), size - length])
            kind = dice.randrange(4)
            if kind == 0:
                data = dice.randbytes(length)
                assert connection.write(offset, data).error == 0
                plain[offset : offset + length] = data
            elif kind == 1:
                connection.send(Command.WRITE_ZEROES, offset, length)
                assert connection.receive().error == 0
                plain[offset : offset + length] = bytes(length)
            else:
                reply = connection.read(offset, length)
                assert reply.error == 0
                assert reply.data == plain[offset : offset + length]
        connection.send(Command.FLUSH)
        assert connection.receive().error == 0
        for offset in range(0, size, 8 * MIB):
            length = min(8 * MIB, size - offset)
            assert connection.read(offset, length).data == plain[offset : offset + length]


def test_qemu_reads_back_what_it_has_written(emulator: Path, image: Path) -> None:
    commands = ("write -P 7 1000 5000", "read -P 7 1000 5000", "write -z 8192 65536", "read -P 0 8192 65536")
    words = [word for command in (*commands, "discard 1M 1M", "flush") for word in ("-c", command)]
    with served(emulator, image, LOCAL) as volume:
        called("qemu-io", "-f", "raw", *words, volume.uri)
        called("qemu-io", "-f", "raw", "-c", "read -P 7 1000 5000", volume.uri)
        assert {each.client for each in volume.log()} == {1, 2}


def test_an_overlay_is_kept_for_the_next_volume_and_another_is_thrown_away(
    emulator: Path, image: Path, tmp_path: Path
) -> None:
    overlay = tmp_path / "overlay"
    for given, found in ((overlay, b"kept"), (None, image.read_bytes()[4094:4098])):
        with served(emulator, image, LOCAL, overlay=given) as volume, Connection(volume.socket) as connection:
            assert connection.write(4094, b"kept").error == 0
        with served(emulator, image, LOCAL, overlay=given) as volume, Connection(volume.socket) as connection:
            assert connection.read(4094, 4).data == found
            assert connection.read(0, 4094).data == image.read_bytes()[:4094]


@pytest.mark.parametrize("blocks", [256, 10241])
def test_what_is_no_overlay_of_this_image_is_refused_and_kept(
    emulator: Path, image: Path, tmp_path: Path, blocks: int
) -> None:
    """By its size, or by what stands behind its blocks."""
    wrong = bytes(blocks * 4096 + 16 + blocks)
    (tmp_path / "overlay").write_bytes(wrong)
    with (
        pytest.raises(VolumeError, match="the overlay is not one of this image"),
        served(emulator, image, LOCAL, overlay=tmp_path / "overlay"),
    ):
        pass
    assert (tmp_path / "overlay").read_bytes() == wrong
