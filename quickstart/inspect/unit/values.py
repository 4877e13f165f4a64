"""Parse the values of directives: booleans, times, sizes, limits, capabilities, CPU lists (systemd.syntax(7),
systemd.exec(5)).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from quickstart.parse.bounded import INT64_MAX, UINT64_MAX, natural

_YES = frozenset({"1", "yes", "y", "true", "t", "on"})
_NO = frozenset({"0", "no", "n", "false", "f", "off"})
_US = {
    "us": 1,
    "usec": 1,
    "µs": 1,
    "ms": 1000,
    "msec": 1000,
    "s": 10**6,
    "sec": 10**6,
    "second": 10**6,
    "seconds": 10**6,
    "": 10**6,
    "m": 60 * 10**6,
    "min": 60 * 10**6,
    "minute": 60 * 10**6,
    "minutes": 60 * 10**6,
    "h": 3600 * 10**6,
    "hr": 3600 * 10**6,
    "hour": 3600 * 10**6,
    "hours": 3600 * 10**6,
    "d": 86400 * 10**6,
    "day": 86400 * 10**6,
    "days": 86400 * 10**6,
}
_SPAN = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)(?![0-9])\s*([a-zµ]*)")
_SIZE_UNITS = {"": 1, "B": 1, **{letter: 1024 ** (power + 1) for power, letter in enumerate("KMGTPE")}}
# The kernel's numbers (asm-generic/resource.h), and whether the value is a size in bytes.
LIMITS = {
    "CPU": (0, False),
    "FSIZE": (1, True),
    "DATA": (2, True),
    "STACK": (3, True),
    "CORE": (4, True),
    "RSS": (5, True),
    "NPROC": (6, False),
    "NOFILE": (7, False),
    "MEMLOCK": (8, True),
    "AS": (9, True),
    "LOCKS": (10, False),
    "SIGPENDING": (11, False),
    "MSGQUEUE": (12, True),
    "NICE": (13, False),
    "RTPRIO": (14, False),
    "RTTIME": (15, False),
}
# linux/capability.h, in the order of their numbers.
_CAPABILITIES = re.findall(
    r"\w+",
    """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
    net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
    sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
    mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore""",
)
CAPABILITY = {f"CAP_{name.upper()}": 1 << number for number, name in enumerate(_CAPABILITIES)}
ALL_CAPABILITIES = (1 << 64) - 1
INFINITY = "infinity"
# RLIMIT_NICE of the nice level -20 (getrlimit(2)).
_MOST_NICE = 40


# The kernel accepts no more CPUs (cpu_set_t of sched.h), and systemd counts time in 64 bits.
_CPUS = 1024


class BadValueError(ValueError):
    """A value that systemd would refuse, or that an early start cannot apply as systemd does. The message gives the
    reason.
    """


def refuse_octal(value: str) -> None:
    """Raise BadValueError for a number that systemd reads as octal."""
    if re.search(r"(?<![0-9.])0[0-9]", value):
        raise BadValueError("has a number that begins with 0, which systemd takes to the base 8")


def boolean(value: str) -> bool:
    if value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise BadValueError("is neither yes nor no")


def span_us(value: str) -> int | None:
    """The time span ``value`` in microseconds. A number without a unit is in seconds. The result is None for
    `infinity`.
    """
    if value.strip() == INFINITY:
        return None
    total, position = Fraction(0), 0
    while position < len(value):
        match = _SPAN.match(value, position)
        if match is None or match[2] not in _US:
            raise BadValueError("is no time span")
        # systemd counts in whole numbers, and so rounds down.
        total += Fraction(match[1]) * Fraction(_US[match[2]])
        position = match.end()
    if total >= INT64_MAX:
        raise BadValueError("is a longer time than can be counted")
    return int(total)


def size_bytes(value: str) -> str:
    """The size in bytes as a decimal number, or `infinity`. The units in ``value`` (K, M, …) are powers of 1024."""
    if value == INFINITY:
        return value
    match = re.fullmatch(r"([0-9]{1,20})\s*([A-Z]?)", value)
    # systemd ignores a line with a unit such as `KB`.
    if match is None or match[2] not in _SIZE_UNITS:
        raise BadValueError("is no size")
    size = int(match[1]) * _SIZE_UNITS[match[2]]
    # systemd leaves out the largest number, too.
    if size >= UINT64_MAX:
        raise BadValueError("is a larger size than can be counted")
    return str(size)


def limit(name: str, value: str) -> tuple[str, str, str]:
    """The words for `LimitNAME=value`. These words are the kernel's number of the resource, the soft limit and the hard
    limit.
    """
    number, is_size = LIMITS[name]

    def one(part: str) -> str:
        if part == INFINITY and name != "NICE":
            return part
        if is_size:
            return size_bytes(part)
        if name == "CPU":
            return str(-(-(span_us(part) or 0) // 10**6))
        if name == "RTTIME":
            if natural(part) is not None:
                return str(int(part))
            # In this case, every number without a unit is in microseconds.
            if re.search(r"[0-9](?:\s+[0-9]|\s*$)", part):
                raise BadValueError("has a number without a unit beside others")
            return str(span_us(part))
        refuse_octal(part)
        if name == "NICE" and re.fullmatch(r"[+-][0-9]{1,3}", part):
            return str(20 - int(integer(part, -20, 19)))
        if natural(part, _MOST_NICE if name == "NICE" else INT64_MAX) is None:
            raise BadValueError("is no limit")
        return part

    soft, colon, hard = value.partition(":")
    if soft != soft.strip() or hard != hard.strip():
        # systemd ignores such a line, too.
        raise BadValueError("has blanks beside the colon")
    both = one(soft), one(hard if colon else soft)
    # systemd ignores such a line, and keeps the earlier value.
    if both[1] != INFINITY and (both[0] == INFINITY or int(both[0]) > int(both[1])):
        raise BadValueError("has a soft limit above the hard one")
    return str(number), *both


def capabilities(value: str) -> int:
    """The bit mask of the named capabilities."""
    # The capital of some other letters is an ASCII letter.
    unknown = [name for name in value.split() if not name.isascii() or name.upper() not in CAPABILITY]
    if unknown:
        raise BadValueError(f"has an unknown capability {unknown[0]}")
    return sum({CAPABILITY[name.upper()] for name in value.split()})


def capability_set(values: Iterable[str], initial: int) -> int:
    """The bit mask of capabilities that results from successive assignments, beginning with the set ``initial``.

    While the set equals ``initial``, a value replaces the set by the named capabilities, or by all other capabilities
    if the value begins with `~`. Later values add the named capabilities to the set, or remove them if the value begins
    with `~`. An empty value clears the set, and a `~` alone sets all capabilities.
    """
    found = initial
    for value in values:
        inverted = value.startswith("~")
        mask = capabilities(value.removeprefix("~"))
        if mask == 0 or found == initial:
            found = ~mask & ALL_CAPABILITIES if inverted else mask
        else:
            found = found & ~mask if inverted else found | mask
    return found


def cpu_list(values: Iterable[str]) -> tuple[str, ...]:
    """The CPU numbers in ``values``, which are lists and ranges. Each value adds its numbers to those of the earlier
    values.
    """
    # A bit for each.
    found = 0
    for word in " ".join(map(_without_octal, values)).replace(",", " ").split():
        first, dash, last = word.partition("-")
        begin, end = natural(first), natural(last if dash else first)
        if begin is None or end is None:
            raise BadValueError("is no list of CPUs")
        # This is checked before the range is expanded.
        if begin > end or end >= _CPUS:
            raise BadValueError(f"is no list of CPUs below {_CPUS}")
        found |= (1 << end + 1) - (1 << begin)
    if not found:
        raise BadValueError("is no list of CPUs")
    return tuple(str(number) for number in range(_CPUS) if found >> number & 1)


def _without_octal(value: str) -> str:
    refuse_octal(value)
    return value


def file_mode(value: str) -> str:
    """The octal file mode ``value``, with a leading 0 as in C."""
    if not re.fullmatch(r"[0-7]{1,5}", value) or int(value, 8) > 0o7777:
        raise BadValueError("is no file mode")
    return f"0{int(value, 8):o}"


def integer(value: str, low: int, high: int) -> str:
    refuse_octal(value)
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", value) or not low <= int(value) <= high:
        raise BadValueError(f"is no number from {low} to {high}")
    return str(int(value))


def choice(value: str, known: Iterable[str]) -> str:
    names = tuple(known)
    if value not in names:
        raise BadValueError(f"is none of {', '.join(names)}")
    return value
