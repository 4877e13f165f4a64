"""Our C programs get malicious input under AddressSanitizer and UndefinedBehaviorSanitizer.

An invalid access, an overflow or undefined behaviour ends such a program at once. So the tests demand that
the program continues to serve, or ends as it should. `make fuzz-c` gives the same targets to libFuzzer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import VolumeError
from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from quickstart.volume.emulator import Volume, served
from quickstart.volume.nbd import Command, Connection
from tests.contract.agentbox import PORT, SECONDS, Namespaces, Start
from tests.contract.askbox import SERVERS, ask, serving
from tests.contract.starterbox import describe, run_starter
from tests.contract.volumebox import LIMIT_S, LOCAL, MIB
from tests.cprograms import PROGRAMS
from tests.sanitize.build import TARGETS, Target, program, replayer, trapping
from tests.sanitize.seeds import UNIT, mysql_answer, nbd_option, nbd_request, seeds, write_seeds

# How many inputs each target is given beside its seeds: some seconds' worth of all four together.
ROUNDS = {"volume": 3000, "agent": 6000, "unit": 10_000, "parts": 30_000}
REPLAY_S = 300
COMPLAINTS = ("Sanitizer", "runtime error")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each program compiled when it is first asked for."""
    directory = tmp_path_factory.mktemp("sanitized")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = program(name, directory)
        return made[name]

    return make


