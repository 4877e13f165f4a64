"""One volume for several instances: they share a link, a queue and the pulled granules; each has its own writes and connection."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import Volume, served
from quickstart.volume.nbd import Command, Connection, read_extents
from tests.contract.volumebox import COLD, GRANULE, KIB, LIMIT_S, LOCAL, MIB, WARM, demand_modelled


def at_once(volume: Volume, work: dict[int, list[tuple[int, int]]], depth: int) -> None:
    """Have each instance read its extents, all beside each other."""
    failed: list[BaseException] = []

    def read(instance: int) -> None:
        try:
            read_extents(volume.of(instance).socket, work[instance], 128 * KIB, depth, LIMIT_S)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(instance,)) for instance in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.parametrize("depth", [1, 8])
def test_the_requests_of_all_instances_go_through_one_model(emulator: Path, image: Path, depth: int) -> None:
    model = replace(COLD, first_touch_ns=3_000_000, queue_depth=5)
    everything = [(offset, 40 * KIB) for offset in range(0, 16 * MIB, 128 * KIB)]
    orders = {number: random.Random(number).sample(everything, len(everything)) for number in (1, 2, 3)}
    with served(emulator, image, model, instances=3) as volume:
        at_once(volume, orders, depth)
        log = volume.log()
        mine = volume.of(2).log()
    assert len(log) == 3 * len(everything)
    demand_modelled(model, log)
    assert [each.offset for each in mine] == [offset for offset, _ in orders[2]]
    assert mine == tuple(each for each in log if each.instance == 2)
    # Places of the one are taken by the others.
    assert max(each.in_flight for each in log) > max(depth, model.queue_depth if depth > 1 else 0)


def test_a_granule_that_one_has_pulled_is_warm_for_all(emulator: Path, image: Path) -> None:
    with served(emulator, image, COLD, instances=2) as volume:
        for instance in (1, 2):
            read_extents(volume.of(instance).socket, [(0, 4 * MIB)], 128 * KIB, 1)
        first, second = (volume.of(instance).log() for instance in (1, 2))
    assert sum(each.touched for each in first) == 4 * MIB // GRANULE
    assert sum(each.touched for each in second) == 0
    assert all(each.due_ns - each.arrival_ns < COLD.first_touch_ns for each in second)


def test_who_comes_while_another_instance_pulls_a_granule_waits_for_it(emulator: Path, image: Path) -> None:
    with served(emulator, image, COLD, instances=2) as volume, ExitStack() as stack:
        one, two = (stack.enter_context(Connection(volume.of(each).socket)) for each in (1, 2))
        one.send(Command.READ, 0, 4 * KIB)
        two.send(Command.READ, 8 * KIB, 4 * KIB)
        assert (one.receive().error, two.receive().error) == (0, 0)
        log = volume.log()
    demand_modelled(COLD, log)
    assert [each.touched for each in log] == [1, 0]
    assert log[1].due_ns >= log[0].arrival_ns + COLD.first_touch_ns + COLD.read_latency_ns


def test_the_link_is_shared(emulator: Path, image: Path) -> None:
    assert WARM.bandwidth_bytes_s is not None
    with served(emulator, image, WARM, instances=4) as volume:
        at_once(volume, {each: [(0, 2 * MIB)] for each in range(1, 5)}, 2)
        log = volume.log()
    demand_modelled(WARM, log)
    took_ns = max(each.due_ns for each in log) - log[0].arrival_ns
    assert took_ns >= 4 * 2 * MIB * 10**9 // WARM.bandwidth_bytes_s


def test_places_are_shared(emulator: Path, image: Path) -> None:
    model = replace(LOCAL, read_latency_ns=50_000_000, queue_depth=1)
    with served(emulator, image, model, instances=3) as volume, ExitStack() as stack:
        clients = [stack.enter_context(Connection(volume.of(each).socket)) for each in (1, 2, 3)]
        for client in clients:
            client.send(Command.READ, 0, 512)
        assert [client.receive().error for client in clients] == [0, 0, 0]
        log = volume.log()
    demand_modelled(model, log)
    assert [each.instance for each in log] == [1, 2, 3]
    assert log[2].due_ns >= log[0].arrival_ns + 3 * model.read_latency_ns


def test_each_instance_has_what_it_has_written_and_keeps_it_when_it_comes_again(
    emulator: Path, image: Path
) -> None:
    plain = image.read_bytes()
    with served(emulator, image, LOCAL, instances=3) as volume:
        for instance in (1, 2):
            with Connection(volume.of(instance).socket) as connection:
                assert connection.write(4000, bytes([instance]) * 200).error == 0
        with Connection(volume.of(1).socket) as connection:
            connection.send(Command.WRITE_ZEROES, MIB, 8 * KIB)
            assert connection.receive().error == 0
        found = {}
        for instance in (1, 2, 3):
            with Connection(volume.of(instance).socket) as connection:
                found[instance] = (
                    bytes(connection.read(0, 8 * KIB).data),
                    bytes(connection.read(MIB, 8 * KIB).data),
                )
        numbers = {each.client for each in volume.log()}
    for instance in (1, 2):
        assert found[instance][0] == plain[:4000] + bytes([instance]) * 200 + plain[4200 : 8 * KIB]
    assert found[3] == (plain[: 8 * KIB], plain[MIB : MIB + 8 * KIB])
    assert found[1][1] == bytes(8 * KIB)
    assert found[2][1] == plain[MIB : MIB + 8 * KIB]
    assert numbers == set(range(1, 7))


def test_overlays_are_kept_under_their_instances_numbers(emulator: Path, image: Path, tmp_path: Path) -> None:
    for turn in (1, 2):
        with served(emulator, image, LOCAL, overlay=tmp_path / "kept", instances=2) as volume:
            for instance in (1, 2):
                with Connection(volume.of(instance).socket) as connection:
                    if turn == 1:
                        assert connection.write(0, b"of %d" % instance).error == 0
                    else:
                        assert connection.read(0, 4).data == b"of %d" % instance
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.1", "kept.2"]


def test_one_that_dies_leaves_the_others_their_answers_and_its_places(emulator: Path, image: Path) -> None:
    model = replace(WARM, queue_depth=4)
    with served(emulator, image, model, instances=2) as volume:
        with Connection(volume.of(2).socket) as other:
            for _ in range(3):
                connection = Connection(volume.of(1).socket)
                for number in range(12):
                    connection.send(Command.READ, number * MIB, MIB)
                cookies = {other.send(Command.READ, number * 4096, 4096) for number in range(20)}
                assert connection.receive().error == 0
                connection._socket.close()  # without NBD_CMD_DISC
                replies = [other.receive() for _ in cookies]
                assert {each.cookie for each in replies} == cookies
                assert {each.error for each in replies} == {0}
            # A moment for the server to see the last one go.
            with Connection(volume.of(1).socket) as connection:
                assert connection.read(0, 4096).error == 0
            assert other.read(0, 4096).error == 0
        log = volume.log()
    assert all(each.done_ns for each in log if each.instance == 2)
    assert [each.done_ns > 0 for each in log if each.instance == 1].count(False) > 0
    assert log[-1].in_flight == 1
    assert log[-1].due_ns == log[-1].arrival_ns + model.read_latency_ns + 31_250


def test_one_that_says_nothing_or_nonsense_keeps_nobody_waiting(emulator: Path, image: Path) -> None:
    with served(emulator, image, LOCAL, instances=3) as volume, ExitStack() as stack:
        silent, rude = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        silent.connect(str(volume.of(1).socket))
        rude.connect(str(volume.of(2).socket))
        rude.sendall(random.Random(1).randbytes(1000))
        # Its handshake may take 10 s.
        with Connection(volume.of(3).socket, limit_s=5) as connection:
            assert connection.read(0, 512).data == image.read_bytes()[:512]
        with Connection(volume.of(2).socket, limit_s=5) as connection:
            assert connection.read(0, 512).data == image.read_bytes()[:512]


def test_a_death_is_everybodys(emulator: Path, image: Path) -> None:
    with served(emulator, image, LOCAL, instances=2, fault="death:2") as volume:
        with Connection(volume.of(1).socket) as one, Connection(volume.of(2).socket) as two:
            assert one.read(0, 512).error == 0
            with pytest.raises(VolumeError, match="closed the connection"):
                two.read(0, 512)
            with pytest.raises(VolumeError):
                one.read(0, 512)
        assert volume.process.wait(LIMIT_S) == 3
        assert [each.instance for each in volume.log()] == [1, 2]
        for each in (1, 2):
            with pytest.raises(VolumeError, match=r"no volume at .*refused"):
                Connection(volume.of(each).socket)


def test_more_requests_at_once_than_are_taken_are_all_answered(emulator: Path, image: Path) -> None:
    """256 are in flight at most; the others are in the server's buffer, and nothing more comes by the socket."""
    with served(emulator, image, LOCAL, instances=1) as volume, Connection(volume.of(1).socket) as connection:
        head = b"".join(
            struct.pack(">IHHQQI", 0x25609513, 0, Command.READ, cookie, 0, 1) for cookie in range(600)
        )
        connection._asked.update(dict.fromkeys(range(600), 1))
        connection._socket.sendall(head)
        assert {connection.receive().cookie for _ in range(600)} == set(range(600))


@pytest.mark.parametrize("count", [65, -1])
def test_a_number_of_instances_that_is_out_of_range_is_refused(
    emulator: Path, image: Path, count: int
) -> None:
    with (
        pytest.raises(VolumeError, match=f"1 to 64 instances, not {count}"),
        served(emulator, image, LOCAL, instances=count),
    ):
        pass
