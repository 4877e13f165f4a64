"""Convert the limits of the unit's cgroup and of its slices into records of the starter's description, the text
file by which the starter starts the unit.

systemd.resource-control(5) explains the directives. The attributes and values are those that systemd 252 writes
(cgroup_context_apply). We did not compare later versions line by line. The starter writes the attributes before the
unit's first process starts. The kernel defines the names and units of the attributes
(Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.delegation import delegate_records, delegated
from quickstart.inspect.unit.files import assignments, slice_texts
from quickstart.inspect.unit.slices import slice_names
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import (
    INFINITY,
    BadValueError,
    choice,
    cpu_list,
    integer,
    refuse_octal,
    size_bytes,
    span_us,
)
from quickstart.parse.bounded import INT64_MAX

Record = tuple[str, ...]

# systemd-system.conf(5): of the tasks that the machine may have.
_DEFAULT_TASKS_MAX = "15%"
# systemd starts initramfs/init/adopt in the unit's control group, beside what runs there, until it leaves the group.
_FEWEST_TASKS = 8
_OOM_POLICIES = ("continue", "stop", "kill")
_MEMORY = {
    "MemoryMin": "memory.min",
    "MemoryLow": "memory.low",
    "MemoryHigh": "memory.high",
    "MemoryMax": "memory.max",
    "MemorySwapMax": "memory.swap.max",
}
# 0 means something only for these.
_MAY_BE_0 = ("MemoryMin", "MemoryLow", "MemorySwapMax")
_PROTECTING = ("MemoryMin", "MemoryLow")
# How many decimal places lead to parts of ten thousand.
_PLACES = {"%": 2, "‰": 1, "‱": 0}
_SHARE = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,2}))?([%‰‱])")
_WHOLE = 10_000
_PERIOD_US, _SHORTEST_US, _LONGEST_US = 100_000, 1_000, 1_000_000
_MOST_WEIGHT = 10_000
_INT_MAX = (1 << 31) - 1


def resource_records(root: ImageRoot, source: Source) -> Iterator[Record]:
    """A `cgroup-attribute` record for each attribute that differs from the default of a new cgroup. The records of the
    outermost slice come first, and those of the unit's own cgroup last. After these records comes the record `delegate`
    if the unit has Delegate= (delegation.py).

    The words of a `cgroup-attribute` record are the number of levels above the unit's cgroup, the attribute, and the
    value. The value is usually one word. For a share of the machine's tasks or memory, the value is three words:
    `tasks` or `memory`, the share's numerator and the share's denominator. Raises UnsupportedUnitError for a value that
    the starter cannot set.
    """
    names = slice_names(source)
    default = source.manager.get("DefaultTasksMax", (_DEFAULT_TASKS_MAX,))[-1]
    above: tuple[Source, ...] = ()
    for level, name in enumerate(names):
        found = assignments(slice_texts(root, name), "[Slice]")
        inner = Source(f"{source.unit} (in {name})", found, source.manager)
        is_limited = "TasksMax" in dict(found)
        if level > 0:
            # A slice has no limit by default, but an empty value stands for the manager's default.
            is_emptied = is_limited and not inner.every("TasksMax")[-1]
            yield from _attributes(inner, str(len(names) - level), above, default if is_emptied else INFINITY)
        elif is_limited:
            # The root group has no such attribute, so systemd sets the machine's own limits.
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: its slice {name} has TasksMax",
                hint="say it of system.slice, or by kernel.pid_max and kernel.threads-max in sysctl.d(5)",
            )
        above = (inner, *above)
    yield from _attributes(source, "0", above, default)
    # A unit with groups of its own handles the kernel's kills in them itself (service_add_extras in systemd's
    # src/core/service.c).
    policy = (
        source.manager.get("DefaultOOMPolicy", ("stop",))[-1] if delegated(source) is None else "continue"
    )
    if source.converted("OOMPolicy", source.last("OOMPolicy", policy), _oom_policy) == "kill":
        yield "cgroup-attribute", "0", "memory.oom.group", "1"
    yield from delegate_records(source)


def _attributes(
    source: Source, level: str, above: tuple[Source, ...], default_tasks_max: str = INFINITY
) -> Iterator[Record]:
    """The records of one cgroup. ``level`` is the number of levels above the unit's cgroup.
    ``default_tasks_max`` applies when ``source`` has no TasksMax=. ``above`` are the slices that contain the
    cgroup, the innermost first.
    """
    rows = [
        ("pids.max", source.converted("TasksMax", source.last("TasksMax", default_tasks_max), _tasks)),
        *_memory_limits(source, above).items(),
        *_cpu(source),
        ("cpuset.cpus", _numbers(source, "AllowedCPUs")),
        ("cpuset.mems", _numbers(source, "AllowedMemoryNodes")),
        ("io.weight", source.value(_at_start(source, "IOWeight"), _io_weight)),
    ]
    yield from (("cgroup-attribute", level, name, *value) for name, value in rows if value is not None)


def _memory_limits(source: Source, above: tuple[Source, ...]) -> dict[str, Record | None]:
    """The value of each memory limit, by attribute. The value None means that the attribute keeps its default. When no
    other memory limit is set, MemoryLimit= of cgroup v1 counts as MemoryMax= (unit_has_unified_memory_config).
    """
    limits = {attribute: _memory_limit(source, above, name) for name, attribute in _MEMORY.items()}
    of_v1 = source.value("MemoryLimit", partial(_memory, "MemoryMax"))
    if not any(limits.values()):
        limits["memory.max"] = of_v1
    return limits


def _memory_limit(source: Source, above: tuple[Source, ...], name: str) -> Record | None:
    """The value of the directive ``name`` for the cgroup of ``source``. A directive that protects memory, such as
    MemoryLow=, may have no assignment in ``source``. In this case, DefaultMemoryLow= applies, as assigned in the
    innermost slice that assigns it (unit_get_ancestor_memory_low). An empty assignment also counts, and means 0.
    """
    if name not in _PROTECTING:
        return source.value(name, partial(_memory, name))
    for each, key in ((source, name), *((slice_, f"Default{name}") for slice_ in above)):
        if values := each.every(key):
            return each.converted(key, values[-1], partial(_memory, name)) if values[-1] else None
    return None


def _cpu(source: Source) -> Iterator[tuple[str, Record | None]]:
    weight = _at_start(source, "CPUWeight")
    if source.last(weight) == "idle":
        yield "cpu.idle", ("1",)
    else:
        yield "cpu.weight", source.value(weight, lambda value: (integer(value, 1, _MOST_WEIGHT),))
    quota = source.value("CPUQuota", _quota_us)
    period = source.value("CPUQuotaPeriodSec", span_us) or _PERIOD_US
    if quota is not None:
        # cgroup_cpu_adjust_period: the kernel has a shortest time for the period, and for the part of the period that
        # may be used.
        period = min(max(period, _SHORTEST_US, _SHORTEST_US * 10**6 // quota), _LONGEST_US)
        yield "cpu.max", (f"{max(quota * period // 10**6, _SHORTEST_US)} {period}",)


def _at_start(source: Source, name: str) -> str:
    """The directive that applies while the machine starts: `StartupNAME=` if the unit has it, or else ``name``."""
    return f"Startup{name}" if f"Startup{name}" in source.found else name


def _numbers(source: Source, name: str) -> Record | None:
    """The numbers of CPUs or memory nodes, as one word with commas. Each assignment adds to the list. The result is
    None when the directive has no value.
    """
    name = _at_start(source, name)
    if name not in source.found:
        return None
    numbers = source.converted(name, " ".join(source.all(name)), lambda value: cpu_list([value]))
    return (",".join(numbers),)


def _tasks(value: str) -> Record | None:
    if value == INFINITY:
        return None
    share = _share(value, _WHOLE)
    if share is not None:
        return "tasks", str(share), str(_WHOLE)
    number = integer(value, 1, INT64_MAX)
    if int(number) < _FEWEST_TASKS:
        raise BadValueError(
            "is too low: at the hand-off, some programs run beside the application in its control group"
        )
    return (number,)


def _memory(name: str, value: str) -> Record | None:
    """The words for a memory limit. The result is None when the value is the default of a new cgroup."""
    protects = name in _PROTECTING
    if value == INFINITY:
        return ("max",) if protects else None
    share = _share(value, _WHOLE)
    found = ("memory", str(share), str(_WHOLE)) if share is not None else (size_bytes(value),)
    if share == 0 or found == ("0",):
        if name not in _MAY_BE_0:
            raise BadValueError("is out of range")
        return None if protects else ("0",)
    return found


def _quota_us(value: str) -> int:
    """The CPU quota in microseconds per second."""
    share = _share(value, _INT_MAX)
    if not share:
        raise BadValueError("is no share of a CPU")
    return share * 10**6 // _WHOLE


def _io_weight(value: str) -> Record:
    return (f"default {integer(value, 1, _MOST_WEIGHT)}",)


def _oom_policy(value: str) -> str:
    return choice(value, _OOM_POLICIES)


def _share(value: str, most: int) -> int | None:
    """The share ``value`` as a number of ten-thousandths: 1250 for `12.5%`, `125‰` or `1250‱`. The result is None for a
    text that is not a share.
    """
    match = _SHARE.fullmatch(value)
    if match is None:
        return None
    refuse_octal(value)
    places = _PLACES[match[3]]
    decimals = match[2] or ""
    parts = int(match[1] + decimals.ljust(places, "0"))
    if len(decimals) > places or parts > most:
        raise BadValueError("is out of range")
    return parts
