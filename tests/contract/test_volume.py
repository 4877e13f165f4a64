"""The volume emulator (quickstart/measure/volume) against its model, QEMU's own NBD client, and what goes wrong.

Ratios to the model are the subject here (docs/storage.md). The median of five runs has to be within 5 % of it, so that a run
in which a busy host kept the emulator waiting decides nothing; and no answer may ever come before it is due.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.measure.nbd import Command, Connection, read_extents
from quickstart.measure.storage import StorageModel, load_model
from quickstart.measure.volume import Request, Volume, read_log, served, volume_binary
from quickstart.store import Store
from tests.queueing import Asked, closed_loop_ns, expected_ns

KIB = 1024
MIB = 1024 * KIB
GRANULE = 512 * KIB
RUNS = 5
TOLERANCE = 0.05
LIMIT_S = 20.0
EIO, EINVAL, ENOSPC = 5, 22, 28
LOCAL, WARM, COLD = (load_model(name) for name in ("local", "ebs-warm", "ebs-cold"))


def asked_of(request: Request) -> Asked:
    """What the arithmetic needs of a request."""
    return Asked(Command(request.command), request.offset, request.length_bytes)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield volume_binary(store)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """40 MiB and one sector, no two blocks alike; it must be the same in the end."""
    path = tmp_path_factory.mktemp("image") / "image.raw"
    path.write_bytes(random.Random(7).randbytes(40 * MIB + 512))
    path.chmod(0o444)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before


def spread(*sizes: int) -> list[tuple[int, int]]:
    """64 extents of these sizes by turns, each in a granule of its own."""
    return [(number * GRANULE, sizes[number % len(sizes)]) for number in range(64)]


def called(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("depth", [1, 16])
def test_64_cold_and_warm_reads_take_what_the_model_says(binary: Path, tmp_path: Path, depth: int) -> None:
    """By the client's clock, for the arrivals that its own pace has made; and never in less than an ideal client's time."""
    large = tmp_path / "large.raw"
    with large.open("wb") as file:
        file.truncate(64 * GRANULE)
    extents = spread(4 * KIB, 128 * KIB, 16 * KIB, 64 * KIB, 8 * KIB, 32 * KIB)
    asked = [Asked(Command.READ, offset, length) for offset, length in extents]
    ratios: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(RUNS):
        with served(binary, large, COLD) as volume:
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
    assert {kind: 1 <= statistics.median(each) <= 1 + TOLERANCE for kind, each in ratios.items()} == {
        "cold": True,
        "warm": True,
    }, ratios


@pytest.mark.parametrize("size", [4 * KIB, 128 * KIB])
@pytest.mark.parametrize("depth", [1, 16])
def test_every_answer_is_due_exactly_when_the_model_says_and_is_given_then(
    binary: Path, image: Path, depth: int, size: int
) -> None:
    extents = [(number * 640 * KIB, size) for number in range(64)]
    took = []
    for _ in range(RUNS):
        with served(binary, image, COLD) as volume:
            read_extents(volume.socket, extents * 2, size, depth)
            log = volume.log()
        assert len(log) == 128
        assert [each.due_ns for each in log] == list(
            expected_ns(COLD, [(each.arrival_ns, asked_of(each)) for each in log])
        )
        assert all(each.done_ns >= each.due_ns for each in log)
        warm = log[64:]
        took.append(
            sum(each.done_ns - each.arrival_ns for each in warm)
            / sum(each.due_ns - each.arrival_ns for each in warm)
        )
    assert 1 <= statistics.median(took) <= 1 + TOLERANCE


def test_reads_and_writes_of_any_kind_are_due_when_the_model_says(binary: Path, image: Path) -> None:
    dice = random.Random(11)
    model = replace(
        COLD, first_touch_ns=3_000_000, queue_depth=5, write_latency_ns=300_000, seek_ns=20_000_000
    )
    with served(binary, image, model) as volume, Connection(volume.socket) as connection:
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
    assert [each.due_ns for each in log] == list(
        expected_ns(model, [(each.arrival_ns, asked_of(each)) for each in log])
    )


# ---------------------------------------------------------------- data


def test_qemu_sees_the_image(binary: Path, image: Path, tmp_path: Path) -> None:
    with served(binary, image, LOCAL) as volume:
        assert "virtual size: 40 MiB (41943552 bytes)" in called("qemu-img", "info", volume.uri)
        called("qemu-img", "compare", "-f", "raw", "-F", "raw", image, volume.uri)
        called("qemu-img", "convert", "-f", "raw", "-O", "raw", volume.uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == image.read_bytes()


def test_random_reads_and_writes_agree_with_a_plain_copy(binary: Path, image: Path) -> None:
    dice = random.Random(3)
    plain = bytearray(image.read_bytes())
    size = len(plain)
    with served(binary, image, LOCAL) as volume, Connection(volume.socket) as connection:
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


def test_qemu_reads_back_what_it_has_written(binary: Path, image: Path) -> None:
    commands = ("write -P 7 1000 5000", "read -P 7 1000 5000", "write -z 8192 65536", "read -P 0 8192 65536")
    words = [word for command in (*commands, "discard 1M 1M", "flush") for word in ("-c", command)]
    with served(binary, image, LOCAL) as volume:
        called("qemu-io", "-f", "raw", *words, volume.uri)
        called("qemu-io", "-f", "raw", "-c", "read -P 7 1000 5000", volume.uri)
        assert {each.client for each in volume.log()} == {1, 2}


def test_an_overlay_is_kept_for_the_next_volume_and_another_is_thrown_away(
    binary: Path, image: Path, tmp_path: Path
) -> None:
    overlay = tmp_path / "overlay"
    for given, found in ((overlay, b"kept"), (None, image.read_bytes()[4094:4098])):
        with served(binary, image, LOCAL, overlay=given) as volume, Connection(volume.socket) as connection:
            assert connection.write(4094, b"kept").error == 0
        with served(binary, image, LOCAL, overlay=given) as volume, Connection(volume.socket) as connection:
            assert connection.read(4094, 4).data == found
            assert connection.read(0, 4094).data == image.read_bytes()[:4094]


@pytest.mark.parametrize("blocks", [256, 10241])
def test_what_is_no_overlay_of_this_image_is_refused_and_kept(
    binary: Path, image: Path, tmp_path: Path, blocks: int
) -> None:
    """By its size, or by what stands behind its blocks."""
    wrong = bytes(blocks * 4096 + 16 + blocks)
    (tmp_path / "overlay").write_bytes(wrong)
    with (
        pytest.raises(VolumeError, match="the overlay is not one of this image"),
        served(binary, image, LOCAL, overlay=tmp_path / "overlay"),
    ):
        pass
    assert (tmp_path / "overlay").read_bytes() == wrong


# ---------------------------------------------------------------- the protocol


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
    binary: Path, image: Path, command: int, offset: int, length: int, flags: int, error: int
) -> None:
    with served(binary, image, WARM) as volume, Connection(volume.socket) as connection:
        connection.send(command, offset, length, flags=flags)
        assert connection.receive().error == error
        assert connection.write(40 * MIB, bytes(513)).error == ENOSPC
        assert connection.read(40 * MIB, 512).data == image.read_bytes()[-512:]
        assert [each.error for each in volume.log()] == [error, ENOSPC, 0]


def test_options_are_answered_by_the_protocol(binary: Path, image: Path) -> None:
    magic = b"IHAVEOPT"
    unsupported, invalid, unknown = 0x80000001, 0x80000003, 0x80000006
    with served(binary, image, LOCAL) as volume, socket.socket(socket.AF_UNIX) as raw:
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
    binary: Path, image: Path, seed: int, before_the_handshake: bool
) -> None:
    garbage = random.Random(seed).randbytes(100_000)
    with served(binary, image, LOCAL) as volume:
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


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(binary: Path, image: Path) -> None:
    """No place that is taken, no payload on the link."""
    with served(binary, image, WARM) as volume:
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


def test_requests_sent_before_a_farewell_are_answered(binary: Path, image: Path) -> None:
    with served(binary, image, WARM) as volume, Connection(volume.socket) as connection:
        for number in range(20):
            connection.send(Command.READ, number * 4096, 4096)
        connection.send(Command.DISCONNECT)
        assert {connection.receive().error for _ in range(20)} == {0}
        with pytest.raises(VolumeError, match="closed the connection"):
            connection.receive()


# ---------------------------------------------------------------- log


def test_the_log_has_every_request_in_order(binary: Path, image: Path) -> None:
    """More than its buffer holds, asked for before, in the middle and at the end."""
    begin_ns = time.monotonic_ns()
    with served(binary, image, LOCAL) as volume:
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


# ---------------------------------------------------------------- faults and ends


def errors_of(volume: Volume, count: int) -> list[int]:
    with Connection(volume.socket) as connection:
        return [connection.read(0, 512).error for _ in range(count)]


def test_fault_error(binary: Path, image: Path) -> None:
    with served(binary, image, WARM, fault="error:3") as volume:
        assert errors_of(volume, 5) == [0, 0, EIO, EIO, EIO]
        assert [each.error for each in volume.log()] == [0, 0, EIO, EIO, EIO]
    with served(binary, image, WARM, fault="error:3:1") as volume:
        assert errors_of(volume, 5) == [0, 0, EIO, 0, 0]


def test_a_write_that_fails_writes_nothing(binary: Path, image: Path) -> None:
    with (
        served(binary, image, LOCAL, fault="error:1:1") as volume,
        Connection(volume.socket) as connection,
    ):
        assert connection.write(0, b"lost").error == EIO
        assert connection.read(0, 4).data == image.read_bytes()[:4]


def test_fault_stall(binary: Path, image: Path) -> None:
    with served(binary, image, LOCAL, fault="stall:2") as volume:
        with Connection(volume.socket, limit_s=0.5) as connection:
            assert connection.read(0, 512).error == 0
            for command in (Command.READ, Command.FLUSH):
                connection.send(command, 0, 512 if command == Command.READ else 0)
                with pytest.raises(VolumeError, match="does not answer"):
                    connection.receive()
        log = volume.log()
    assert [each.done_ns > 0 for each in log] == [True, False, False]


def test_fault_stall_for_a_while(binary: Path, image: Path) -> None:
    with served(binary, image, LOCAL, fault="stall:2:200") as volume:
        with Connection(volume.socket) as connection:
            for command, length in ((Command.READ, 512), (Command.READ, 512), (Command.FLUSH, 0)):
                connection.send(command, 0, length)
            assert [connection.receive().error for _ in range(3)] == [0, 0, 0]
            assert connection.read(0, 512).error == 0
        first, second, flush, after = volume.log()
    assert first.due_ns == first.arrival_ns
    assert second.due_ns == second.arrival_ns + 200_000_000
    assert flush.due_ns == second.due_ns
    assert after.due_ns == after.arrival_ns


def test_fault_death(binary: Path, image: Path) -> None:
    with served(binary, image, WARM, fault="death:3") as volume:
        with Connection(volume.socket) as connection:
            assert [connection.read(0, 512).error for _ in range(2)] == [0, 0]
            with pytest.raises(VolumeError, match="closed the connection"):
                connection.read(0, 512)
        assert volume.process.wait(LIMIT_S) == 3
        assert volume.last_words == "volume: fault death at request 3"
        assert [each.done_ns > 0 for each in volume.log()] == [True, True, False]
        assert not volume.socket.exists()
        with pytest.raises(VolumeError, match="no volume at"):
            Connection(volume.socket)


def test_a_death_nobody_asked_for_is_an_error_with_the_last_words(binary: Path, image: Path) -> None:
    how = "the volume emulator died: was killed by signal 9"
    with pytest.raises(VolumeError, match=how), served(binary, image, LOCAL) as volume:
        assert volume.is_running()
        volume.process.kill()
        volume.process.wait(LIMIT_S)
        assert not volume.is_running()
    with (
        pytest.raises(VolumeError, match="the volume emulator died") as caught,
        served(binary, image, LOCAL) as volume,
    ):
        volume.process.kill()
        errors_of(volume, 1)
    assert isinstance(caught.value.__cause__, VolumeError)


def test_a_server_that_is_stopped_says_nothing_and_ends_all_the_same(binary: Path, image: Path) -> None:
    with served(binary, image, LOCAL) as volume:
        volume.process.send_signal(signal.SIGSTOP)
        with pytest.raises(VolumeError, match="said nothing for 1 s"):
            volume.log(1)
        with pytest.raises(VolumeError, match="timed out"):
            read_extents(volume.socket, [(0, 512)], 512, 1, limit_s=0.5)
    # By itself, and not killed.
    assert volume.process.poll() == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "fault= is error:N"),
        ("error:0", "a number is malformed or out of range: 0"),
        ("stall:1:x", "a number is malformed or out of range: x"),
        ("death:1:1", "fault= is error:N"),
        ("fire:1", "fault= is error:N"),
    ],
)
def test_a_wrong_fault_is_refused(binary: Path, image: Path, fault: str, words: str) -> None:
    with pytest.raises(VolumeError, match=words), served(binary, image, LOCAL, fault=fault):
        pass


def test_an_image_that_is_missing_or_empty_is_named(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, words in (("none", "cannot be opened"), ("empty", "is no file, or empty")):
        with (
            pytest.raises(VolumeError, match=f"the image {words}: {tmp_path / name}"),
            served(binary, tmp_path / name, LOCAL),
        ):
            pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_server_ends_with_its_context(binary: Path, image: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), served(binary, image, COLD) as volume:
        connection = Connection(volume.socket)
        connection.send(Command.READ, 0, 4096)
        raise error
    assert volume.process.poll() == 0
    assert not volume.socket.parent.exists()


def test_a_killed_parent_leaves_no_server_and_no_socket_and_its_directory_goes_with_the_next(
    binary: Path, image: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
import sys
from pathlib import Path
from quickstart.measure.storage import load_model
from quickstart.measure.volume import served
with served(Path({str(binary)!r}), Path({str(image)!r}), load_model("local")) as volume:
    print(volume.process.pid, volume.socket, flush=True)
    sys.stdin.read()
"""
    # A short name, for the socket's.
    place = tmp_path_factory.mktemp("t")
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid, path = parent.stdout.readline().decode().split()
    server = os.pidfd_open(int(pid))
    assert Path(path).is_socket()
    parent.kill()
    parent.communicate(timeout=LIMIT_S)
    assert select.select([server], [], [], LIMIT_S)[0], "the server still runs"
    os.close(server)
    assert not Path(path).exists()
    assert list(place.iterdir()) == [Path(path).parent]
    monkeypatch.setenv("TMPDIR", str(place))
    with served(binary, image, LOCAL) as volume:
        assert list(place.iterdir()) == [volume.socket.parent]
    assert list(place.iterdir()) == []


def test_a_model_of_every_kind_is_accepted(binary: Path, image: Path) -> None:
    extreme = StorageModel("extreme", "", 0, 0, 10**15, 65536, 2**40, 0, ())
    with served(binary, image, extreme) as volume:
        assert errors_of(volume, 1) == [0]
