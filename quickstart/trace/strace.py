"""The log of `strace -f -y -ttt` as calls, then as events and a process tree (pure; strace(1), "The output").

The log is read as a stream of lines. A line that is none of strace's, or a last line that is cut, is a TraceError with its number:
a start set from half a log would silently miss files.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from quickstart.errors import TraceError
from quickstart.model import Event, Op, Process

_LINE = re.compile(r"^(\d+) +\d+\.\d+ (.*)$", re.DOTALL)
_CALL = re.compile(
    r"^([\w?]+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)(?:<((?:[^>\\]|\\.)*)>)?(?: (E[A-Z0-9]+))?.*$", re.DOTALL
)
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.DOTALL)
_UNFINISHED = re.compile(r"^([\w?]+)\((.*?) ?<(?:unfinished|detached) \.\.\.>$", re.DOTALL)
_EXIT = re.compile(r"^\+\+\+ (?:exited with|killed by|superseded by) .*\+\+\+$")
_SIGNAL = re.compile(r"^--- .* ---$")
_PATH = re.compile(r'(?:(?:AT_FDCWD|-?\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_FD = re.compile(r"(?:AT_FDCWD|-?\d+)<((?:[^>\\]|\\.)*)>")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_DELETED = " (deleted)"

_FORKS = frozenset({"clone", "clone3", "fork", "vfork"})
_OPENS = frozenset({"open", "openat", "openat2", "creat"})
_EXECS = frozenset({"execve", "execveat"})
# Calls that name two paths, both of which count.
_TWO_PATHS = frozenset({"rename", "renameat", "renameat2", "link", "linkat"})
# Calls whose first string is text, not a path to look up.
_TEXT_FIRST = frozenset({"symlink", "symlinkat", "mount"})
_CHANGES = frozenset(
    {
        *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat"),
        *("mknod", "mknodat", "unlink", "unlinkat", "rmdir", "truncate", "chmod", "fchmodat", "fchmodat2"),
        *("chown", "lchown", "fchownat", "utime", "utimes", "utimensat", "futimesat"),
        *("setxattr", "lsetxattr", "removexattr", "lremovexattr"),
    }
)
_WRITE_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")


@dataclass(frozen=True, slots=True)
class Call:
    """One finished system call; ``result`` is what it returned, ``result_path`` what -y says of a returned descriptor."""

    line: int
    pid: int
    name: str
    arguments: str
    result: str
    result_path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A process's end."""

    line: int
    pid: int


def read_calls(lines: Iterable[bytes]) -> Iterator[Call | Ended]:
    """The calls of a log in the order of their ends, "unfinished" and "resumed" halves joined.

    Raises TraceError with the line's number. Calls cut off by strace's own end (`<detached ...>`) did not
    return: they are left out.
    """
    begun: dict[int, tuple[str, str]] = {}
    for number, raw in enumerate(lines, 1):
        if not raw.endswith(b"\n"):
            raise TraceError(f"the strace log is cut in line {number}")
        match = _LINE.match(os.fsdecode(raw[:-1]))
        if match is None:
            raise _garbled(number, raw)
        pid, text = int(match[1]), match[2]
        if half := _RESUMED.match(text):
            name, head = begun.pop(pid, ("", ""))
            if name != half[1]:
                raise TraceError(
                    f"line {number} of the strace log resumes {half[1]}, which process {pid} did not begin"
                )
            text = f"{name}({head}{half[2]}"
        if open_half := _UNFINISHED.match(text):
            begun[pid] = (open_half[1], open_half[2])
        elif call := _CALL.match(text):
            # "?": the process ended in the call, or strace could not ask any more.
            error = call[5] or ("?" if call[3] == "?" else None)
            yield Call(number, pid, call[1], call[2], call[3], _decode(call[4] or ""), error)
        elif _EXIT.match(text):
            begun.pop(pid, None)
            yield Ended(number, pid)
        elif not _SIGNAL.match(text):
            raise _garbled(number, raw)


def _garbled(number: int, raw: bytes) -> TraceError:
    return TraceError(f"line {number} of the strace log is not strace's: {raw[:120]!r}")


