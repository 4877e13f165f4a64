"""Convert the directives that refuse system calls, such as RestrictNamespaces=, into one system call filter.
SystemCallFilter= has its own filter (callfilter.py). The filter of this module is a seccomp program, which this
module assembles itself (seccomp(2), systemd.exec(5)).

Each rule refuses one system call, always or depending on its arguments, as systemd does. x86-64 and i386 have
different call numbers. An x32 number is the x86-64 number with one additional bit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.syscalls import I386, X86_64
from quickstart.inspect.unit.values import BadValueError

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
# linux/audit.h, linux/seccomp.h
ARCH_X86_64, ARCH_I386 = 0xC000003E, 0x40000003
X32_BIT = 0x40000000
RET_ALLOW, RET_ERRNO, RET_KILL, RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0, 0x80000000
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 64 bits.
_NUMBER, _ARCH, ARGUMENTS = 0, 4, 16
# linux/bpf_common.h: load a word, return, and jumps that compare with a constant.
LOAD, RETURN, _AND, JUMP, EQUAL, GREATER_EQUAL, _ANY_BIT = 0x20, 0x06, 0x54, 0x05, 0x15, 0x35, 0x45

# Calls whose numbers are not those of the same name. For i386, mmap is another call. socket(2) can also be called by
# socketcall(2), whose arguments a filter cannot see. systemd does not filter these two on i386.
_EXCEPTIONS: dict[str, tuple[int | None, int | None]] = {
    "mmap": (X86_64["mmap"], None),
    "old_mmap": (None, I386["mmap"]),
    "socket": (X86_64["socket"], None),
}
_NAMESPACES = {
    "cgroup": 0x02000000,
    "ipc": 0x08000000,
    "net": 0x40000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "user": 0x10000000,
    "uts": 0x04000000,
}
# linux/socket.h
_FAMILIES = {
    name: number
    for number, name in enumerate(
        re.findall(
            r"\w+",
            """UNSPEC UNIX INET AX25 IPX APPLETALK NETROM BRIDGE ATMPVC X25 INET6 ROSE DECnet NETBEUI SECURITY KEY NETLINK
            PACKET ASH ECONET ATMSVC RDS SNA IRDA PPPOX WANPIPE LLC IB MPLS CAN TIPC BLUETOOTH IUCV RXRPC ISDN PHONET
            IEEE802154 CAIF ALG NFC VSOCK KCM QIPCRTR SMC XDP""",
        )
    )
} | {"LOCAL": 1, "ROUTE": 16}
_SETUID_SETGID, _O_CREAT, _PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 0o6000, 0o100, 2, 4, 0o100000
_PLAIN_POLICIES = (0, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Test:
    """A condition on the low 32 bits of an argument. ``argument`` is the argument's index, from 0. One of the other
    four fields says what must be true:

    - ``any_bit``: the argument has at least one of these bits
    - ``all_bits``: the argument has all of these bits
    - ``one_of``: the argument is one of these values
    - ``none_of``: the argument is none of these values
    """

    argument: int
    any_bit: int = 0
    all_bits: int = 0
    one_of: tuple[int, ...] = ()
    none_of: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Rule:
    """A rule of the filter. The system call ``call`` fails with ``errno`` when all tests are true."""

    call: str
    tests: tuple[Test, ...] = ()
    errno: int = _EPERM


def filter_records(source: Source) -> Iterator[tuple[str, ...]]:
    """The records of the system call filters that the directives in ``source`` require. The record `seccomp` has one
    filter for most directives. If the unit has MemoryDenyWriteExecute= and the image has a systemd like that of Debian
    13, the record `deny-write-execute` comes before the record `seccomp`. The record `deny-write-execute` makes the
    kernel deny memory that is writable and executable, and has a filter for older kernels. Raises UnsupportedUnitError
    for an invalid value.
    """
    if _denies_by_kernel(source):
        yield "deny-write-execute", program(_no_write_and_execute(), native_only=False).hex()
    rules = tuple(_rules(source))
    native = _native_only(source)
    if rules or native:
        yield "seccomp", program(rules, native).hex()


_REFUSED_CALLS = {
    "PrivateDevices": ("ioperm", "iopl"),
    "ProtectKernelTunables": ("_sysctl",),
    "ProtectKernelModules": ("delete_module", "finit_module", "init_module"),
    "ProtectKernelLogs": ("syslog",),
    "ProtectClock": (
        *("adjtimex", "clock_adjtime", "clock_adjtime64", "clock_settime", "clock_settime64", "settimeofday"),
        "stime",
    ),
    "ProtectHostname": ("setdomainname", "sethostname"),
}


def _rules(source: Source) -> Iterator[Rule]:
    for name, calls in _REFUSED_CALLS.items():
        if source.flag(name):
            yield from (Rule(call) for call in calls)
    if source.flag("LockPersonality"):
        yield Rule("personality", (Test(argument=0, none_of=(0,)),))
    if source.flag("RestrictRealtime"):
        yield Rule("sched_setscheduler", (Test(argument=1, none_of=_PLAIN_POLICIES),))
    if source.flag("MemoryDenyWriteExecute") and not _denies_by_kernel(source):
        yield from _no_write_and_execute()
    if source.flag("RestrictSUIDSGID"):
        yield from _no_setuid()
    yield from _namespaces(source)
    yield from _families(source)


def _denies_by_kernel(source: Source) -> bool:
    """Whether the unit has MemoryDenyWriteExecute=, and systemd implements it by PR_SET_MDWE (prctl(2)) instead of a
    filter. Unlike a filter, the kernel also notices the execute permission that READ_IMPLIES_EXEC adds
    (personality(2)). The kernel denies this permission only for memory that was not executable before.
    """
    return source.flag("MemoryDenyWriteExecute") and "MemoryDenyWriteExecute" in source.systemd.newer


def _no_write_and_execute() -> Iterator[Rule]:
    for call in ("mmap", "mmap2"):
        yield Rule(call, (Test(argument=2, all_bits=_PROT_WRITE | _PROT_EXEC),))
    # Its arguments are in memory, where no filter can see them.
    yield Rule("old_mmap")
    yield from (Rule(call, (Test(argument=2, any_bit=_PROT_EXEC),)) for call in ("mprotect", "pkey_mprotect"))
    yield Rule("shmat", (Test(argument=2, any_bit=_SHM_EXEC),))


def _no_setuid() -> Iterator[Rule]:
    modes = {"chmod": 1, "fchmod": 1, "mkdir": 1, "mknod": 1, "creat": 1}
    modes |= {"fchmodat": 2, "fchmodat2": 2, "mkdirat": 2, "mknodat": 2}
    yield from (Rule(call, (Test(argument=place, any_bit=_SETUID_SETGID),)) for call, place in modes.items())
    for call, flags in (("open", 1), ("openat", 2)):
        yield Rule(
            call, (Test(argument=flags, any_bit=_O_CREAT), Test(argument=flags + 1, any_bit=_SETUID_SETGID))
        )
    # The flags of openat2 are in memory, where a filter cannot see them. A program without openat2 uses openat.
    yield Rule("openat2", errno=_ENOSYS)


def _namespaces(source: Source) -> Iterator[Rule]:
    values = source.all("RestrictNamespaces")
    if not values:
        return
    everything = sum(_NAMESPACES.values())
    allowed: int | None = None
    for value in values:
        if value.lower() in ("yes", "true", "on", "1", "y", "t"):
            allowed = 0
        elif value.lower() in ("no", "false", "off", "0", "n", "f"):
            allowed = everything
        else:
            allowed = _merged(source, value, allowed, everything)
    denied = everything & ~(everything if allowed is None else allowed)
    if not denied:
        return
    # The flags of clone3 are in memory, where a filter cannot see them. Without clone3, the C library uses clone.
    yield Rule("clone3", errno=_ENOSYS)
    yield from (Rule(call, (Test(argument=0, any_bit=denied),)) for call in ("clone", "unshare"))
    if denied == everything:
        yield Rule("setns")
    else:
        yield Rule("setns", (Test(argument=1, one_of=(0,)),))
        yield Rule("setns", (Test(argument=1, any_bit=denied),))


def _merged(source: Source, value: str, allowed: int | None, everything: int) -> int:
    names = value.removeprefix("~").split()
    if any(name not in _NAMESPACES for name in names):
        raise source.refusal("RestrictNamespaces", value, BadValueError("has an unknown namespace"))
    mask = sum({_NAMESPACES[name] for name in names})
    if value.startswith("~"):
        return (everything if allowed is None else allowed) & ~mask
    return mask if allowed is None else allowed | mask


def _families(source: Source) -> Iterator[Rule]:
    values = source.all("RestrictAddressFamilies")
    if not values:
        return
    inverted = values[0].startswith("~")
    chosen: set[int] = set()
    was_none = False
    for value in values:
        if value == "none":
            chosen, inverted, was_none = set(), False, True
            continue
        if was_none and value.startswith("~"):
            # The words of systemd's versions differ here.
            raise source.refusal("RestrictAddressFamilies", value, BadValueError("comes after `none`"))
        names = value.removeprefix("~").split()
        # systemd ignores a word without the prefix.
        if any(name[:3] != "AF_" or name[3:] not in _FAMILIES for name in names):
            raise source.refusal("RestrictAddressFamilies", value, BadValueError("has an unknown family"))
        numbers = {_FAMILIES[name[3:]] for name in names}
        chosen = chosen | numbers if value.startswith("~") == inverted else chosen - numbers
    numbers_in_order = tuple(sorted(chosen))
    test = (
        Test(argument=0, one_of=numbers_in_order) if inverted else Test(argument=0, none_of=numbers_in_order)
    )
    if not inverted or chosen:
        yield Rule("socket", (test,), _EAFNOSUPPORT)


def _native_only(source: Source) -> bool:
    values = set(source.words("SystemCallArchitectures"))
    if values - {"native", "x86-64"}:
        raise source.refusal(
            "SystemCallArchitectures", " ".join(sorted(values)), BadValueError("is more than the native one")
        )
    return bool(values)


# ---------------------------------------------------------------- programs

# Code, jump if true, jump if false, constant.
Instruction = tuple[int, int, int, int]
LOAD_NUMBER: Instruction = (LOAD, 0, 0, _NUMBER)
LOAD_ARCH: Instruction = (LOAD, 0, 0, _ARCH)
_WITHOUT_X32: Instruction = (_AND, 0, 0, ~X32_BIT & 0xFFFFFFFF)


def program(rules: Iterable[Rule], native_only: bool) -> bytes:
    """The filter for ``rules``, as a BPF program. With ``native_only``, a call of another architecture than x86-64,
    including x32, kills the thread that makes the call.
    """
    chosen = tuple(rules)
    native = [LOAD_NUMBER]
    if native_only:
        native += [(GREATER_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, RET_KILL)]
    native += [_WITHOUT_X32, *_block(chosen, 0), (RETURN, 0, 0, RET_ALLOW)]
    if native_only:
        other: list[Instruction] = [(RETURN, 0, 0, RET_KILL)]
    else:
        compat = [LOAD_NUMBER, *_block(chosen, 1), (RETURN, 0, 0, RET_ALLOW)]
        other = [(EQUAL, 1, 0, ARCH_I386), (RETURN, 0, 0, RET_ALLOW), *compat]
    # A conditional jump reaches 255 instructions, the other one any.
    head = [LOAD_ARCH, (EQUAL, 1, 0, ARCH_X86_64), (JUMP, 0, 0, len(native))]
    return assembled([*head, *native, *other])


def assembled(instructions: Iterable[Instruction]) -> bytes:
    """The instructions as bytes, with eight bytes for each instruction, as the starter's `seccomp` step reads them."""
    return b"".join(struct.pack(">HBBI", *each) for each in instructions)


