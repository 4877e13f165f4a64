"""Parse the guest kernel's own trace of a boot, to find which process caused which request to the root volume (pure).
The options that enable the trace are in verify/ftrace.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from quickstart.errors import GuestError
from quickstart.host.descriptors import Descriptors
from quickstart.parse.bounded import PATH_MAX
from quickstart.verify.ftrace import DIRECT, FAULT, NAME

# A process's name has at most 15 bytes (TASK_COMM_LEN). A process can put any bytes into its name and into the names of its files.
_LINE = re.compile(r"(.{1,16}?)-([0-9]{1,10})\s++\[[0-9]+\]\s++(?:\S++\s++)?([0-9]{1,10})\.([0-9]{6}): (.*)")
_CALL = re.compile(r"sys_(\w+)\((.*)\)")
_RETURN = re.compile(r"sys_(\w+) -> (?:0x([0-9a-f]{1,16})|(-?[0-9]{1,18}))")
_NAMED = re.compile(rf'{NAME}[2-5]?: \([^)]*+\) name="(.*)"', re.DOTALL)
_FORK = re.compile(
    r"sched_process_fork: comm=.{0,16} pid=[0-9]{1,10} child_comm=.{0,16} child_pid=([0-9]{1,10})"
)
# block_bio_queue: 254,0 RA 16 + 8 [init]; block_rq_issue: 254,0 RA 4096 () 16 + 8 [init]. Since Linux 6.11, the latter also has the
# request's priority: 16 + 8 none,0,0 [init]
_BIO = re.compile(r"block_bio_queue: [0-9]+,[0-9]+ (\w+) ([0-9]{1,18}) \+ ([0-9]{1,10}) \[")
_ISSUE = re.compile(
    r"block_rq_issue: [0-9]+,[0-9]+ (\w+) [0-9]+ \([^)]*+\) ([0-9]{1,18}) \+ ([0-9]{1,10}) "
    r"(?:[a-z]{1,16},[0-9]{1,5},[0-9]{1,5} )?\["
)
_DROPPED = re.compile(r"^(?:overrun|dropped events): ([0-9]{1,18})$", re.MULTILINE)
# The kernel formats a line in a single page.
MAX_LINE = 8192
# Limits for lines, of which the guest's usual buffer has some 400,000, and for what is remembered: processes,
# descriptors, requests and uses. (A boot of nginx has 1500 of these, and one of RabbitMQ 68,000.)
_MOST_LINES, _MOST_FACTS = 1 << 20, 1 << 17
# The memory of the paths, because a path of thousands of components has an object for each component.
_MOST_BYTES = 128 << 20
_BYTES_OF_A_PATH, _BYTES_OF_A_CHARACTER = 256, 12
# What names a path writes it once more, with at most six characters for a byte (JSON).
_BYTES_OF_A_NAME, _BYTES_OF_ITS_CHARACTER = 256, 6
# A piece that waits longer never becomes a request: it is for another device, or was cancelled. (nginx: at most 34.)
_MAX_WAITING = 256
_ROOT = PurePosixPath("/")
_ERRNO_MAX = 4095
_ENOENT = 2
_AT_FDCWD = 0xFFFFFF9C
# The agent asks whether the guest is ready (docs/internals/agent.md). Its root stays the initramfs.
_AGENT = "agent"
_OPENING = frozenset({"open", "openat", "openat2", "creat"})
# The first argument of these calls is a descriptor of the file that they work on.
_BY_DESCRIPTOR = frozenset(
    (
        *("read", "pread64", "readv", "preadv", "write", "pwrite64", "writev", "getdents64", "getdents"),
        *("fstat", "newfstat", "mmap", "fsync", "fdatasync", "fadvise64", "readahead", "sendfile64"),
        *("copy_file_range", "ftruncate", "fallocate"),
    )
)
_LISTING = frozenset({"getdents", "getdents64"})
_EXECUTING = frozenset({"execve", "execveat"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """The process and the system call for which the kernel made a request. ``path`` is the file on which the
    call works, or None when it is not known. ``direct`` says that the call bypassed the page cache (O_DIRECT).

    ``prober`` says that the process belongs to the readiness command, not to the application. (A profile can have a
    command as its readiness request.) ``call`` is ``page fault`` if an access to a mapped page caused the request.
    ``call`` is empty for a kernel thread, and for work that the kernel does after a call has returned.
    """

    time_ns: int
    pid: int
    program: str
    call: str
    path: PurePosixPath | None
    direct: bool = False
    prober: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """A request that the kernel passed to the driver. A sector has 512 bytes. The kernel may combine parts for several
    processes into one request. ``askers`` are these processes with their system calls.

    ``ahead`` says that the request is read-ahead by the kernel, so no process waits for the request.
    """

    time_ns: int
    writes: bool
    ahead: bool
    sector: int
    sectors: int
    askers: tuple[Asker, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """The use of a path by a process. ``what`` is ``failed`` (ENOENT), ``listed``, ``opened`` or
    ``executed``.

    ``path`` is the path in the process's own root directory. ``on_volume`` says that this directory was the
    root of the root volume.
    """

    time_ns: int
    pid: int
    program: str
    call: str
    what: str
    path: PurePosixPath
    on_volume: bool


@dataclass(frozen=True)
class GuestTrace:
    """The content of the guest kernel's trace of a boot. ``lost`` is the number of dropped entries.
    ``ends_ns`` is the time of the last entry.
    """

    issued: tuple[Issued, ...]
    uses: tuple[Use, ...]
    lost: int
    ends_ns: int


@dataclass(kw_only=True)
class _Process:
    """The state of one process or thread at one moment, as far as the trace shows it."""

    call: str = ""
    arguments: str = ""
    name: str | None = None
    faulted: bool = False
    direct: bool = False
    on_volume: bool = False
    prober: bool = False
    directory: PurePosixPath = _ROOT
    files: Descriptors[PurePosixPath] = field(default_factory=Descriptors)


def parse(lines: Iterable[str], stats: str) -> GuestTrace:
    """The trace in the output of FETCH, a shell command that the guest runs when it is ready. The command's stdout has
    ``lines``, and its stderr is ``stats``. Lines about events that this module does not know are ignored.

    Raises GuestError when the trace is larger than the trace of any real boot. A hostile guest may send a trace of this
    size.
    """
    reader = _Reader()
    for number, line in enumerate(lines):
        if number >= _MOST_LINES or reader.facts > _MOST_FACTS:
            raise GuestError(
                f"the guest's trace has more than {_MOST_LINES} lines, or {_MOST_FACTS} processes, files and requests"
            )
        if reader.used_bytes > _MOST_BYTES:
            raise GuestError(f"the paths in the guest's trace take more than {_MOST_BYTES} bytes of memory")
        if line.startswith("#") or len(line) > MAX_LINE:
            continue
        if found := _LINE.fullmatch(line.strip()):
            time_ns = int(found[3]) * 10**9 + int(found[4]) * 1000
            reader.take(time_ns, found[1], int(found[2]), found[5])
    lost = sum(int(count) for count in _DROPPED.findall(stats))
    return GuestTrace(tuple(reader.issued), tuple(reader.uses), lost, reader.time_ns)


# Whether the piece is a write, its first sector, its number of sectors, and the process that requested it.
_Piece = tuple[bool, int, int, Asker]


class _Reader:
    def __init__(self) -> None:
        self.issued: list[Issued] = []
        self.uses: list[Use] = []
        self.time_ns = 0
        self._processes: dict[int, _Process] = {}
        # Pieces of requests that have not been issued yet.
        self._waiting: list[_Piece] = []
        self._descriptors = 0
        # Each path once. A boot uses most paths many times.
        self._paths: dict[str, PurePosixPath] = {}
        self.used_bytes = 0

    @property
    def facts(self) -> int:
        """The number of processes, descriptors, requests and uses that the reader keeps in memory."""
        return len(self._processes) + self._descriptors + len(self.issued) + len(self.uses)

    def take(self, time_ns: int, program: str, pid: int, said: str) -> None:
        self.time_ns = max(self.time_ns, time_ns)
        process = self._processes.setdefault(pid, _Process())
        if found := _RETURN.fullmatch(said):
            value = int(found[2], 16) if found[2] else int(found[3])
            self._return(
                time_ns, program, pid, process, found[1], value - (1 << 64) if value >> 63 else value
            )
        elif found := _CALL.fullmatch(said):
            process.call, process.arguments = found[1], found[2]
            process.name, process.faulted, process.direct = None, False, False
        elif found := _NAMED.fullmatch(said):
            process.name = found[1]
        elif said.startswith(DIRECT):
            process.direct = True
        elif said.startswith(FAULT):
            process.faulted = True
        elif found := _FORK.fullmatch(said):
            self._fork(program, process, int(found[1]))
        elif found := _BIO.match(said):
            asker = self._asker(time_ns, program, pid, process)
            self._waiting.append((_writes(found[1]), int(found[2]), int(found[3]), asker))
            if len(self._waiting) > 2 * _MAX_WAITING:
                del self._waiting[:_MAX_WAITING]
        elif found := _ISSUE.match(said):
            self._issue(time_ns, found[1], int(found[2]), int(found[3]))

    def _fork(self, program: str, parent: _Process, child: int) -> None:
        # A thread shares its parent's descriptors; a process gets a copy. glibc uses clone3 for threads, but also for the child of
        # posix_spawn, which executes a program at once (`_note`).
        files = parent.files if parent.call == "clone3" else parent.files.copy()
        prober = parent.prober or (program == _AGENT and not parent.on_volume)
        self._processes[child] = _Process(
            on_volume=parent.on_volume, prober=prober, directory=parent.directory, files=files
        )

    def _issue(self, time_ns: int, flags: str, sector: int, sectors: int) -> None:
        writes = _writes(flags)
        pieces: list[_Piece] = []
        others: list[_Piece] = []
        for piece in self._waiting:
            overlaps = piece[0] == writes and piece[1] < sector + sectors and sector < piece[1] + piece[2]
            (pieces if overlaps else others).append(piece)
        # The kernel splits a piece that is too large. The rest of it waits for a later request.
        for each in pieces:
            if each[1] + each[2] > sector + sectors:
                end = each[1] + each[2]
                others.append((writes, sector + sectors, end - sector - sectors, each[3]))
        self._waiting = others
        askers = {(a.pid, a.call, a.path, a.direct): a for a in reversed([piece[3] for piece in pieces])}
        for asker in askers.values():
            self._count(asker.path)
        self.issued.append(
            Issued(
                time_ns=time_ns,
                writes=writes,
                ahead="A" in flags,
                sector=sector,
                sectors=sectors,
                askers=tuple(reversed(askers.values())),
            )
        )

    def _asker(self, time_ns: int, program: str, pid: int, process: _Process) -> Asker:
        call = process.call or ("page fault" if process.faulted else "")
        return Asker(
            time_ns=time_ns,
            pid=pid,
            program=program,
            call=call,
            path=self._subject(process),
            direct=process.direct,
            prober=process.prober,
        )

    def _subject(self, process: _Process) -> PurePosixPath | None:
        """The file of the call in progress: the last path among its arguments, or the file behind its descriptor."""
        if process.name is not None:
            return self._absolute(process, process.name)
        if process.call in _BY_DESCRIPTOR:
            return process.files.get(_descriptor(process))
        return None

    def _absolute(self, process: _Process, name: str) -> PurePosixPath | None:
        """``name`` as an absolute path. The result is None when the path would be longer than PATH_MAX. Further paths
        relative to this path would be even longer.
        """
        base = process.directory
        if (
            process.call.endswith(("at", "at2", "statx", "newfstatat"))
            and (fd := _number(process, "dfd")) is not None
        ):
            base = process.files.get(fd) or base if fd != _AT_FDCWD else base
        path = _plain(base / name)
        text = str(path)
        if len(text) >= PATH_MAX:
            return None
        if text not in self._paths:
            self._paths[text] = path
            self.used_bytes += _BYTES_OF_A_PATH + _BYTES_OF_A_CHARACTER * len(text)
        return self._paths[text]

    def _count(self, path: PurePosixPath | None) -> None:
        """Count the memory of one more use of a path, or of one more asker."""
        self.used_bytes += _BYTES_OF_A_NAME + _BYTES_OF_ITS_CHARACTER * len(str(path or ""))

    def _return(self, time_ns: int, program: str, pid: int, process: _Process, call: str, value: int) -> None:
        if call == process.call:
            self._note(time_ns, program, pid, process, value)
        process.call, process.arguments = "", ""
        process.name, process.faulted, process.direct = None, False, False

    def _note(self, time_ns: int, program: str, pid: int, process: _Process, value: int) -> None:
        call, path = process.call, self._subject(process)
        worked = not -_ERRNO_MAX <= value < 0
        if call == "fchdir" and worked:
            process.directory = process.files.get(_descriptor(process)) or process.directory
        if path is None:
            return
        what = ""
        if not worked:
            what = "failed" if value == -_ENOENT and process.name is not None else ""
        elif call in _OPENING:
            process.files.set(value, path)
            self._descriptors += 1
            what = "opened"
        elif call in _EXECUTING:
            what = "executed"
            # After execve(2), the process no longer shares its descriptors with another process.
            process.files = process.files.copy()
        elif call in _LISTING:
            what = "listed"
        elif call == "chdir":
            process.directory = path
        elif call == "chroot":
            process.on_volume, process.directory = True, PurePosixPath("/")
        if what:
            self._count(path)
            self.uses.append(
                Use(
                    time_ns=time_ns,
                    pid=pid,
                    program=program,
                    call=call,
                    what=what,
                    path=path,
                    on_volume=process.on_volume,
                )
            )


def _writes(flags: str) -> bool:
    """Whether the letters of blktrace (RWBS) in ``flags`` mean a write. R stands for a read, W for a write,
    and N for a request that has no letter, such as write zeroes.
    """
    return "R" not in flags


def _number(process: _Process, argument: str) -> int | None:
    found = re.search(rf"\b{argument}: ([0-9a-f]{{1,16}})", process.arguments)
    return int(found[1], 16) if found else None


def _descriptor(process: _Process) -> int:
    """The descriptor that the call in progress uses: the value of the argument ``fd``, or ``in_fd`` for sendfile64. The
    result is -1 when the call has no such argument.
    """
    fd = _number(process, "in_fd") if process.call == "sendfile64" else _number(process, "fd")
    return -1 if fd is None else fd


def _plain(path: PurePosixPath) -> PurePosixPath:
    """``path`` without the components ``.`` and ``..``. ftrace reports a path in the form that the process used, which
    may have such components.
    """
    if ".." not in path.parts and path.root == "/":
        return path
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return PurePosixPath("/", *parts)


def volume_paths(uses: Iterable[Use]) -> Iterator[tuple[Use, PurePosixPath]]:
    """Yield each use of a path on the root volume, with the path as seen from the root directory of the volume. Paths
    below /proc, /fast and similar directories, and files of the initramfs, are left out.
    """
    for use in uses:
        path = use.path
        if not use.on_volume:
            if path.parts[1:2] != ("newroot",):
                continue
            path = PurePosixPath("/", *path.parts[2:])
        if path.parts[1:2] not in {(name,) for name in ("proc", "sys", "dev", "run", "fast")}:
            yield use, path
