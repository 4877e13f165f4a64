"""SystemCallFilter=: the interpreter of test_seccomp.py runs the programs; the groups come from a library that is built here."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.callfilter import _NEW, call_filter, call_filter_records, lets_drop_privileges
from quickstart.inspect.unit.callgroups import call_groups
from quickstart.inspect.unit.seccomp import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS
from quickstart.inspect.unit.source import Source, Systemd
from quickstart.inspect.unit.syscalls import I386, X86_64
from tests.unit.test_seccomp import verdict

GROUPS = {
    "@default": ("execve", "exit", "@timers"),
    "@timers": ("clock_gettime", "clock_gettime64"),
    "@file": ("open", "openat", "read"),
    "@network-io": ("socket", "connect", "no_such_call"),
    "@all": ("@file", "@network-io"),
}
EPERM, EACCES = RET_ERRNO | 1, RET_ERRNO | 13
KILL = RET_KILL_PROCESS


def source(*lines: str) -> Source:
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    return Source("app.service", assigned, {}, Systemd(GROUPS))


def filtered(*lines: str) -> bytes:
    ((key, digits),) = call_filter_records(source(*lines))
    assert key == "seccomp"
    return bytes.fromhex(digits)


def of(program: bytes, *names: str, architecture: str = "x86-64") -> list[int]:
    numbers = I386 if architecture == "i386" else X86_64
    return [verdict(program, architecture, numbers[name]) for name in names]


def test_what_is_not_listed_ends_the_process_but_for_what_every_program_needs() -> None:
    program = filtered("SystemCallFilter=@file")
    assert of(program, "read", "open", "openat", "execve", "exit", "clock_gettime") == [RET_ALLOW] * 6
    assert of(program, "write", "socket", "mseal", "statx") == [KILL] * 4
    assert of(program, "read", "clock_gettime64", architecture="i386") == [RET_ALLOW] * 2
    assert of(program, "write", "socketcall", architecture="i386") == [KILL] * 2
    assert verdict(program, "other", X86_64["write"]) == RET_ALLOW


def test_a_call_that_systemd_does_not_know_is_not_there() -> None:
    """systemd 255 and later, so that a program can go on without a newer call."""
    lines = source("SystemCallFilter=@file", "SystemCallErrorNumber=EPERM")
    groups = {**GROUPS, "@known": ("read", "write", "socketcall", "statx", "@network-io")}
    newer = Source("app.service", lines.assigned, {}, Systemd(groups, frozenset({"SystemCallFilter"})))
    ((_, digits),) = call_filter_records(newer)
    program = bytes.fromhex(digits)
    assert of(program, "read", "open", "execve") == [RET_ALLOW] * 3
    assert of(program, "write", "statx", "socket") == [EPERM] * 3
    assert of(program, "mseal", "setxattrat") == [RET_ERRNO | 38] * 2
    assert of(program, "socketcall", architecture="i386") == [RET_ERRNO | 38]
    # All others of a list of refused calls are allowed, as before.
    ((_, digits),) = call_filter_records(
        Source("app.service", source("SystemCallFilter=~@file").assigned, {}, newer.systemd)
    )
    assert of(bytes.fromhex(digits), "mseal", "statx") == [RET_ALLOW] * 2


@pytest.mark.parametrize(
    ("line", "lets"),
    [
        ("~read", True),
        ("read capget capset prctl", True),
        ("read capget capset", False),
        ("~capget", False),
        ("~prctl:EPERM", False),
    ],
)
def test_whether_privileges_can_be_given_up(line: str, lets: bool) -> None:
    assert lets_drop_privileges(call_filter(source(f"SystemCallFilter={line}"))) is lets
    assert lets_drop_privileges(None)


def test_what_is_listed_is_refused() -> None:
    program = filtered("SystemCallFilter=~@all", "SystemCallErrorNumber=EPERM")
    assert of(program, "read", "open", "openat", "socket", "connect") == [EPERM] * 5
    assert of(program, "write", "close", "bind", "execve") == [RET_ALLOW] * 4


def test_a_later_line_takes_away_and_adds() -> None:
    program = filtered("SystemCallFilter=@all write", "SystemCallFilter=~@file", "SystemCallFilter=read")
    assert of(program, "read", "write", "socket") == [RET_ALLOW] * 3
    assert of(program, "open", "openat") == [KILL] * 2
    program = filtered("SystemCallFilter=~@file", "SystemCallFilter=read")
    assert of(program, "open", "read", "write") == [KILL, RET_ALLOW, RET_ALLOW]


def test_a_call_has_an_error_of_its_own() -> None:
    program = filtered("SystemCallFilter=~open:EACCES read:13 write:kill", "SystemCallErrorNumber=1")
    assert of(program, "open", "read", "write", "close") == [EACCES, EACCES, KILL, RET_ALLOW]
    program = filtered("SystemCallFilter=@file", "SystemCallFilter=~open:EACCES openat")
    assert of(program, "open", "openat", "read") == [EACCES, KILL, RET_ALLOW]


def test_calls_that_share_a_number_of_i386_are_told_by_their_argument() -> None:
    program = filtered("SystemCallFilter=~socket shmat")
    assert [verdict(program, "i386", I386["socketcall"], each) for each in (1, 3)] == [KILL, RET_ALLOW]
    assert [verdict(program, "i386", I386["ipc"], each) for each in (21, 22, 1)] == [
        KILL,
        RET_ALLOW,
        RET_ALLOW,
    ]
    assert of(program, "socket", "connect", architecture="i386") == [KILL, RET_ALLOW]
    program = filtered("SystemCallFilter=~socket socketcall")
    assert verdict(program, "i386", I386["socketcall"], 3) == KILL


def test_x32_has_some_numbers_of_its_own() -> None:
    program = filtered("SystemCallFilter=~ioctl close")
    assert [verdict(program, "x32", number) for number in (514, X86_64["close"], X86_64["read"])] == [
        KILL,
        KILL,
        RET_ALLOW,
    ]


def test_each_call_alone() -> None:
    """Every boundary of the ladder: of any two neighbours one is named."""
    named = [name for name in sorted(X86_64, key=lambda name: X86_64[name])[::2] if name not in _NEW]
    program = filtered(f"SystemCallFilter=~{' '.join(named)}")
    for name, number in X86_64.items():
        assert verdict(program, "x86-64", number) == (KILL if name in named else RET_ALLOW), name
    assert len(program) // 8 < 4096


def test_nothing_to_refuse_is_no_filter() -> None:
    for lines in ((), ("SystemCallErrorNumber=EPERM",), ("SystemCallFilter=~@no-such-group",)):
        assert list(call_filter_records(source(*lines))) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("SystemCallFilter=read:EPERM", "read:EPERM allows with an error number"),
        ("SystemCallFilter=~read:EWHAT", "EWHAT is neither `kill` nor an error"),
        ("SystemCallErrorNumber=0", "0 is neither"),
    ],
)
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=message):
        filtered("SystemCallFilter=~open", line) if "Number" in line else filtered(line)


def test_a_group_wants_systemd() -> None:
    bare = Source("app.service", (("SystemCallFilter", "~@clock"),), {})
    with pytest.raises(UnsupportedUnitError, match="the image's systemd does not show its groups"):
        list(call_filter_records(bare))


# ---------------------------------------------------------------- groups


def library(texts: list[tuple[bytes, bytes]]) -> bytes:
    """A shared library with an array of (name, help, value) and its relocations, one page of everything; loaded at 0x10000."""
    base, dynamic_at, array_at, rela_at, text_at = 0x10000, 0x100, 0x200, 0x400, 0x800
    content = bytearray(0x1000)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    content[: len(header)] = header
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 0x1000, 0x1000, 0x1000)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, base + dynamic_at, base + dynamic_at, 48, 48, 8)
    content[64 : 64 + 112] = load + dynamic
    relocations = b""
    for number, (name, value) in enumerate(texts):
        for field, text in ((0, name + b"\0"), (8, b"help\0"), (16, value + b"\0")):
            place = base + array_at + 24 * number + field
            relocations += struct.pack("<QQQ", place, 8, base + text_at)
            content[text_at : text_at + len(text)] = text
            text_at += len(text)
    content[rela_at : rela_at + len(relocations)] = relocations
    entries = ((7, base + rela_at), (8, len(relocations)), (0, 0))
    content[dynamic_at : dynamic_at + 48] = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return bytes(content)


def root_with(tmp_path: Path, content: bytes) -> ImageRoot:
    place = tmp_path / "usr/lib/systemd"
    place.mkdir(parents=True)
    (place / "libsystemd-shared-252.so").write_bytes(content)
    return ImageRoot(tmp_path)


def test_groups_are_read_from_the_library(tmp_path: Path) -> None:
    whole = library([(b"@default", b"read\0write\0"), (b"@aio", b"io_setup\0@default\0"), (b"none", b"x\0")])
    assert call_groups(root_with(tmp_path, whole)) == {
        "@default": ("read", "write"),
        "@aio": ("io_setup", "@default"),
    }


@pytest.mark.parametrize(
    "content", [b"\x7fELF", b"no library at all", library([(b"@default", b"a\0")])[:0x300]]
)
def test_a_damaged_library_shows_nothing(tmp_path: Path, content: bytes) -> None:
    assert call_groups(root_with(tmp_path, content)) == {}


def test_an_image_without_systemd_shows_nothing(tmp_path: Path) -> None:
    assert call_groups(ImageRoot(tmp_path)) == {}
