"""The targets for what a guest says: the logs of a trace, counters, and the words of the agent and of QEMU."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from quickstart.errors import GuestError
from quickstart.launch.channel import Decoder
from quickstart.launch.monitor import Monitor
from quickstart.measure import counting
from quickstart.measure.phases import phases, units
from quickstart.model import Readiness
from quickstart.model.words import ReadyKind
from quickstart.newprofile import look
from quickstart.parse.bounded import lines_of
from quickstart.trace.collect import collect, loaded_files
from quickstart.trace.firstreads import parse_reads
from quickstart.trace.load import load_trace, parse_ldd, parse_maps
from quickstart.trace.resident import parse_resident
from quickstart.trace.started import parse_units
from quickstart.trace.strace import MAX_LINE_BYTES
from quickstart.verify import guesttrace
from tests.fuzz.places import as_text, parts_of, put
from tests.fuzz.target import JSON, Target, void

_LIMIT_S = 0.3
READY = Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=60)
TRACE_FILES = (
    *("strace.log", "maps.log", "units.log", "resident.log", "ldd.log"),
    *("modules.before", "modules.after", "facts.json"),
)
_CALLS = (
    b"openat(",
    b"AT_FDCWD</>",
    b'"',
    b"\\",
    b"1<",
    b">",
    b", PROT_EXEC",
    b") = 3</x>",
    b" <unfinished ...>",
)


def _strace(data: bytes, _: Path) -> None:
    loaded_files(collect(lines_of(io.BytesIO(data), MAX_LINE_BYTES), "nginx.service"))


def _trace(data: bytes, base: Path) -> None:
    load_trace(put(base, parts_of(data, TRACE_FILES), TRACE_FILES), "nginx.service")


def _ftrace(data: bytes, _: Path) -> None:
    parts = parts_of(data, ("trace", "stats"))
    found = guesttrace.parse(as_text(parts.get("trace", b"")).split("\n"), as_text(parts.get("stats", b"")))
    list(guesttrace.volume_paths(found.uses))


def _counters(data: bytes, _: Path) -> None:
    text = as_text(data)
    with suppress(GuestError):
        counting.iowait_ns(text)
    counting.disk_reads(text, "vda")


def _look(data: bytes, _: Path) -> None:
    found = look.parse_look(as_text(data))
    look.failure([found] * 3, "app.service", READY)
    look.listens_inside_only([found] * 3, READY)
    look.state_line(found, READY)


def _phases(data: bytes, _: Path) -> None:
    """Whatever a guest prints, results.json takes its numbers (INT64_MAX)."""
    said = as_text(data)
    found = (*phases(said, "app.service", 80, 4_700, 10**18), *units(said, 10**18))
    if any(max(abs(each.begin_ns), abs(each.end_ns)) >= 1 << 63 for each in found):
        raise AssertionError("a number that results.json does not take")


def _agent(data: bytes, _: Path) -> None:
    decoder = Decoder()
    for at in range(0, len(data), 97):
        list(decoder.feed(data[at : at + 97], 1))


def _qmp(data: bytes, _: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        with suppress(OSError):
            theirs.sendall(data[:100_000])
        theirs.shutdown(socket.SHUT_WR)
        monitor = Monitor(ours, _LIMIT_S)
        try:
            monitor.command("query-status")
        finally:
            monitor.close()


TARGETS: Mapping[str, Target] = {
    "strace": Target(
        _strace, (*_CALLS, b"<... openat resumed>", b"clone(flags=CLONE_FS) = 8", b'chdir("..") = 0')
    ),
    "trace": Target(_trace, (*_CALLS, b"%%% ", b"== 1 app\n", b"== end\n", b"\t/lib/x (0x1)\n", *JSON)),
    "maps": Target(
        lambda data, _: void(parse_maps(os.fsdecode(data))), (b"== 1 app\n", b" r-xp ", b"== end\n", b"\\040")
    ),
    "resident": Target(
        lambda data, _: void(parse_resident(os.fsdecode(data))),
        (b"== 600000 /a\n", b"4096 8192\n", b"999999999999999999 ", b"== end\n"),
    ),
    "reads": Target(
        lambda data, _: void(parse_reads(os.fsdecode(data), 10**9)), (b"1.000000 2048 8\n", b"== end\n")
    ),
    "units": Target(
        lambda data, _: void(parse_units(os.fsdecode(data))),
        (
            b"Root=/ ext4\n\n",
            b"Id=a\n",
            b"After=b c\n",
            b"FragmentPath=/a\n",
            b"InactiveExitTimestampMonotonic=5\n",
            b"\n\n",
            b"== end\n",
        ),
    ),
    "ldd": Target(
        lambda data, _: void(parse_ldd(os.fsdecode(data))),
        (b"== /a\n", b" => ", b"\t/lib/x (0x1)\n", b"== end\n"),
    ),
    "ftrace": Target(
        _ftrace,
        (b"  app-7 [000] ..... 1.000000: ", b"sys_openat(dfd: 3)", b'qs_name: (x) name="', b" -> 0x1"),
    ),
    "counters": Target(_counters, (b"cpu  ", b" vda ", b"\n")),
    "look": Target(
        _look,
        (b"== unit\n", b"== tcp\n", b"NRestarts=", b"MemTotal: ", b" kB\n", b": 0100007F:0050 0:0000 0A"),
    ),
    "phases": Target(
        _phases,
        (
            *(
                b"now at ",
                b" nsecs\n",
                b"<7>[",
                b".000000] quickstart: stamp ",
                b"now\n",
                b"application\n",
                b"Run /",
            ),
            *(b"Id=app.service\n", b"InactiveExitTimestampMonotonic=", b"ActiveEnterTimestampMonotonic="),
            b"UserspaceTimestampMonotonic=",
        ),
    ),
    "agent": Target(
        _agent, (b"hello 2\n", b"beacon 1 a b\n", b"ready 1 ok\n", b"counters 1 1 ", b"out ", b"exit 0\n")
    ),
    "qmp": Target(
        _qmp,
        (
            b'{"QMP": {"version": {}, "capabilities": []}}\r\n',
            b'{"return": {}}\r\n',
            b'{"event": "X"}\r\n',
            *JSON,
        ),
    ),
}
