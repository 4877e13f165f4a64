"""The launch agent (quickstart/launch/agent) against docs/internals/agent.md, with a UNIX socket as its port.

Every agent runs in a network namespace of its own, which has no interface but lo unless the test adds one.
Its /proc is that of a PID namespace with a PID 1 of ours, because not every sandbox lets root enter the
host's.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import tty
from pathlib import Path

import pytest

from quickstart.launch.spoken import spoken
from tests.contract.agentbox import ADDRESS, INTERVAL_MS, PORT, SECONDS, Namespaces, Peer, Start, boottime


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "namespaces and chroot need root: run the tests with sudo"


def test_exec_separates_output_and_passes_the_status(start: Start) -> None:
    peer = start()
    assert peer.run("echo to-out; echo to-err >&2; exit 7") == (b"to-out\n", b"to-err\n", 7)
    assert peer.run("kill -KILL $$") == (b"", b"", 128 + signal.SIGKILL)


def test_exec_starts_with_exactly_what_is_documented(start: Start) -> None:
    peer = start()
    peer.request("echo $$; while :; do :; done")
    _, payload = peer.message()
    shell = Path("/proc", payload.decode().strip())
    try:
        assert (shell / "environ").read_bytes().split(b"\0") == [
            b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            b"HOME=/root",
            b"TERM=linux",
            b"",
        ]
        assert (shell / "cwd").samefile("/")
        assert (shell / "fd/0").samefile("/dev/null")
        assert {file.name for file in (shell / "fd").iterdir()} == {"0", "1", "2"}
        assert os.getsid(int(shell.name)) == int(shell.name)
        status = dict(row.split(":\t") for row in (shell / "status").read_text().splitlines())
        # 32 and 33 belong to the C library, which lets nobody set them (nptl(7)): they are as this test got them.
        ours = ~(1 << 31 | 1 << 32)
        assert (int(status["SigBlk"], 16) & ours, int(status["SigIgn"], 16) & ours) == (0, 0)
    finally:
        os.killpg(int(shell.name), signal.SIGTERM)
    assert peer.answer() == (b"", b"", 128 + signal.SIGTERM)


def test_exec_passes_a_mebibyte_unchanged(start: Start, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "data").write_bytes(data)
    out, err, status = start().run(f"cat {tmp_path}/data")
    assert (hashlib.sha256(out).digest(), err, status) == (hashlib.sha256(data).digest(), b"", 0)


def test_exec_output_waits_for_a_slow_host(start: Start) -> None:
    # More than pipe and socket hold, read only when the command's end is long past its drain time.
    peer = start()
    peer.request("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; sleep 9 & head -c 400000 /dev/zero")
    time.sleep(0.3)
    out, err, status = peer.answer()
    assert (len(out), len(err), status) == (460000, 60000, 0)


def test_a_second_request_waits_for_the_first(start: Start) -> None:
    peer = start()
    peer.request("sleep 0.1; echo first; exit 1", "echo second; exit 2")
    assert peer.answer() == (b"first\n", b"", 1)
    assert peer.answer() == (b"second\n", b"", 2)


def test_a_request_may_arrive_in_pieces(start: Start) -> None:
    peer = start()
    for piece in (b"exec 1", b"1\necho pie", b"ces"):
        assert peer.quiet(0.05)
        os.write(peer.port, piece)
    assert peer.answer() == (b"pieces\n", b"", 0)


@pytest.mark.parametrize("request_line", ["exec 65537\n", "exec 1x\n", "exec\n", "run 3\n", "x" * 40])
def test_a_malformed_request_is_answered(start: Start, request_line: str) -> None:
    peer = start()
    os.write(peer.port, request_line.encode())
    assert peer.answer() == (b"", b"", 126)
    assert peer.run("echo well")[0] == b"well\n"


def test_background_children_do_not_hold_up_the_exit(start: Start) -> None:
    peer = start()
    output, errors, status = peer.run("sleep 600 & echo $! >&2; echo done; exit 3")
    assert (output, status) == (b"done\n", 3)
    assert (
        peer.run(f"kill -0 {int(errors)} && kill -9 {int(errors)}")[2] == 0
    )  # it still slept: nobody waited for it
    assert peer.run("yes & echo $! >&2")[2] == 0  # its endless output ends with its pipe


def test_the_port_may_be_a_character_device(agent: Path, space: Namespaces) -> None:
    host, guest = os.openpty()
    tty.setraw(guest)
    process = subprocess.Popen(space.inside(str(agent), os.ttyname(guest), "10", "none"))
    peer = Peer(process, host)
    try:
        assert peer.message() == ("hello 2", b"")
        assert peer.run("echo here") == (b"here\n", b"", 0)
    finally:
        process.kill()
        process.wait(SECONDS)
        os.close(host)
        os.close(guest)


def serve_one(listener: socket.socket, answer: bytes) -> bytes:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(SECONDS)
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(4096) or b"cut short\r\n\r\n"
        connection.sendall(answer)
    return request


def test_http_is_ready_with_the_first_correct_answer(start: Start, space: Namespaces) -> None:
    peer = start("http", str(PORT), "200", "/health?a=b")
    assert peer.quiet(0.05)  # no address, no beacon
    before = boottime()
    space.add_interface()
    begun = peer.beacon()
    assert before < begun < boottime()
    with space.bound_socket() as listener:
        assert peer.quiet(5 * INTERVAL_MS / 1000)  # refused
        listener.listen()
        request = serve_one(listener, b"HTTP/1.1 503 Not Yet\r\nRetry-After: 1\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert request.decode() == (
            f"GET /health?a=b HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: close\r\n"
            "User-Agent: quickstart-probe\r\n\r\n"
        )
        serve_one(listener, b"no HTTP at all\r\n\r\n")
        serve_one(listener, b"HTTP/1.1 2000 Near\r\n\r\n")
        serve_one(listener, b"")
        assert peer.quiet(0)
        before = boottime()
        serve_one(listener, b"HTTP/1.1 200 Fine Now\r\nContent-Length: 2\r\n\r\nok")
        stamp, text = peer.ready()
        assert before < stamp < boottime()
        assert text == "HTTP/1.1 200 Fine Now"
        listener.settimeout(5 * INTERVAL_MS / 1000)
        with pytest.raises(TimeoutError):  # the probe has ended
            listener.accept()


def test_a_silent_server_delays_neither_exec_nor_the_next_try(start: Start, space: Namespaces) -> None:
    space.add_interface()
    peer = start("http", str(PORT), "204", "/")
    peer.beacon()
    with space.bound_socket() as listener:
        listener.listen()
        with listener.accept()[0]:
            assert peer.run("echo meanwhile") == (b"meanwhile\n", b"", 0)
            serve_one(listener, b"HTTP/1.0 204\r\n\r\n")
        assert peer.ready()[1] == "HTTP/1.0 204"


def test_tcp_is_ready_with_the_first_connection(start: Start, space: Namespaces) -> None:
    space.add_interface()
    peer = start("tcp", str(PORT))
    begun = peer.beacon()
    with space.bound_socket() as listener:
        assert peer.quiet(5 * INTERVAL_MS / 1000)
        listener.listen()
        stamp, text = peer.ready()
        assert text == "connected" and begun < stamp < boottime()


@pytest.mark.parametrize("where", [(), ("loopback",)])
def test_loopback_is_asked_only_when_that_is_said(
    start: Start, space: Namespaces, where: tuple[str, ...]
) -> None:
    space.add_interface()
    peer = start(*where, "tcp", str(PORT))
    peer.beacon()
    with space.bound_socket("127.0.0.1") as listener:
        listener.listen()
        if where:
            assert peer.ready()[1] == "connected"
        else:
            assert peer.quiet(5 * INTERVAL_MS / 1000)


def test_loopback_http_waits_for_the_address_and_then_for_the_answer(start: Start, space: Namespaces) -> None:
    peer = start("loopback", "http", str(PORT), "200", "/")
    assert peer.quiet(5 * INTERVAL_MS / 1000)
    space.add_interface()
    peer.beacon()
    with space.bound_socket("127.0.0.1") as listener:
        listener.listen()
        # CUPS, for one, refuses a request on 127.0.0.1 for any other host.
        assert b"\r\nHost: 127.0.0.1\r\n" in serve_one(listener, b"HTTP/1.1 200 OK\r\n\r\n")
        assert peer.ready()[1] == "HTTP/1.1 200 OK"


def test_exec_is_ready_when_its_command_succeeds(start: Start, space: Namespaces, tmp_path: Path) -> None:
    space.add_interface()
    flag = tmp_path / "flag"
    peer = start("exec", f"echo noise; test -e {flag}")
    peer.beacon()
    assert peer.quiet(5 * INTERVAL_MS / 1000)
    flag.touch()
    assert peer.ready()[1] == "exit 0"


def test_the_guests_counters_follow_ready(start: Start, space: Namespaces, tmp_path: Path) -> None:
    space.add_interface()
    flag = tmp_path / "flag"
    peer = start("exec", f"test -e {flag}")
    peer.beacon()
    before = Path("/proc/stat").read_text().splitlines()[0].split()
    flag.touch()
    ready, _ = peer.ready()
    stamp, tsc, lines = peer.counters()
    after = Path("/proc/stat").read_text().splitlines()[0].split()
    assert ready < stamp < boottime()
    cpu, disks = lines[0].split(), lines[1:]
    assert (cpu[0], len(cpu)) == ("cpu", len(before))
    # User and system time only grow.
    assert all(int(before[at]) <= int(cpu[at]) <= int(after[at]) for at in (1, 3))
    known = [line.split()[:3] for line in Path("/proc/diskstats").read_text().splitlines()]
    found = [line.split() for line in disks]
    assert [words[:3] for words in found] == known[: len(found)]
    assert len(found) == len(known) or sum(len(line) + 1 for line in lines) > 3968 - 200
    assert all(len(words) >= 14 for words in found)
    assert tsc > 0 and peer.run("echo more")[0] == b"more\n"


def test_more_disks_than_a_message_holds_are_cut_at_a_line(agent: Path) -> None:
    """The prober sends one packet of a pipe: never more, never half a line."""
    script = (
        "mount -t tmpfs none /mnt && ip link set lo up && ip link add app0 type veth peer name app1 && "
        f"ip link set app1 up && ip link set app0 up && ip address add {ADDRESS}/24 dev app0 && "
        "for n in $(seq 100); do echo 7 $n loop$n 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; done >/mnt/disks && "
        'mount --bind /mnt/disks /proc/diskstats && exec "$0" "$1" 10 exec true'
    )
    host, guest = os.openpty()
    tty.setraw(guest)
    command = ["unshare", "-nmpf", "--kill-child", "--mount-proc", "sh", "-c", script, str(agent)]
    process = subprocess.Popen([*command, os.ttyname(guest)])
    peer = Peer(process, host)
    try:
        assert peer.message() == ("hello 2", b"")
        peer.beacon()
        peer.ready()
        lines = peer.counters()[2]
        assert 3968 - 100 < sum(len(line) + 1 for line in lines) <= 3968
        assert [line.split()[-1] for line in lines[1:]] == ["17"] * (len(lines) - 1)
        assert peer.run("echo whole")[0] == b"whole\n"
    finally:
        process.kill()
        process.wait(SECONDS)
        os.close(host)
        os.close(guest)


def test_on_a_console_it_says_all_and_ends(agent: Path) -> None:
    """As in EC2, where nobody answers it. A line of the console begins with a word of its own."""
    script = (
        "mount -t tmpfs none /mnt && mknod /mnt/null c 1 3 && : >/mnt/console && mount --bind $1 /mnt/console && "
        f"ip link set lo up && ip link add app0 type veth peer name app1 && ip address add {ADDRESS}/24 dev app0 && "
        'ip link set app1 up && ip link set app0 up && mount --rbind /mnt /dev && exec "$0" console 10 exec "$2"'
    )
    host, guest = os.openpty()
    # Not ready before the first message has come.
    with tempfile.NamedTemporaryFile() as wait:
        command = ["unshare", "-nmpf", "--kill-child", "--mount-proc", "sh", "-c", script, str(agent)]
        ready = f"test ! -e {wait.name}"
        process = subprocess.Popen([*command, os.ttyname(guest), ready])
        said = b""
        try:
            while b"beacon" not in said:
                said += os.read(host, 1 << 16)
            Path(wait.name).rename(f"{wait.name}.gone")
            while spoken(said.decode()) is None:
                said += os.read(host, 1 << 16)
        finally:
            Path(f"{wait.name}.gone").rename(wait.name)
            ended = process.wait(SECONDS)
            os.close(host)
            os.close(guest)
    assert ended == 0
    found = spoken(said.decode())
    assert found is not None
    beacon, stamp, counters = found
    assert (beacon.interface, beacon.address, stamp.answer) == ("app0", ADDRESS, "exit 0")
    assert 0 < beacon.uptime_ns <= stamp.uptime_ns <= counters.uptime_ns
    assert counters.text.startswith("cpu ")


def test_sigterm_ends_it_and_other_signals_do_not(start: Start, space: Namespaces) -> None:
    space.add_interface()
    peer = start("tcp", str(PORT))
    peer.beacon()
    children = Path(f"/proc/{peer.process.pid}/task/{peer.process.pid}/children")
    (probe,) = children.read_text().split()
    peer.process.send_signal(signal.SIGHUP)
    peer.process.send_signal(signal.SIGPIPE)
    assert peer.run("echo alive")[0] == b"alive\n"
    peer.process.terminate()
    assert peer.process.wait(SECONDS) == 0
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{probe}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not Path(f"/proc/{probe}/exe").exists()


def test_a_host_that_hung_up_is_waited_for_without_spinning(start: Start) -> None:
    peer = start()
    socket.socket(fileno=os.dup(peer.port)).shutdown(socket.SHUT_RDWR)
    usage = Path(f"/proc/{peer.process.pid}/schedstat")
    turns = int(usage.read_text().split()[2])
    time.sleep(0.3)
    assert peer.process.poll() is None
    assert int(usage.read_text().split()[2]) - turns < 20


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            "p",
            "p 10",
            "p 0 none",
            "p 10 tcp 65536",
            "p 10 mysql 3306",
            "p 10 mysql 0 x",
            "p 10 http 80 20 /",
            "p 10 http 80 200 x",
            "p 10 other",
        ),
        *("p 10 loopback", "p 10 loopback none", "p 10 loopback exec true"),
    ],
)
def test_malformed_arguments_end_with_status_2(agent: Path, arguments: str) -> None:
    done = subprocess.run([agent, *arguments.split()], capture_output=True, timeout=SECONDS)
    assert done.returncode == 2 and done.stderr.startswith(b"quickstart-agent: ")


def test_without_proc_it_ends_with_status_2(agent: Path) -> None:
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc; "$0" p 10 none', str(agent)]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    assert done.returncode == 2 and b"not mounted" in done.stderr
