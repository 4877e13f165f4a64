"""Convert SystemCallFilter= into a seccomp program, by the rules of systemd. systemd.exec(5) describes these rules, and
systemd implements them in config_parse_syscall_filter() and apply_syscall_filter().

QuickStart makes one program for x86-64, x32 and i386 together, whereas systemd loads one program for each of these
architectures. This module identifies calls by name, because each architecture has its own numbers. If an architecture
does not have a call of some name, this module ignores the name for this architecture.
"""

from __future__ import annotations

import errno as errors
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quickstart.inspect.unit.seccomp import (
    ARCH_I386,
    ARCH_X86_64,
    ARGUMENTS,
    EQUAL,
    GREATER_EQUAL,
    JUMP,
    LOAD,
    LOAD_ARCH,
    LOAD_NUMBER,
    RET_ALLOW,
    RET_ERRNO,
    RET_KILL_PROCESS,
    RETURN,
    X32_BIT,
    Instruction,
    assembled,
)
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.syscalls import I386, IPC, SOCKETCALL, X32, X86_64
from quickstart.inspect.unit.values import BadValueError
from quickstart.parse.bounded import natural

_DEFAULT, _KNOWN = "@default", "@known"
_MAX_ERRNO = 4095
# There are some 400 calls and 30 groups.
_MAX_WORDS = 4096
# i386 calls whose first argument says which call is meant (socketcall(2), ipc(2)).
_SHARED = {"socketcall": SOCKETCALL, "ipc": IPC}


# Calls of Linux 6.5 and later. libseccomp 2.5.4 does not know them, and systemd leaves out what it does not know.
_NEW = frozenset(
    [
        "cachestat",
        "fchmodat2",
        "file_getattr",
        "file_setattr",
        "futex_requeue",
        "futex_wait",
        "futex_wake",
        "getxattrat",
        "listmount",
        "listxattrat",
        "lsm_get_self_attr",
        "lsm_list_modules",
        "lsm_set_self_attr",
        "map_shadow_stack",
        "mseal",
        "open_tree_attr",
        "removexattrat",
        "setxattrat",
        "statmount",
        "uretprobe",
    ]
)


@dataclass(frozen=True)
class CallFilter:
    """A filter of system calls. ``named`` maps calls to their outcomes, and ``others`` is the outcome of all other
    calls. Outcomes are return values of seccomp(2) filters.
    """

    named: Mapping[str, int]
    others: int


def call_filter(source: Source) -> CallFilter | None:
    """The filter from SystemCallFilter= and SystemCallErrorNumber= in ``source``, or None when these directives define
    no filter. Raises UnsupportedUnitError for a filter that the starter cannot set in the same way as systemd.
    """
    values = source.all("SystemCallFilter")
    if not values:
        return None
    if sum(len(value.split()) for value in values) > _MAX_WORDS:
        raise source.refusal(
            "SystemCallFilter",
            values[-1],
            BadValueError(f"has, with the others, more than {_MAX_WORDS} words"),
        )
    for value in values:
        if "\\" in value:
            raise source.refusal("SystemCallFilter", value, BadValueError("has a backslash"))
    allows = not values[0].startswith("~")
    # Calls with their errno. The errno is None where the directive gives no errno.
    listed: dict[str, int | None] = dict.fromkeys(_calls(source, _DEFAULT)) if allows else {}
    for value in values:
        takes_away = value.startswith("~")
        for word in value.removeprefix("~").split():
            name, colon, said = word.partition(":")
            if colon and not said:
                raise source.refusal("SystemCallFilter", word, BadValueError("has no error number"))
            verdict = _verdict(source, "SystemCallFilter", said) if said else None
            if said and not takes_away:
                raise source.refusal("SystemCallFilter", word, BadValueError("allows with an error number"))
            if name in _NEW and not _is_in_a_group(source, name):
                raise source.refusal(
                    "SystemCallFilter", word, BadValueError("may be unknown to the image's systemd")
                )
            for call in _calls(source, name):
                if takes_away != allows or verdict is not None:
                    listed[call] = verdict
                else:
                    listed.pop(call, None)
    refused = _verdict(source, "SystemCallErrorNumber", source.last("SystemCallErrorNumber", "kill"))
    otherwise = RET_ALLOW if allows else refused
    named = {call: otherwise if verdict is None else verdict for call, verdict in listed.items()}
    if not allows:
        return CallFilter(named, RET_ALLOW) if named else None
    if "SystemCallFilter" not in source.systemd.newer:
        return CallFilter(named, refused)
    # A program tries a call that is newer than the image, and goes on without it (override_default_action in
    # seccomp-util.c of systemd 255).
    known = (call for call in _calls(source, _KNOWN) if call not in _SHARED)
    return CallFilter({**dict.fromkeys(known, refused), **named}, RET_ERRNO | errors.ENOSYS)