def _decode(text: str) -> str:
    """A quoted string or path as strace prints it, unescaped; bytes that are no UTF-8 become surrogates."""
    if "\\" not in text:
        return text
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(os.fsencode(text[end : match.start()]))
        code = match[1]
        parts.append(
            bytes([int(code, 8) & 0xFF]) if code[0] in "01234567" else _CONTROL.get(code, code).encode()
        )
        end = match.end()
    parts.append(os.fsencode(text[end:]))
    return os.fsdecode(b"".join(parts))


@dataclass
class _Task:
    """A process while the log is read; ``guesses`` are its events whose path rests on "/" as the directory it began in."""

    pid: int
    parent: int = 0
    cwd: str = "/"
    cwd_is_guess: bool = True
    guesses: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ParsedLog:
    """All events in order, and the processes by a number that no other process of the log has.

    ``Event.pid`` and ``Process.parent`` are such numbers: a process ID may come back, a number does not.
    """

    events: tuple[Event, ...]
    processes: dict[int, Process]
    lines: int


def parse(lines: Iterable[bytes]) -> ParsedLog:
    """Read a whole log; raises TraceError for a damaged one, or one without PID 1's first exec."""
    reader = _Reader()
    for item in read_calls(lines):
        reader.lines = item.line
        if isinstance(item, Ended):
            reader.end(item.pid)
        else:
            reader.call(item)
    if not reader.events:
        raise TraceError("the strace log is empty")
    commands: dict[int, list[PurePosixPath]] = {number: [] for number in reader.tasks}
    for event in reader.events:
        if event.op is Op.EXEC and event.error is None:
            commands[event.pid].append(event.path)
    processes = {
        number: Process(task.pid, task.parent, tuple(commands[number]), in_unit=False)
        for number, task in reader.tasks.items()
    }
    return ParsedLog(tuple(reader.events), processes, reader.lines)


