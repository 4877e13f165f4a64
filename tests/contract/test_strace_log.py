"""The parser understands the log of this host's strace(1)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from quickstart.host.assets import assets
from quickstart.model import Op
from quickstart.trace.events import Asked, Blind, Born, Seen, read_events

# The directory's own relative program, a link's target by "..", a failed open, a redirection in a subshell, a non-ASCII name.
SCRIPT = """
cd sub
./tool
cat one ../link nofile
(cat <two | cat)
cat 'caf\u00e9 "x"' 2>/dev/null >new
mv new newer
"""


def tracer_options() -> list[str]:
    """The options of our own tracer, less those that concern its place in a guest."""
    text = (assets("tracers") / "strace-init").read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("exec ")]
    words = line.split()
    options = words[words.index("./strace") + 1 : words.index("-o")]
    return [word for word in options if word not in ("-DDD", "-I2")]


def record(tree: Path, log: Path, *argv: str) -> None:
    tool = shutil.which("strace")
    if tool is None:
        pytest.fail("strace is not installed: apt-get install strace")
    done = subprocess.run(
        [tool, *tracer_options(), "-o", log, *argv],
        cwd=tree,
        env={"PATH": "/usr/sbin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert log.stat().st_size > 0, done.stderr.decode()


@dataclass
class Recorded:
    """All that a log says."""

    born: list[Born]
    seen: list[Seen]
    blind: list[Blind]

    def below(self, tree: Path, op: Op, error: str | None = None) -> set[str]:
        """Paths in the tree of these events, as spelled below it."""
        paths = {PurePosixPath(e.path) for e in self.seen if e.op is op and e.error == error}
        return {str(path.relative_to(tree)) for path in paths if path.is_relative_to(tree)}


def read(log: Path) -> Recorded:
    with log.open("rb") as file:
        items = list(read_events(file))
    return Recorded(
        [item for item in items if isinstance(item, Born)],
        [item for item in items if isinstance(item, Seen)],
        [item for item in items if isinstance(item, Blind)],
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree").resolve()
    (tree / "sub").mkdir()
    (tree / "sub/tool").write_text("#!/bin/sh\nread -r line <deep || :\n")
    (tree / "sub/tool").chmod(0o755)
    for name in ("sub/one", "sub/two", "sub/deep", 'sub/caf\u00e9 "x"', "target"):
        (tree / name).write_text("x\n")
    (tree / "link").symlink_to("target")
    return tree


@pytest.fixture(scope="module")
def recorded(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    log = tmp_path_factory.mktemp("log") / "strace.log"
    record(tree, log, "sh", "-c", SCRIPT)
    return read(log)


def test_the_opened_files(recorded: Recorded, tree: Path) -> None:
    assert recorded.below(tree, Op.OPEN) == {
        "sub/tool",
        "sub/deep",
        "sub/one",
        "sub/../link",
        "sub/two",
        'sub/caf\u00e9 "x"',
    }
    assert recorded.below(tree, Op.OPEN, "ENOENT") == {"sub/nofile"}


def test_the_written_files(recorded: Recorded, tree: Path) -> None:
    assert {"sub/new", "sub/newer"} <= recorded.below(tree, Op.WRITE)
    made = {Path(e.path).name for e in recorded.seen if e.makes and Path(e.path).is_relative_to(tree)}
    assert made == {"new", "newer"}


def test_the_executed_files(recorded: Recorded, tree: Path) -> None:
    assert recorded.below(tree, Op.EXEC) == {"sub/tool"}


def test_what_is_mapped_to_be_executed(recorded: Recorded) -> None:
    mapped = {Path(e.path).name for e in recorded.seen if e.op is Op.MAP}
    assert "libc.so.6" in mapped
    assert "ld.so.cache" not in mapped


def test_the_processes(recorded: Recorded, tree: Path) -> None:
    (root,) = [each for each in recorded.born if each.parent == 0]
    (tool,) = [e for e in recorded.seen if e.op is Op.EXEC and e.path == f"{tree}/sub/tool"]
    assert {each.number: each.parent for each in recorded.born}[tool.number] == root.number
    names = sorted(Path(e.path).name for e in recorded.seen if e.op is Op.EXEC and e.error is None)
    assert names == ["cat", "cat", "cat", "cat", "mv", "sh", "tool"]


def test_a_list_of_a_directory(tree: Path, tmp_path: Path) -> None:
    record(tree, tmp_path / "log", "ls", "sub")
    assert "sub" in read(tmp_path / "log").below(tree, Op.LIST)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    tree = (tmp_path / "tree").resolve()
    tree.mkdir()
    names = [b"new\nline", b"back\\slash", b"a<b>c", b"\xff\xfe7", b"tab\t8"]
    for name in names:
        (tree / os.fsdecode(name)).write_text("x")
    record(tree, tmp_path / "log", "sh", "-c", "cat *")
    found = read(tmp_path / "log").below(tree, Op.OPEN) - {"."}
    assert found == {os.fsdecode(name) for name in names}


def test_a_changed_root_and_namespaces(tree: Path, tmp_path: Path) -> None:
    """chroot, pivot_root and a PID namespace (as root)."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.fail("busybox is not installed: apt-get install busybox-static")
    jail = tree / "jail"
    (jail / "put").mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, jail / "busybox")
    (jail / "word").write_text("x\n")
    # pivot_root(2) by its number; Python stays the same process, as systemd's child does.
    (tmp_path / "pivot.py").write_text(
        f"import ctypes, os\nos.chdir('{jail}')\n"
        "assert ctypes.CDLL(None).syscall(155, b'.', b'put') == 0\nopen('/./word')\n"
    )
    script = f"""
chroot {jail} /busybox cat /word /../word
unshare --mount --pid --fork sh -c 'mount --bind {jail} {jail} && {sys.executable} {tmp_path}/pivot.py'
"""
    record(tree, tmp_path / "log", "sh", "-c", script)
    found = read(tmp_path / "log")
    words = [e.path for e in found.seen if e.op is Op.OPEN and e.path.endswith("word") and e.error is None]
    assert [str(PurePosixPath(path)) for path in words] == [f"{jail}/word"] * 3
    assert len([each for each in found.born if each.parent == 0]) == 1


