"""Faults and ends of the volume emulator, requested and not requested, and what remains after each."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.volume.emulator import served
from quickstart.volume.nbd import Command, Connection, read_extents
from tests.contract.volumebox import COLD, LIMIT_S, LOCAL, WARM, errors_of

EIO = 5


def test_fault_error(emulator: Path, image: Path) -> None:
    with served(emulator, image, WARM, fault="error:3") as volume:
        assert errors_of(volume, 5) == [0, 0, EIO, EIO, EIO]
        assert [each.error for each in volume.log()] == [0, 0, EIO, EIO, EIO]
    with served(emulator, image, WARM, fault="error:3:1") as volume:
        assert errors_of(volume, 5) == [0, 0, EIO, 0, 0]


def test_a_write_that_fails_writes_nothing(emulator: Path, image: Path) -> None:
    with (
        served(emulator, image, LOCAL, fault="error:1:1") as volume,
        Connection(volume.socket) as connection,
    ):
        assert connection.write(0, b"lost").error == EIO
        assert connection.read(0, 4).data == image.read_bytes()[:4]


def test_fault_stall(emulator: Path, image: Path) -> None:
    with served(emulator, image, LOCAL, fault="stall:2") as volume:
        with Connection(volume.socket, limit_s=0.5) as connection:
            assert connection.read(0, 512).error == 0
            for command in (Command.READ, Command.FLUSH):
                connection.send(command, 0, 512 if command == Command.READ else 0)
                with pytest.raises(VolumeError, match="does not answer"):
                    connection.receive()
        log = volume.log()
    assert [each.done_ns > 0 for each in log] == [True, False, False]


def test_fault_stall_for_a_while(emulator: Path, image: Path) -> None:
    with served(emulator, image, LOCAL, fault="stall:2:200") as volume:
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


def test_fault_death(emulator: Path, image: Path) -> None:
    with served(emulator, image, WARM, fault="death:3") as volume:
        with Connection(volume.socket) as connection:
            assert [connection.read(0, 512).error for _ in range(2)] == [0, 0]
            with pytest.raises(VolumeError, match="closed the connection"):
                connection.read(0, 512)
        assert volume.process.wait(LIMIT_S) == 3
        assert volume.last_words == "volume: fault death at request 3"
        assert [each.done_ns > 0 for each in volume.log()] == [True, True, False]
        with pytest.raises(VolumeError, match=r"no volume at .*refused"):
            Connection(volume.socket)


def test_a_death_nobody_asked_for_is_an_error_with_the_last_words(emulator: Path, image: Path) -> None:
    how = "the volume emulator died: was killed by signal 9"
    with pytest.raises(VolumeError, match=how), served(emulator, image, LOCAL) as volume:
        assert volume.is_running()
        volume.process.kill()
        volume.process.wait(LIMIT_S)
        assert not volume.is_running()
    with (
        pytest.raises(VolumeError, match="the volume emulator died") as caught,
        served(emulator, image, LOCAL) as volume,
    ):
        volume.process.kill()
        errors_of(volume, 1)
    assert isinstance(caught.value.__cause__, VolumeError)


def test_a_server_that_is_stopped_says_nothing_and_ends_all_the_same(emulator: Path, image: Path) -> None:
    with served(emulator, image, LOCAL) as volume:
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
def test_a_wrong_fault_is_refused(emulator: Path, image: Path, fault: str, words: str) -> None:
    with pytest.raises(VolumeError, match=words), served(emulator, image, LOCAL, fault=fault):
        pass


def test_an_image_that_is_missing_or_empty_is_named(emulator: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, words in (("none", "cannot be opened"), ("empty", "is no file, or empty")):
        with (
            pytest.raises(VolumeError, match=f"the image {words}: {tmp_path / name}"),
            served(emulator, tmp_path / name, LOCAL),
        ):
            pass


@pytest.fixture
def short() -> Iterator[Path]:
    """pytest's own directories may be too deep for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place)


def test_what_is_written_lies_in_the_temporary_directory_wherever_the_sockets_are(
    emulator: Path, image: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = short / ("long" * 25)
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    with served(emulator, image, LOCAL) as volume, Connection(volume.socket) as connection:
        assert connection.write(0, b"x").error == 0
        assert volume.socket.parent.parent != place
        opened = [str(each.readlink()) for each in Path(f"/proc/{volume.process.pid}/fd").iterdir()]
        (overlay,) = [each for each in opened if each.endswith(" (deleted)")]
        assert overlay.startswith(f"{place}/quickstart-volume-")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_server_ends_with_its_context(emulator: Path, image: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), served(emulator, image, COLD) as volume:
        connection = Connection(volume.socket)
        connection.send(Command.READ, 0, 4096)
        raise error
    assert volume.process.poll() == 0
    assert not volume.socket.parent.exists()


@pytest.mark.parametrize("long", [False, True])
def test_a_killed_parent_leaves_no_server_and_its_directory_goes_with_the_next(
    emulator: Path, image: Path, short: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    """Also where the directory's name is too long for a socket."""
    script = f"""
import sys
from pathlib import Path
from quickstart.volume.storage import load_model
from quickstart.volume.emulator import served
with served(Path({str(emulator)!r}), Path({str(image)!r}), load_model("local")) as volume:
    print(volume.process.pid, volume.socket, flush=True)
    sys.stdin.read()
"""
    place = short / ("long" * 25) if long else short
    place.mkdir(exist_ok=True)
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid, path = parent.stdout.readline().decode().split()
    assert (Path(path).parent.parent == place) is not long
    server = os.pidfd_open(int(pid))
    assert Path(path).is_socket()
    parent.kill()
    parent.communicate(timeout=LIMIT_S)
    assert select.select([server], [], [], LIMIT_S)[0], "the server still runs"
    os.close(server)
    with pytest.raises(VolumeError, match=r"no volume at .*refused"):
        Connection(Path(path))
    left = list(place.iterdir())
    assert len(left) == 1
    assert Path(path).parent.is_dir()
    monkeypatch.setenv("TMPDIR", str(place))
    with served(emulator, image, LOCAL) as volume:
        assert left[0] not in place.iterdir()
        assert not Path(path).parent.exists()
        assert errors_of(volume, 1) == [0]
    assert list(place.iterdir()) == []
    assert not volume.socket.parent.exists()
