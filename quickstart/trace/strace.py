"""Parse the log of `strace -f -y -ttt` into system calls. The man page strace(1) describes the log's format. This
module has no side effects.

The log is read as a stream of lines. TraceError is raised for a line that strace cannot have written, and for an
incomplete last line. The error has the line's number. Without these checks, a start set from an incomplete log would
lack files, and nobody would notice.

The guest's programs choose the text of the log. So each regular expression examines a position only a few
times, and the sizes of numbers are limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quickstart.errors import TraceError

# strace's -s is 4096. strace prints all arguments and the environment of an executed program, and each byte may take
# four characters.
MAX_LINE_BYTES = 4 << 20
# The limit for calls that have begun and not ended, at most one for each process. Each call takes some additional
# memory.
_MOST_BEGUN_CHARACTERS = 64 << 20
_BEGUN_CALL_CHARACTERS = 256
# A call ends with its second part. Before that, strace or the process may end.
_MAX_PARTS = 8
_LINE = re.compile(r"([0-9]{1,10}) +[0-9]+\.[0-9]+ (.*)", re.DOTALL)
_CALL = re.compile(
    r"([\w?]+)\((.*)\) += (-?[0-9]{1,20}|0x[0-9a-f]{1,16}|\?)(?![0-9a-f])"
    r"(?:<((?>(?:[^>\\]++|\\.)*))>)?(?: (E[A-Z0-9]+))?(.*)",
    re.DOTALL,
)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_UNFINISHED = re.compile(r"([\w?]+)\((.*?) ?<(?:unfinished|detached) \.\.\.>", re.DOTALL)
_EXIT = re.compile(r"\+\+\+ (?:exited with|killed by|superseded by) .*\+\+\+")
# A signal, or strace's message about a process that changes the mode of the processor.
_REMARK = re.compile(r"--- .* ---|\[ Process PID=\d+ runs in .* mode\. \]")
# With --decode-pids=pidns, strace prints its own ID of a process after the ID from another PID namespace.
_DECODED_PID = re.compile(r" /\* ([0-9]{1,10}) in strace's PID NS \*/")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
# Most mappings of a boot are plain memory. Their lines have nothing to do with files.
_ANONYMOUS = re.compile(rb"\d+ +\d+\.\d+ mmap\([^<>]*MAP_ANONYMOUS, -1, 0\) = 0x[0-9a-f]+\n")


class Call(NamedTuple):
    """One finished system call. ``result`` is the return value of the call. When the call returns a descriptor,
    ``result_path`` is the path that strace's option -y prints for this descriptor.

    When ``result`` is a process ID, ``result`` is the ID in strace's own PID namespace.
    """

    line: int
    pid: int
    name: str
    arguments: str
    result: str
    result_path: str
    error: str | None


class Ended(NamedTuple):
    """The end of the process with the ID ``pid``."""

    line: int
    pid: int


class _Begun:
    """The system calls that have begun and have not ended. For each process, this object has the name of the call, the
    arguments so far, and the number of parts in which strace has printed the call.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str, int]] = {}
        self.characters = 0

    def put(self, pid: int, call: tuple[str, str, int]) -> None:
        self.take(pid)
        self._calls[pid] = call
        self.characters += len(call[1]) + _BEGUN_CALL_CHARACTERS

    def take(self, pid: int) -> tuple[str, str, int]:
        if pid not in self._calls:
            return "", "", 0
        call = self._calls.pop(pid)
        self.characters -= len(call[1]) + _BEGUN_CALL_CHARACTERS
        return call


def read_calls(lines: Iterable[bytes]) -> Iterator[Call | Ended]:
    """The system calls and the ends of processes in a log. The calls have the order in which they returned. strace may
    print a call in two parts, "unfinished" and "resumed". This function joins the two parts.

    Raises TraceError with the line's number for a damaged log. Calls that had not returned when strace ended
    (`<detached ...>`) are left out. Calls that map anonymous memory are also left out.
    """
    begun = _Begun()
    for number, raw in enumerate(lines, 1):
        if _ANONYMOUS.fullmatch(raw):
            continue
        if len(raw) > MAX_LINE_BYTES:
            raise TraceError(f"line {number} of the strace log has more than {MAX_LINE_BYTES} bytes")
        if not raw.endswith(b"\n"):
            raise TraceError(f"the strace log is cut in line {number}")
        match = _LINE.fullmatch(os.fsdecode(raw[:-1]))
        if match is None:
            raise _garbled(number, raw)
        pid, text = int(match[1]), match[2]
        if text.startswith("<... ") and (half := _RESUMED.fullmatch(text)):
            name, head, parts = begun.take(pid)
            if name != half[1]:
                raise TraceError(
                    f"line {number} of the strace log resumes {half[1]}, which process {pid} did not begin"
                )
            text = f"{name}({head}{half[2]}"
            # Every part is appended to all parts before it.
            if parts >= _MAX_PARTS or len(text) > MAX_LINE_BYTES:
                raise _garbled(number, raw)
        else:
            parts = 0
        if text.endswith(" ...>") and (open_half := _UNFINISHED.fullmatch(text)):
            begun.put(pid, (open_half[1], open_half[2], parts + 1))
            if begun.characters > _MOST_BEGUN_CHARACTERS:
                raise TraceError(f"line {number} of the strace log: too many calls have begun and not ended")
        elif call := _CALL.fullmatch(text):
            yield _finished(number, pid, call)
        elif _EXIT.fullmatch(text):
            begun.take(pid)
            yield Ended(number, pid)
        elif not _REMARK.fullmatch(text):
            raise _garbled(number, raw)


def _finished(number: int, pid: int, call: re.Match[str]) -> Call:
    name, arguments, result, result_path, error, rest = call.groups()
    if result == "?" and error is None:
        # The process ended during the call, or strace could no longer query it.
        error = "?"
    if rest and (decoded := _DECODED_PID.match(rest)):
        result = decoded[1]
    return Call(number, pid, name, arguments, result, unescape(result_path or ""), error)


def _garbled(number: int, raw: bytes) -> TraceError:
    return TraceError(f"line {number} of the strace log is not strace's: {raw[:120]!r}")


def unescape(text: str) -> str:
    """The string or path that strace printed as ``text``, without strace's escape sequences. Bytes that are not valid
    UTF-8 become surrogates.
    """
    if "\\" not in text:
        return text
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(os.fsencode(text[end : match.start()]))
        code = match[1]
        parts.append(
            bytes([int(code, 8) & 0xFF]) if code[0] in "01234567" else os.fsencode(_CONTROL.get(code, code))
        )
        end = match.end()
    parts.append(os.fsencode(text[end:]))
    return os.fsdecode(b"".join(parts))