class _Reader:
    """Folds calls into events and tasks."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tasks: dict[int, _Task] = {}
        self.lines = 0
        self._current: dict[int, int] = {}
        self._orphans: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def _number(self, pid: int) -> int:
        if pid not in self._current:
            self._current[pid] = number = next(self._numbers)
            self.tasks[number] = _Task(pid)
        return self._current[pid]

    def end(self, pid: int) -> None:
        number = self._current.pop(pid, None)
        if number is not None and not self.tasks[number].parent:
            # Its parent's clone may be written after the child's whole life.
            self._orphans[pid] = number

    def call(self, call: Call) -> None:
        number = self._number(call.pid)
        task = self.tasks[number]
        if call.name in _FORKS:
            self._fork(number, call)
            return
        for path, guess in _paths(call, task):
            self._add(call, number, task, path, guess)
        if call.error is None:
            self._follow(call, task)

    def _fork(self, parent: int, call: Call) -> None:
        if not call.result.isdigit() or call.result == "0":
            return
        pid = int(call.result)
        orphan = None if pid in self._current else self._orphans.pop(pid, None)
        child = self.tasks[orphan if orphan is not None else self._number(pid)]
        child.parent = parent
        base = self.tasks[parent].cwd
        # With vfork the child has executed its program, perhaps by a relative path, when the parent's call returns.
        for index in child.guesses:
            event = self.events[index]
            self.events[index] = replace(event, path=_spelled(_join(base, str(event.path)[1:])))
        child.guesses.clear()
        if child.cwd_is_guess:
            child.cwd, child.cwd_is_guess = _join(base, child.cwd[1:]), False

    def _add(self, call: Call, number: int, task: _Task, path: str, guess: bool) -> None:
        if not path.startswith("/"):
            return
        if guess:
            task.guesses.append(len(self.events))
        self.events.append(Event(call.line, number, _operation(call), _spelled(path), call.error))

    def _follow(self, call: Call, task: _Task) -> None:
        if call.name == "chdir" and (match := _PATH.match(call.arguments)):
            path = _decode(match[2])
            task.cwd = _join(task.cwd, path)
            task.cwd_is_guess = task.cwd_is_guess and not path.startswith("/")
        elif call.name == "fchdir" and (match := _FD.match(call.arguments)):
            task.cwd, task.cwd_is_guess = _decode(match[1]), False


def _operation(call: Call) -> Op:
    if call.name in _EXECS:
        return Op.EXEC
    if call.name in _OPENS:
        return (
            Op.WRITE
            if call.name == "creat" or any(flag in call.arguments for flag in _WRITE_FLAGS)
            else Op.OPEN
        )
    if call.name == "getdents64":
        return Op.LIST
    return Op.WRITE if call.name in _CHANGES else Op.LOOKUP


def _paths(call: Call, task: _Task) -> Iterator[tuple[str, bool]]:
    """The paths that ``call`` names, and whether they rest on a guess; what is no path of a file (pipe:[1]) is not absolute."""
    if call.name == "getdents64":
        if match := _FD.match(call.arguments):
            yield _decode(match[1]), False
        return
    position = 0
    for count in range(2 if call.name in _TWO_PATHS or call.name in _TEXT_FIRST else 1):
        match = _PATH.search(call.arguments, position) if count else _PATH.match(call.arguments)
        if match is None:
            return
        if match[3]:
            raise TraceError(f"line {call.line} of the strace log has a shortened path")
        position = match.end()
        if count == 0 and call.name in _TEXT_FIRST:
            continue
        base = _decode(match[1]) if match[1] is not None else task.cwd
        if call.arguments.startswith("AT_FDCWD<"):
            task.cwd, task.cwd_is_guess = base, False
        path = _decode(match[2])
        yield _join(base, path), task.cwd_is_guess and match[1] is None and not path.startswith("/")


def _join(base: str, path: str) -> str:
    if path.startswith("/"):
        return path
    base = base.removesuffix(_DELETED)
    return f"{base.rstrip('/')}/{path}" if path else base


def _spelled(path: str) -> PurePosixPath:
    """``path`` with its "..": what that means depends on the links before it (ImageRoot.resolve)."""
    return PurePosixPath("/" + path.lstrip("/"))


def unit_processes(log: ParsedLog, unit: str) -> dict[int, Process]:
    """``log.processes`` with ``in_unit`` set for the unit's processes.

    They are those that put themselves into the unit's control group (systemd's child opens its cgroup.procs before it executes
    the command) and all their descendants.
    """
    suffix = f"/{unit}/cgroup.procs"
    chosen = {event.pid for event in log.events if event.op is Op.WRITE and str(event.path).endswith(suffix)}
    chosen = {number for number in chosen if log.processes[number].pid != 1}
    # A parent's number may be higher than its child's, so repeat until nothing is added.
    while added := {
        n for n, process in log.processes.items() if process.parent in chosen and n not in chosen
    }:
        chosen |= added
    return {
        number: Process(process.pid, process.parent, process.commands, number in chosen)
        for number, process in log.processes.items()
    }


def _is_in_unit(processes: dict[int, Process], number: int) -> bool:
    return number in processes and processes[number].in_unit


def unit_events(log: ParsedLog, processes: dict[int, Process]) -> tuple[Event, ...]:
    """The events of the unit's processes, from the unit's first exec on: what systemd's child does before is systemd's."""
    heirs = {number for number, process in processes.items() if _is_in_unit(processes, process.parent)}
    started: set[int] = set()
    kept: list[Event] = []
    for event in log.events:
        process = processes[event.pid]
        if not process.in_unit:
            continue
        if event.op is Op.EXEC and event.error is None:
            started.add(event.pid)
        if event.pid in started or event.pid in heirs or not process.commands:
            kept.append(event)
    return tuple(kept)


def loaded_files(log: ParsedLog, unit: str) -> tuple[PurePosixPath, ...]:
    """What the unit's processes executed, and the shared objects that they opened; sorted."""
    events = unit_events(log, unit_processes(log, unit))
    found = {
        event.path
        for event in events
        if event.error is None
        and (event.op is Op.EXEC or (event.op is Op.OPEN and re.search(r"\.so(\.|$)", event.path.name)))
    }
    return tuple(sorted(found))
