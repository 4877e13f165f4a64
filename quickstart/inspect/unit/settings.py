"""Convert the directives that set up the process into records of the starter's description, the text file by which the
starter starts the unit (systemd.exec(5), docs/internals/starter.md).

The records that describe the unit, such as `user` and `environment`, come first. After them come the records of the
steps that a process takes before it executes its program, in systemd's order. The `mount` records stand before the
record of the step `namespace`, which makes these mounts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath

from quickstart.inspect.unit.callfilter import call_filter, call_filter_records, lets_drop_privileges
from quickstart.inspect.unit.devices import device_records
from quickstart.inspect.unit.dynamicuser import PRIVATE, dynamic_records, is_dynamic
from quickstart.inspect.unit.journal import output_records
from quickstart.inspect.unit.mounts import (
    Record,
    host_name_records,
    is_private_tmp,
    mount_records,
    namespace,
    refuse_hidden_places,
    sys_records,
)
from quickstart.inspect.unit.seccomp import filter_records
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import (
    ALL_CAPABILITIES,
    CAPABILITY,
    LIMITS,
    BadValueError,
    boolean,
    capability_set,
    choice,
    cpu_list,
    file_mode,
    integer,
    limit,
    span_us,
)
from quickstart.parse.bounded import natural
from quickstart.parse.guestpaths import in_run, simplified

_DIRECTORIES = {
    "RuntimeDirectory": "/run",
    "StateDirectory": "/var/lib",
    "CacheDirectory": "/var/cache",
    "LogsDirectory": "/var/log",
    "ConfigurationDirectory": "/etc",
}
# setuid and setgid. When systemd gives a directory to a made-up user, it removes these bits. systemd 257 sets them
# again at a later start (setup_exec_directory in src/core/exec-invoke.c).
_TAKEN_AWAY = 0o6000
_VARIABLES = {
    "RuntimeDirectory": "RUNTIME_DIRECTORY",
    "StateDirectory": "STATE_DIRECTORY",
    "CacheDirectory": "CACHE_DIRECTORY",
    "LogsDirectory": "LOGS_DIRECTORY",
    "ConfigurationDirectory": "CONFIGURATION_DIRECTORY",
}
# environ(7) and systemd's env_assignment_is_valid(): other names, and values with control characters, are left out.
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0-\x08\x0b-\x1f\x7f]*", re.DOTALL)
# systemd gives itself other values of these than the kernel gives init.
_OF_PID_ONE = ("HOME", "PATH", "TERM")
_POLICIES = {"other": 0, "fifo": 1, "rr": 2, "batch": 3, "idle": 5}
# systemd makes best-effort of `none` (ioprio_normalize).
_IO_CLASSES = {"none": 2, "realtime": 1, "best-effort": 2, "idle": 3, "0": 2, "1": 1, "2": 2, "3": 3}
_SECURE_BITS = {
    "noroot": 1,
    "noroot-locked": 2,
    "no-setuid-fixup": 4,
    "no-setuid-fixup-locked": 8,
    "keep-caps": 16,
    "keep-caps-locked": 32,
}
# What each of them takes out of the bounding set (systemd's unit_patch_contexts).
_TAKES_AWAY = {
    "PrivateDevices": ("CAP_MKNOD", "CAP_SYS_RAWIO"),
    "ProtectKernelModules": ("CAP_SYS_MODULE",),
    "ProtectKernelLogs": ("CAP_SYSLOG",),
    "ProtectClock": ("CAP_SYS_TIME", "CAP_WAKE_ALARM"),
}
# PID 1's defaults for services (systemd-system.conf(5)): 252's and 257's.
_DEFAULT_LIMITS = {"NOFILE": "1024:524288", "MEMLOCK": "8M"}


def settings(source: Source) -> tuple[Record, ...]:
    """All of the starter's records for the directives in ``source``, except the records for commands. Raises
    UnsupportedUnitError with the name of a directive that an early start cannot repeat.
    """
    mounted = tuple(mount_records(source))
    own = namespace(source, mounted)
    directories = tuple(_directories(source))
    writable = tuple(_writable(directories)) if own else ()
    refuse_hidden_places(source, mounted + writable)
    filters = (*filter_records(source), *call_filter_records(source))
    return (
        *_facts(source),
        *device_records(source),
        *_environment(source),
        *_scheduling(source),
        *directories,
        *_keyring(source),
        *((("own-network",),) if source.flag("PrivateNetwork") else ()),
        *(mounted + writable),
        *((*host_name_records(source), *sys_records(source)) if own else ()),
        *own,
        *((("own-host-name",),) if source.flag("ProtectHostname") else ()),
        *_identity(source, _privileges_of(source) if filters else ""),
        *filters,
    )


def _facts(source: Source) -> Iterator[Record]:
    for name, key in (("User", "user"), ("Group", "main-group")):
        if name in source.found:
            yield key, source.names.expand(source.last(name))
    yield from dynamic_records(source)
    if not source.flag("IgnoreSIGPIPE", otherwise=True):
        yield "ignore-sigpipe", "no"
    yield from output_records(source)
    if is_private_tmp(source):
        yield "private-tmp", "yes"
    watchdog = source.value("WatchdogSec", span_us)
    if watchdog:
        yield "watchdog-usec", str(watchdog)


def _environment(source: Source) -> Iterator[Record]:
    for name, base in _DIRECTORIES.items():
        paths = [f"{base}/{each}" for each in _directory_names(source, name)]
        if paths:
            yield "own-environment", f"{_VARIABLES[name]}={':'.join(paths)}"
    if source.unit == "dbus.service":
        # Otherwise, the bus asks PID 1 for users, and PID 1 asks the bus (service_spawn in systemd's src/core/service.c).
        yield "own-environment", "SYSTEMD_NSS_DYNAMIC_BYPASS=1"
    if "PIDFile" in source.found:
        path = source.names.expand(source.last("PIDFile"))
        yield (
            "own-environment",
            f"PIDFILE={in_run(simplified(path if path.startswith('/') else f'/run/{path}'))}",
        )
    for word in map(source.names.expand, source.words("PassEnvironment")):
        if word in _OF_PID_ONE:
            raise source.refusal("PassEnvironment", word, BadValueError("is another one of PID 1"))
        yield "pass-environment", word
    for word in source.words("Environment"):
        assignment = source.names.expand(word, with_host_name=True)
        if not _ASSIGNMENT.fullmatch(assignment):
            raise source.refusal("Environment", word, BadValueError("is no assignment"))
        yield "environment", assignment
    for value in source.all("EnvironmentFile"):
        path = source.plain_path("EnvironmentFile", value.removeprefix("-"))
        yield "environment-file", "optional" if value.startswith("-") else "required", path
    yield from (("unset-environment", source.names.expand(word)) for word in source.words("UnsetEnvironment"))


def _scheduling(source: Source) -> Iterator[Record]:
    if score := source.value("OOMScoreAdjust", lambda value: integer(value, -1000, 1000)):
        yield "oom-score-adjust", score
    if nice := source.value("Nice", lambda value: integer(value, -20, 19)):
        yield "nice", nice
    policy = source.value("CPUSchedulingPolicy", lambda value: _POLICIES[choice(value, _POLICIES)])
    priority = source.value("CPUSchedulingPriority", lambda value: integer(value, 0, 99))
    reset = source.flag("CPUSchedulingResetOnFork")
    # Alone, it has no effect (cpu_sched_set in systemd's src/core/execute.c).
    if policy is not None or priority is not None:
        _last_only(source, "CPUSchedulingPolicy")
        real_time = policy in (_POLICIES["fifo"], _POLICIES["rr"])
        if priority not in (None, "0") and not real_time:
            raise source.refusal(
                "CPUSchedulingPriority", priority or "", BadValueError("is for fifo and rr only")
            )
        yield "scheduler", str(policy or 0), priority or ("1" if real_time else "0"), str(int(reset))
    if any(not re.search("[0-9]", value) for value in source.all("CPUAffinity")):
        raise source.refusal("CPUAffinity", source.last("CPUAffinity"), BadValueError("has no number"))
    if "CPUAffinity" in source.found:
        yield (
            "cpus",
            *source.converted(
                "CPUAffinity", " ".join(source.all("CPUAffinity")), lambda all: cpu_list([all])
            ),
        )
    io_class = source.value("IOSchedulingClass", lambda value: _IO_CLASSES[choice(value, _IO_CLASSES)])
    io_priority = source.value("IOSchedulingPriority", lambda value: integer(value, 0, 7))
    if io_class is not None or io_priority is not None:
        yield "io-priority", str(2 if io_class is None else io_class), io_priority or "4"
    slack = source.value(
        "TimerSlackNSec",
        _nanoseconds,
    )
    if slack is not None:
        yield "timer-slack-ns", slack
    yield "umask", source.value("UMask", file_mode) or "022"


def _directory_names(source: Source, name: str) -> tuple[str, ...]:
    found = tuple(source.names.expand(word) for word in source.words(name))
    for each in found:
        if each.startswith("/") or ":" in each or ".." in each.split("/"):
            raise source.refusal(name, each, BadValueError("is no plain relative path"))
        # It would be the directory of all units.
        if not PurePosixPath(each).parts:
            raise source.refusal(name, each, BadValueError("is no name of a directory"))
        # The directories of all units with DynamicUser= are there. systemd leaves such a name out.
        if PurePosixPath(each).parts[:1] == ("private",):
            raise source.refusal(name, each, BadValueError("is the place of other units' directories"))
    # systemd sorts them, and takes each once (exec_directory_sort).
    return tuple(str(path) for path in sorted({PurePosixPath(each) for each in found}))


def _directories(source: Source) -> Iterator[Record]:
    for name, base in _DIRECTORIES.items():
        mode = source.value(f"{name}Mode", file_mode) or "0755"
        owner = "root" if name == "ConfigurationDirectory" else "user"
        names = _directory_names(source, name)
        if names and owner == "user" and is_dynamic(source) and int(mode, 8) & _TAKEN_AWAY:
            why = BadValueError("has a bit that systemd takes away, with DynamicUser=")
            raise source.refusal(f"{name}Mode", mode, why)
        for each in names:
            if name in PRIVATE and is_dynamic(source):
                if "/" in each:
                    raise source.refusal(
                        name, each, BadValueError("has more than one part, with DynamicUser=")
                    )
                yield "private-directory", mode, base, each
            elif "/" in each and owner == "user" and is_dynamic(source):
                # The application could own the directory above, and put a link in this one's place (init/hand-off).
                raise source.refusal(name, each, BadValueError("has more than one part, with DynamicUser="))
            else:
                yield "directory", owner, mode, f"{base}/{each}"


def _writable(directories: Iterable[Record]) -> Iterator[Record]:
    """The records of the mounts that let the unit write to its ``directories`` even if ProtectSystem= makes the file
    system read-only. In a directory such as /var/lib/private, the unit sees only its own directories.
    """
    roots = (record[2] for record in directories if record[0] == "private-directory")
    yield from (("mount", "private-root", "required", f"{base}/private") for base in dict.fromkeys(roots))
    for kind, *words in directories:
        path = f"{words[1]}/private/{words[2]}" if kind == "private-directory" else words[2]
        yield "mount", "read-write", "required", path


def _last_only(source: Source, name: str) -> None:
    """Raise UnsupportedUnitError for several assignments to a directive that its manual page and systemd take
    differently.
    """
    if len(source.all(name)) > 1:
        raise source.refusal(name, source.last(name), BadValueError("has several assignments"))


def _keyring(source: Source) -> Iterator[Record]:
    mode = (
        source.value("KeyringMode", lambda value: choice(value, ("inherit", "private", "shared")))
        or "private"
    )
    if mode != "inherit":
        yield "keyring", mode


def _limits(source: Source) -> Iterator[Record]:
    for name in LIMITS:
        convert = partial(limit, name)
        if f"Limit{name}" in source.found:
            yield "limit", *source.converted(f"Limit{name}", source.last(f"Limit{name}"), convert)
        elif name == "RTPRIO" and source.flag("RestrictRealtime"):
            yield "limit", *limit(name, "0")
        elif f"DefaultLimit{name}" in source.manager:
            value = source.manager[f"DefaultLimit{name}"][-1]
            yield "limit", *source.converted(f"DefaultLimit{name}", value, convert)
        elif name in _DEFAULT_LIMITS:
            yield "limit", *limit(name, _DEFAULT_LIMITS[name])


def _privileges_of(source: Source) -> str:
    """What the loading of filters does with the process' privileges. An unprivileged process may load a filter only
    without new privileges, for ever. The systemd of Debian 13 loads the filters before the process becomes
    unprivileged, unless a filter forbids this.
    """
    keeps = "User" in source.systemd.newer and lets_drop_privileges(call_filter(source))
    return "after-filters" if keeps else "for-filters"


def _identity(source: Source, privileges: str) -> Iterator[Record]:
    """The records of the steps that drop privileges. These steps set groups, limits, capabilities and the user.
    ``privileges`` is what the filters need, or empty without filters.
    """
    if {"User", "Group", "SupplementaryGroups"} & set(source.found):
        yield "groups", *(source.names.expand(word) for word in source.words("SupplementaryGroups"))
    yield from _limits(source)
    if source.flag("PrivateUsers"):
        yield ("own-users",)
    bounding = source.converted(
        "CapabilityBoundingSet",
        " ".join(source.every("CapabilityBoundingSet")),
        lambda _: capability_set(source.every("CapabilityBoundingSet"), ALL_CAPABILITIES),
    )
    for name, taken in _TAKES_AWAY.items():
        if source.flag(name):
            bounding &= ~sum(CAPABILITY[each] for each in taken)
    if bounding != ALL_CAPABILITIES:
        yield "bounding-set", f"{bounding:x}"
    ambient = source.converted(
        "AmbientCapabilities",
        " ".join(source.every("AmbientCapabilities")),
        lambda _: capability_set(source.every("AmbientCapabilities"), 0),
    ) & sum(CAPABILITY.values())
    if ambient:
        yield "ambient", f"{ambient:x}"
    if "User" in source.found:
        yield ("become-user",)
    yield from _working_directory(source)
    bits = 0
    _last_only(source, "SecureBits")
    for word in source.words("SecureBits"):
        bits |= source.converted("SecureBits", word, lambda each: _SECURE_BITS[choice(each, _SECURE_BITS)])
    if bits:
        yield "secure-bits", f"{bits:x}"
    if source.value("NoNewPrivileges", boolean):
        yield "no-new-privileges", "always"
    elif privileges:
        yield "no-new-privileges", privileges


def _nanoseconds(value: str) -> str:
    """A time in nanoseconds: a whole number, which may have a unit."""
    if natural(value) is not None:
        return str(int(value))
    if not re.fullmatch(r"[0-9]+ ?(us|ms|s)", value):
        raise BadValueError("is no whole number of us, ms or s")
    return str((span_us(value) or 0) * 1000)


def _working_directory(source: Source) -> Iterator[Record]:
    value = source.last("WorkingDirectory")
    if not value:
        return
    bare = value.removeprefix("-")
    if bare == "~" and "User" not in source.found:
        raise source.refusal(
            "WorkingDirectory", value, BadValueError("sets HOME, too, for a unit without User=")
        )
    path = bare if bare == "~" else source.plain_path("WorkingDirectory", bare)
    yield "working-directory", "optional" if value.startswith("-") else "required", path