def lets_drop_privileges(found: CallFilter | None) -> bool:
    """Whether a process can give up capabilities under the filter (seccomp_allows_drop_privileges in exec-invoke.c of
    systemd 255).
    """
    if found is None:
        return True
    return all(found.named.get(call, found.others) == RET_ALLOW for call in ("capget", "capset", "prctl"))


def _is_in_a_group(source: Source, name: str) -> bool:
    """Whether the image's systemd knows the call, because one of its own groups has it."""
    return any(name in calls for calls in source.systemd.call_groups.values())


def _calls(source: Source, name: str) -> Iterator[str]:
    """The system calls that ``name`` stands for. If ``name`` is the name of a group, these are all calls of the group.
    Otherwise, this is the call with this name. An unknown group is empty, as in systemd.
    """
    if not name.startswith("@"):
        yield name
        return
    if _DEFAULT not in source.systemd.call_groups:
        raise source.refusal(
            "SystemCallFilter",
            name,
            BadValueError("is a group, and the image's systemd does not show its groups"),
        )
    # In a damaged or foreign library, groups may contain each other.
    pending, met = [name], {name}
    while pending:
        for each in source.systemd.call_groups.get(pending.pop(), ()):
            if each not in met:
                met.add(each)
                if each.startswith("@"):
                    pending.append(each)
                else:
                    yield each


def _verdict(source: Source, directive: str, text: str) -> int:
    if text == "kill":
        return RET_KILL_PROCESS
    number = (
        natural(text) or 0 if text.isdecimal() else getattr(errors, text, 0) if text.startswith("E") else 0
    )
    if not 0 < number <= _MAX_ERRNO:
        raise source.refusal(directive, text, BadValueError("is neither `kill` nor an error"))
    return RET_ERRNO | number


def call_filter_records(source: Source) -> Iterator[tuple[str, ...]]:
    """The record `seccomp` of the starter's description. By this record, the starter loads the filter of
    SystemCallFilter=. A unit without this directive has no such record. The starter, which starts the unit early, loads
    this filter as the last step before it executes the unit's program.
    """
    found = call_filter(source)
    if found is not None:
        yield "seccomp", program(found).hex()


def program(found: CallFilter) -> bytes:
    """The filter as a BPF program, assembled by `seccomp.assembled`. As in systemd, the program allows all calls of an
    architecture other than x86-64, x32 and i386.
    """
    x32 = {name: X32.get(name, number) | X32_BIT for name, number in X86_64.items()}
    x86_64 = [*_ladder(found, X86_64), (RETURN, 0, 0, found.others)]
    native: list[Instruction] = [LOAD_NUMBER, (GREATER_EQUAL, 0, 1, X32_BIT), (JUMP, 0, 0, len(x86_64))]
    native += [*x86_64, *_ladder(found, x32), (RETURN, 0, 0, found.others)]
    i386 = [LOAD_NUMBER, *_shared(found), *_ladder(found, I386), (RETURN, 0, 0, found.others)]
    return assembled(
        [
            LOAD_ARCH,
            *((EQUAL, 1, 0, ARCH_X86_64), (JUMP, 0, 0, len(native))),
            *native,
            *((EQUAL, 1, 0, ARCH_I386), (RETURN, 0, 0, RET_ALLOW)),
            *i386,
        ]
    )


def _ladder(found: CallFilter, numbers: Mapping[str, int]) -> Iterator[Instruction]:
    """The instructions that return a call's outcome. The instructions expect the call's number in the accumulator, and
    compare this number with one range of numbers after the other. When the number is above the numbers of all named
    calls, none of these instructions returns, and execution continues after them.
    """
    verdicts = {numbers[name]: verdict for name, verdict in found.named.items() if name in numbers}
    reached, current = 0, found.others
    for number in sorted({each for at in verdicts for each in (at, at + 1)}):
        following = verdicts.get(number, found.others)
        if following != current:
            if number > reached:
                yield from ((GREATER_EQUAL, 1, 0, number), (RETURN, 0, 0, current))
            reached, current = number, following


def _shared(found: CallFilter) -> Iterator[Instruction]:
    """The instructions for the i386 calls that share one number, such as the calls that a program makes through
    socketcall(2). For any other call, execution continues after these instructions, with the call's number still in the
    accumulator.
    """
    for name, calls in _SHARED.items():
        if name in found.named or not calls.keys() & found.named.keys():
            continue
        inner = [(LOAD, 0, 0, ARGUMENTS), *_ladder(found, calls), (RETURN, 0, 0, found.others)]
        yield (EQUAL, 0, len(inner), I386[name])
        yield from inner
