"""System call filters: an interpreter of our own runs the programs on calls of both architectures."""

from __future__ import annotations

import struct

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.seccomp import (
    ARCH_I386,
    ARCH_X86_64,
    RET_ALLOW,
    RET_ERRNO,
    RET_KILL,
    filter_records,
)
from quickstart.inspect.unit.source import Source

ARCHITECTURES = {"x86-64": ARCH_X86_64, "i386": ARCH_I386, "x32": ARCH_X86_64, "other": 0xC00000B7}
X32 = 0x40000000
EPERM, ENOSYS, EAFNOSUPPORT = (RET_ERRNO | errno for errno in (1, 38, 97))
NEWUSER, NEWNET = 0x10000000, 0x40000000


def filtered(*lines: str) -> bytes:
    assigned = tuple((name, value) for name, _, value in (line.partition("=") for line in lines))
    ((key, digits),) = filter_records(Source("app.service", assigned, {}))
    assert key == "seccomp"
    return bytes.fromhex(digits)


def verdict(program: bytes, architecture: str, number: int, *arguments: int) -> int:
    """What the kernel would return (Documentation/networking/filter.rst, "BPF engine and instruction set")."""
    if architecture == "x32":
        number |= X32
    padded = (*arguments, *(0 for _ in range(6 - len(arguments))))
    data = struct.pack("<IIQ6Q", number, ARCHITECTURES[architecture], 0, *padded)
    accumulator = place = 0
    while True:
        code, yes, no, constant = struct.unpack_from(">HBBI", program, 8 * place)
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            return int(constant)
        elif code == 0x05:
            place += constant
        else:
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }
            place += yes if holds[code] else no