def test_an_io_uring_is_noted(tree: Path, tmp_path: Path) -> None:
    # io_uring_setup(2) by its number; the argument is 120 bytes of zeros.
    code = "import ctypes; ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))"
    record(tree, tmp_path / "log", sys.executable, "-c", code)
    assert len(read(tmp_path / "log").blind) == 1


def test_the_use_of_the_network_is_noted(tree: Path, tmp_path: Path) -> None:
    """The addresses, by rtnetlink(7) and by netdevice(7), a connection, a socket of one address, a group of multicast and a
    datagram; a local socket and a terminal do not count.
    """
    code = """
import fcntl, socket
def tried(call, *words):
    try:
        call(*words)
    except OSError:
        pass
socket.if_nameindex()
local = socket.socket(socket.AF_UNIX)
local.connect_ex("/nowhere")
packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
packets.connect_ex(("127.0.0.1", 9))
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
try:
    fcntl.ioctl(packets, 0x8915, b"lo".ljust(40, b"\\0"))
except OSError:
    pass
packets.connect_ex(("192.0.2.1", 9))
for family, addresses in (
    (socket.AF_INET, ("127.0.0.1", "0.0.0.0", "192.0.2.1")),
    (socket.AF_INET6, ("::1", "::", "2001:db8::1")),
):
    for address in addresses:
        tried(socket.socket(family).bind, (address, 0))
        tried(socket.socket(family, socket.SOCK_DGRAM).sendto, b"x", (address, 9))
group = socket.inet_aton("224.0.0.251") + socket.inet_aton("192.0.2.1")
tried(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
"""
    record(tree, tmp_path / "log", sys.executable, "-c", code)
    with (tmp_path / "log").open("rb") as file:
        asked = [item for item in read_events(file) if isinstance(item, Asked)]
    # if_nameindex(3) asks as well.
    assert len(asked) == 9


# ---------------------------------------------------------------- size

PEAK = """
import resource, sys
from tests.contract.test_strace_log import long_log
from quickstart.trace.collect import collect
found = collect(long_log(int(sys.argv[1]), int(sys.argv[2])), "app.service")
print(len(found.events), found.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def long_log(processes: int, files: int) -> Iterator[bytes]:
    """A log in which the unit's master starts so many workers one after the other, each of which opens so many files."""
    yield b'1 1.0 execve("/sbin/init", ["init"], 0x1 /* 0 vars */) = 0\n'
    yield b"1 1.0 fork() = 2\n"
    yield b'2 1.0 openat(AT_FDCWD</>, "/sys/fs/cgroup/app.service/cgroup.procs", O_WRONLY) = 3</x>\n'
    yield b'2 1.0 execve("/usr/bin/app", ["app"], 0x1 /* 0 vars */) = 0\n'
    for pid in range(3, processes + 3):
        # Every other child does its first calls before its parent's fork is logged.
        fork = b"2 1.0 clone(child_stack=NULL, flags=SIGCHLD) = %d\n" % pid
        if pid % 2:
            yield fork
        for number in range(files):
            name = b"/usr/share/app/%d" % (number % 500)
            yield b'%d 1.0 openat(AT_FDCWD</srv>, "%b", O_RDONLY|O_CLOEXEC <unfinished ...>\n' % (pid, name)
            yield b"%d 1.0 <... openat resumed>) = 3<%b>\n" % (pid, name)
            if number == 10 and not pid % 2:
                yield fork
        yield b"%d 1.0 +++ exited with 0 +++\n" % pid


def peak(processes: int, files: int) -> tuple[int, int, int]:
    """Events and lines found in a long log, and what that took at its peak (KiB), in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(processes), str(files)], capture_output=True, check=True, timeout=300
    )
    events, lines, peak_kib = (int(word) for word in done.stdout.split())
    return events, lines, peak_kib


def test_ten_times_the_log_takes_no_more_memory() -> None:
    """A hundred thousand lines of a thousand processes; a million of ten thousand."""
    short, long = peak(1000, 50), peak(10_000, 50)
    assert (short[0], long[0]) == (51, 51)
    assert (short[1] > 100_000, long[1] > 1_000_000) == (True, True)
    # What a process ID costs is left; the events of the lines alone would take some hundred MiB.
    assert long[2] - short[2] < 8 * 1024