def _block(rules: Iterable[Rule], architecture: int) -> Iterator[Instruction]:
    """The instructions for the rules on ``architecture``, which is 0 for x86-64 and 1 for i386. The instructions of
    each rule expect the call's number in the accumulator, and leave the number there.
    """
    for rule in rules:
        number = _number(rule.call, architecture)
        if number is None:
            continue
        inner: list[Instruction] = [(RETURN, 0, 0, RET_ERRNO | rule.errno)]
        for test in reversed(rule.tests):
            inner = [*_test(test, len(inner)), *inner]
        # The tests may have loaded an argument, but the next rule expects the call's number.
        inner.append(LOAD_NUMBER)
        if architecture == 0:
            inner.append(_WITHOUT_X32)
        yield (EQUAL, 0, len(inner), number)
        yield from inner


def _number(call: str, architecture: int) -> int | None:
    """The number of a call on x86-64 (0) or i386 (1). The result is None when the call does not exist there."""
    return _EXCEPTIONS.get(call, (X86_64.get(call), I386.get(call)))[architecture]


def _test(test: Test, rest: int) -> list[Instruction]:
    """The instructions for one test. When the test is true, execution continues after these instructions. When the test
    is false, execution skips the ``rest`` instructions that follow.
    """
    load = (LOAD, 0, 0, ARGUMENTS + 8 * test.argument)
    if test.any_bit:
        return [load, (_ANY_BIT, 0, rest, test.any_bit)]
    if test.all_bits:
        return [load, (_AND, 0, 0, test.all_bits), (EQUAL, 0, rest, test.all_bits)]
    if test.none_of is not None:
        count = len(test.none_of)
        jumps = [(EQUAL, count - index - 1 + rest, 0, value) for index, value in enumerate(test.none_of)]
        return [load, *jumps]
    count = len(test.one_of)
    jumps = [(EQUAL, count - index, 0, value) for index, value in enumerate(test.one_of)]
    return [load, *jumps, (JUMP, 0, 0, rest)]