CASES: dict[str, list[tuple[str, int, tuple[int, ...], int]]] = {
    "LockPersonality=yes": [
        ("x86-64", 135, (0,), RET_ALLOW),
        ("x86-64", 135, (8,), EPERM),
        ("i386", 136, (8,), EPERM),
    ],
    "RestrictRealtime=yes": [
        *(("x86-64", 144, (0, policy), RET_ALLOW) for policy in (0, 3, 5)),
        *(("x86-64", 144, (0, policy), EPERM) for policy in (1, 2, 6)),
        ("i386", 156, (0, 1), EPERM),
    ],
    "MemoryDenyWriteExecute=yes": [
        ("x86-64", 9, (0, 0, 3), RET_ALLOW),
        ("x86-64", 9, (0, 0, 5), RET_ALLOW),
        ("x86-64", 9, (0, 0, 7), EPERM),
        ("x86-64", 10, (0, 0, 4), EPERM),
        ("x86-64", 10, (0, 0, 3), RET_ALLOW),
        ("x86-64", 30, (0, 0, 0o100000), EPERM),
        ("i386", 90, (), EPERM),
        ("i386", 192, (0, 0, 6), EPERM),
        ("x32", 9, (0, 0, 7), EPERM),
    ],
    "RestrictSUIDSGID=yes": [
        ("x86-64", 90, (0, 0o4755), EPERM),
        ("x86-64", 90, (0, 0o1755), RET_ALLOW),
        ("x86-64", 257, (0, 0, 0o100, 0o2755), EPERM),
        ("x86-64", 257, (0, 0, 0, 0o2755), RET_ALLOW),
        ("x86-64", 2, (0, 0o100, 0o644), RET_ALLOW),
        ("x86-64", 437, (), ENOSYS),
        ("i386", 306, (0, 0, 0o2000), EPERM),
    ],
    "RestrictNamespaces=yes": [
        ("x86-64", 272, (NEWUSER,), EPERM),
        ("x86-64", 272, (0x200,), RET_ALLOW),
        ("x86-64", 56, (17,), RET_ALLOW),
        ("x86-64", 56, (17 | NEWNET,), EPERM),
        ("x86-64", 308, (3, 0), EPERM),
        ("x86-64", 435, (), ENOSYS),
        ("i386", 310, (NEWUSER,), EPERM),
    ],
    "RestrictNamespaces=user": [
        ("x86-64", 272, (NEWUSER,), RET_ALLOW),
        ("x86-64", 272, (NEWNET,), EPERM),
        ("x86-64", 308, (3, NEWUSER), RET_ALLOW),
        ("x86-64", 308, (3, 0), EPERM),
        ("x86-64", 308, (3, NEWNET), EPERM),
    ],
    "RestrictNamespaces=~user": [("x86-64", 272, (NEWUSER,), EPERM), ("x86-64", 272, (NEWNET,), RET_ALLOW)],
    "RestrictAddressFamilies=AF_INET AF_UNIX": [
        *(("x86-64", 41, (family,), RET_ALLOW) for family in (1, 2)),
        *(("x86-64", 41, (family,), EAFNOSUPPORT) for family in (0, 10, 17, 45)),
        ("i386", 102, (1,), RET_ALLOW),
        ("x32", 41, (17,), EAFNOSUPPORT),
    ],
    "RestrictAddressFamilies=~AF_PACKET AF_NETLINK": [
        *(("x86-64", 41, (family,), RET_ALLOW) for family in (1, 2, 10)),
        *(("x86-64", 41, (family,), EAFNOSUPPORT) for family in (16, 17)),
    ],
    "RestrictAddressFamilies=none": [("x86-64", 41, (1,), EAFNOSUPPORT)],
    "SystemCallArchitectures=native": [
        ("x86-64", 41, (), RET_ALLOW),
        ("i386", 41, (), RET_KILL),
        ("x32", 41, (), RET_KILL),
        ("other", 41, (), RET_KILL),
    ],
    "PrivateDevices=yes": [
        ("x86-64", 172, (3,), EPERM),
        ("x86-64", 173, (), EPERM),
        ("other", 172, (), RET_ALLOW),
    ],
    "ProtectKernelTunables=yes": [("x86-64", 156, (), EPERM)],
    "ProtectKernelModules=yes": [("x86-64", number, (), EPERM) for number in (175, 176, 313)],
    "ProtectKernelLogs=yes": [("x86-64", 103, (), EPERM), ("i386", 103, (), EPERM)],
    "ProtectClock=yes": [("x86-64", 164, (), EPERM), ("x86-64", 228, (), RET_ALLOW), ("i386", 25, (), EPERM)],
    "ProtectHostname=yes": [("x86-64", 170, (), EPERM), ("i386", 121, (), EPERM)],
}


@pytest.mark.parametrize("line", CASES)
def test_filter(line: str) -> None:
    alone, beside = filtered(line), filtered(*CASES)
    for architecture, number, arguments, expected in CASES[line]:
        assert verdict(alone, architecture, number, *arguments) == expected, (architecture, number, arguments)
        if expected not in (RET_ALLOW, RET_KILL):
            other = RET_KILL if architecture != "x86-64" else expected
            if not line.startswith(("RestrictAddressFamilies", "RestrictNamespaces")):
                assert verdict(beside, architecture, number, *arguments) == other
    assert verdict(alone, "x86-64", 0) == RET_ALLOW


def test_families_that_are_merged() -> None:
    found = filtered("RestrictAddressFamilies=AF_INET AF_INET6", "RestrictAddressFamilies=~AF_INET6")
    assert [verdict(found, "x86-64", 41, family) for family in (2, 10)] == [RET_ALLOW, EAFNOSUPPORT]


def test_without_a_directive_there_is_no_filter() -> None:
    assert list(filter_records(Source("app.service", (("LockPersonality", "no"),), {}))) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("RestrictNamespaces=time", "has an unknown namespace"),
        ("RestrictAddressFamilies=AF_X", "has an unknown family"),
        ("SystemCallArchitectures=native x86", "is more than the native one"),
    ],
)
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(UnsupportedUnitError, match=message):
        filtered(line)


def test_the_kernel_takes_no_more_than_this() -> None:
    """BPF_MAXINSNS; a jump that leads out of the program would have raised in the interpreter."""
    assert len(filtered(*CASES)) // 8 < 4096