def test_the_sanitizers_are_awake(tmp_path: Path) -> None:
    """Without this a build that lost its flags would pass all the rest."""
    source = tmp_path / "wrong.c"
    source.write_text(
        "#include <stdlib.h>\nint main(int n, char **w) { return ((char *)malloc(1))[n] + (n << 31 << n) + !w; }"
    )
    words: list[str | Path] = [
        "gcc",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-o",
        tmp_path / "wrong",
        source,
    ]
    subprocess.run(words, check=True, timeout=60)
    done = subprocess.run([tmp_path / "wrong"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert any(each in done.stderr for each in COMPLAINTS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_fuzz_target_holds(target: Target, tmp_path: Path) -> None:
    words: list[str | Path] = [
        replayer(target, tmp_path),
        str(ROUNDS[target.name]),
        *write_seeds(target.name, tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=REPLAY_S, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == ROUNDS[target.name] + len(seeds(target.name))


# ---------------------------------------------------------------- the volume: whoever speaks NBD to it


@pytest.fixture(scope="module")
def emulator(built: Callable[[str], Path]) -> Path:
    return built("volume")


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


# ---------------------------------------------------------------- the agent: the host, and the application


@pytest.fixture(scope="module")
def agent(built: Callable[[str], Path]) -> Path:
    return built("agent")


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


# ---------------------------------------------------------------- the starter: the description, and what else it reads


@pytest.fixture(scope="module")
def starter(built: Callable[[str], Path]) -> Path:
    return built("starter")


FIRST = "quickstart-unit 1\n"
GROUP = "group x\n"
DESCRIPTIONS = {
    "empty": ("", "cut or damaged"),
    "another version": ("quickstart-unit 2\n", "does not begin with"),
    "no end of line": (FIRST + GROUP + "type exec", "cut or damaged"),
    "a NUL": (FIRST + GROUP + "type ex\0ec\n", "cut or damaged"),
    "unknown key": (FIRST + GROUP + "cgroup-escape yes\n", "unknown `cgroup-escape`"),
    "empty lines": (FIRST + GROUP + "\n\n \n", "unknown ``"),
    "escape without digits": (FIRST + GROUP + "user \\x\n", "bad escape"),
    "escape cut off": (FIRST + GROUP + "user \\\n", "bad escape"),
    "escaped NUL": (FIRST + GROUP + "user a\\x00b\n", "bad escape"),
    "a word of 1 MB": (FIRST + GROUP + f"user {'x' * 1_000_000}\n", "has no `xxx"),
    "host names of 64 KiB": (FIRST + GROUP + "user " + "\\H" * 32_768 + "\n", "has no `"),
    "5000 records": (FIRST + GROUP + "environment A=1\n" * 5000, "no main command"),
    "a command without words": (FIRST + GROUP + "type exec\ncommand main\n", "lacks words"),
    "a limit without words": (
        FIRST + GROUP + "type exec\nlimit 7\ncommand main : /bin/true true\n",
        "lacks words",
    ),
    "a number that is none": (
        FIRST
        + GROUP
        + "type exec\nstart-timeout-ms 99999999999999999999\n"
        + "command main : /bin/true true\n",
        "no number",
    ),
}


@pytest.mark.host_root
@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_the_starter_refuses(starter: Path, tmp_path: Path, text: str) -> None:
    description, reason = DESCRIPTIONS[text]
    found = run_starter(starter, tmp_path, description)
    assert not any(each in found.log for each in COMPLAINTS), found.log
    assert found.status == 1
    assert reason in found.reason or reason in found.log


@pytest.mark.host_root
def test_the_sanitized_starter_starts_an_ordinary_unit(starter: Path, tmp_path: Path) -> None:
    """So that what it refuses is refused for what it is."""
    text = describe(
        *(("group", "x"), ("type", "exec"), ("environment", "A=one two"), ("limit", "7", "1024", "4096")),
        ("command", "main", "", "/bin/sh", "sh", "-c", "exec sleep 600", "$A"),
    )
    # The starter is done when the shell is executed; that executes sleep some time later.
    until = "for _ in $(seq 200); do ! grep -qa ^sh /proc/$MAIN/cmdline || sleep 0.05; done"
    found = run_starter(starter, tmp_path, text, {"line": f"{until}; tr '\\0' ' ' </proc/$MAIN/cmdline"})
    assert (found.status, found.reason) == (0, ""), found.log
    assert found.answers["line"].strip() == "sleep 600"
    assert UNIT.startswith(FIRST.encode())


# ---------------------------------------------------------------- the programs without a C library


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_checker_takes_any_list(built: Callable[[str], Path], tmp_path: Path, build: str) -> None:
    checker = built("checker") if build == "sanitized" else trapping("checker", tmp_path)
    (tmp_path / "root").mkdir()
    whole = seeds("parts")[0][2:]
    lists = [whole[:length] for length in range(1, len(whole), 3)]
    lists += [whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :] for at in range(8, len(whole) - 4, 4)]
    for data in lists:
        (tmp_path / "list").write_bytes(data)
        words = [checker, tmp_path / "root", tmp_path / "list", tmp_path / "damage"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_prefetcher_takes_any_ranges_and_names(
    built: Callable[[str], Path], tmp_path: Path, build: str
) -> None:
    prefetcher = built("prefetcher") if build == "sanitized" else trapping("prefetcher", tmp_path)
    (tmp_path / "device").write_bytes(bytes(MIB))
    for ranges, names, parts in (
        (b"0 4096\n" * 10_000, b"x\0" * 10_000, b"0 4096 x\0" * 10_000),
        (b"999999999999999999 999999999999999999\n0 ", b"\0" * 4096, b"0 99999999999999999 device\0"),
        (
            b"99999999999999999999 1\n0 99999999999999999999\n",
            b"x\0",
            b"1 2 device\0999999999999999999999 \0",
        ),
        (b"-1 5\n", b"a" * 8191 + b"\0", b"1 2 \0\0"),
        (b"\xff" * 4096, b"../../../etc/passwd\0/etc/shadow\0", b"0 1 ../../../etc/passwd\x001 1\0"),
    ):
        lists = {"ranges": ranges, "names": names, "parts": parts}
        for name, data in lists.items():
            (tmp_path / name).write_bytes(data)
        words: list[str | Path] = [
            prefetcher,
            tmp_path / "device",
            tmp_path,
            *(tmp_path / name for name in lists),
            "128",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_mounter_takes_any_table(built: Callable[[str], Path], tmp_path: Path, build: str) -> None:
    """In namespaces of its own; nothing of it can be mounted."""
    mounter = built("mounter") if build == "sanitized" else trapping("mounter", tmp_path)
    assert shutil.which("unshare")
    for table, status in (
        (b"a" * 4096, 2),
        (b"tmpfs none /does/not/exist " + b"x," * 1500 + b"\n", 1),
        (b"\n" * 4095, 0),
        (b"\0 \0 \0 \0", 1),
        (b" \t \n", 1),
    ):
        words: list[str | Path] = ["unshare", "--user", "--map-root-user", "--mount", mounter]
        done = subprocess.run(words, input=table, capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert done.returncode != -signal.SIGILL


@pytest.mark.parametrize("build", ["sanitized", "trapping"])
def test_the_modloader_takes_any_table_and_alias(
    built: Callable[[str], Path], tmp_path: Path, build: str
) -> None:
    modloader = built("modloader") if build == "sanitized" else trapping("modloader", tmp_path)
    for name, alias in (("a", b"virtio:d1v2\n"), ("b", b"*" * 4095 + b"\n"), ("c", b""), ("d" * 255, b"[\n")):
        device = tmp_path / "sys/bus/virtio/devices" / name
        device.mkdir(parents=True)
        (device / "modalias").write_bytes(alias)
    (tmp_path / "modules.d").mkdir()
    for table in (
        b"bus virtio\nmodule m\nalias virtio:d* m\n",
        b"bus virtio\nmodule m\nalias " + b"[" * 5000 + b" m\nchild virtio\n",
        b"bus "
        + b"x" * 5000
        + b"\ndevice "
        + b"../" * 2000
        + b"\nmodule "
        + b"y" * 5000
        + b"\nroot "
        + b"y" * 5000,
        b"alias\nbeside\nlate\nmodule\nroot\nimage\nbus\nchild\ndevice\n",
        b"bus virtio\nalias * \0\xff m m m" * 100,
        b"\n" * 4096,
        b" ",
    ):
        (tmp_path / "table").write_bytes(table)
        for what in ("disks", "present", "late", "again", "image", "all"):
            words = [modloader, tmp_path / "modules.d", tmp_path / "table", tmp_path / "sys", what]
            done = subprocess.run(words, capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, (table[:40], what, done.stderr)
            assert not any(each.encode() in done.stderr for each in COMPLAINTS)


# ---------------------------------------------------------------- the caretaker and the confiner


@pytest.fixture(scope="module")
def caretaker(starter: Path) -> Path:
    """The starter by its other name."""
    path = starter.with_name("caretaker")
    path.symlink_to(starter.name)
    return path


ROWS = {
    "nothing": (b"", 0),
    "no tabs": (b"ro\n", 1),
    "no source": (b"ro\toptional\t\t\n", 0),
    "a source that is not there": (b"ro\trequired\t/no/such\t/tmp\n", 1),
    "a path of 64 KiB": (b"rw\trequired\t/" + b"x" * 65_536 + b"\t/tmp\n", 1),
    "a target of 64 KiB": (b"rw\trequired\t/tmp\t/" + b"y/" * 32_768 + b"\n", 1),
    "a thousand fields": (b"\t" * 1000 + b"\n", 1),
    "no end of line": (b"ro\toptional\t/no/such\t/x", 0),
}


@pytest.mark.host_root
@pytest.mark.parametrize("rows", ROWS)
def test_the_caretaker_takes_any_rows(caretaker: Path, rows: str) -> None:
    """In mount and PID namespaces of its own, whose PID 1 the process is that is bound into."""
    said, status = ROWS[rows]
    words: list[str | Path] = [
        *own_namespaces(),
        "/bin/sh",
        "-c",
        'mount -t proc proc /proc && "$0" bind $$; exit $?',
        caretaker,
    ]
    done = subprocess.run(words, input=said, capture_output=True, timeout=60, check=False)
    assert not any(each.encode() in done.stderr for each in COMPLAINTS), done.stderr
    assert done.returncode == status, done.stderr


@pytest.mark.host_root
def test_the_sanitized_caretaker_removes_a_tree(caretaker: Path, tmp_path: Path) -> None:
    """Deeper than it spends descriptors, with names of any bytes."""
    deep = tmp_path / "tree" / Path(*["d"] * 250)
    deep.mkdir(parents=True)
    (tmp_path / "tree" / "a\n\udcff").write_text("x")
    (tmp_path / "stays").write_text("x")
    names = b"\0".join([bytes(tmp_path / "tree"), bytes(tmp_path / "not-there"), b"/" + b"z" * 5000, b""])
    done = subprocess.run([caretaker, "remove"], input=names, capture_output=True, timeout=60, check=False)
    assert not any(each.encode() in done.stderr for each in COMPLAINTS), done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stays"]


@pytest.mark.parametrize("name", SERVERS)
def test_the_sanitized_caretaker_asks_any_server(caretaker: Path, name: str) -> None:
    serve, status = SERVERS[name]
    with serving(serve) as port:
        assert ask(caretaker, port) == (status, b"")


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    assert os.geteuid() == 0, "a root of its own needs root: run the tests with sudo"
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp"):
        (tmp_path / "image" / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), tmp_path / "image/bin/sh")
    return tmp_path / "image"


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("/bin/sh", "-c", "exit 7"), 7),
        (("--network", "/bin/sh", "-c", "kill -9 $$"), 137),
        (("/bin/sh", "-c", ":", *["x" * 1000] * 100), 0),
        (("/bin/nothing",), 127),
        (("/etc",), 126),
    ],
    ids=["status", "signal", "arguments", "not there", "no program"],
)
def test_the_sanitized_confiner_runs_programs(
    built: Callable[[str], Path], image_root: Path, argv: tuple[str, ...], status: int
) -> None:
    options, command = (
        [each for each in argv if each == "--network"],
        [each for each in argv if each != "--network"],
    )
    words: list[str | Path] = [built("confiner"), *options, image_root, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert not any(each in done.stderr for each in COMPLAINTS), done.stderr
    assert done.returncode == status, done.stderr


# ---------------------------------------------------------------- all of them

# How each ends without arguments, and with nothing to read.
UNUSED = {"confiner": 125, "mounter": 0, "resident": 0}
# A library of strace's process is no program; tests/contract/test_tracers.py runs it with strace.
STARTABLE = [name for name, program in PROGRAMS.items() if "-shared" not in program.flags]


@pytest.mark.parametrize("name", STARTABLE)
def test_every_program_has_a_sanitized_build(built: Callable[[str], Path], name: str) -> None:
    done = subprocess.run(
        [built(name)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "Sanitizer" in done.stderr) == (UNUSED.get(name, 2), False), done.stderr
