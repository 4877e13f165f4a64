"""Find out how the version of the image's systemd differs from other versions. Versions differ in some of the steps
that PID 1 takes before it starts any unit (main.c of systemd's src/core), and in the meaning of some directives. Init
takes the steps that do not differ in the same way for each image (initramfs/init/second).

When a distribution builds systemd, it may switch off a step that differs between versions. So this module searches
systemd's program for the log messages that PID 1 prints in these steps. If a step is compiled in, the program contains
the step's message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import Directives, assignments, manager_texts

_PROGRAM = PurePosixPath("/usr/lib/systemd/systemd")
# The program that starts the services, since systemd 255.
_EXECUTOR = PurePosixPath("/usr/lib/systemd/systemd-executor")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/systemd")
_RAISES_NR_OPEN = b"Failed to bump fs.nr_open"
# A message of the reader of environment files, which is in systemd's own library (env-file.c of systemd 254 and
# later).
_ENDS_COMMENTS = b"is now treated as a non comment line since v254"
_RAISES_CORE_LIMIT = b"Failed to set RLIMIT_CORE"
# Type=notify-reload (service.c of systemd 253 and later).
_RELOAD = b"notify-reload"
# With DynamicUser= (namespace.c of systemd 257).
_MAPS_OWNERS, _OWN_TMP = b"ID-mapped mount created successfully", b"unit-private-tmp"
_CORE, _SHARED = "libsystemd-core", "libsystemd-shared"
# Strings in the programs of a newer systemd that treats these directives in another way, with the library that may have
# the string (exec-invoke.c, namespace.c and seccomp-util.c of systemd 254 to 257).
_NEWER = {
    "MemoryDenyWriteExecute": (b"MemoryDenyWriteExecute= with PR_SET_MDWE", _CORE),
    "PrivateNetwork": (b"private-sysfs", _CORE),
    "ProtectHome": (_OWN_TMP, _CORE),
    "SystemCallFilter": (b"SCMP_FLTATR_CTL_OPTIMIZE", _SHARED),
    "User": (b"Failed to keep CAP_SYS_ADMIN", _CORE),
}
# systemd 255 and later set $USER for each service (build_environment in exec-invoke.c).
_NAMES_ROOT = b"Failed to determine user credentials for root"
# The libraries of systemd 257 have 4 MiB.
_MOST_BYTES = 64 << 20
# Settings of systemd-system.conf(5) that are not read here. Every service has them, or inherits them from PID 1.
_MANAGERS = (
    *(
        "ManagerEnvironment",
        "CapabilityBoundingSet",
        "NoNewPrivileges",
        "SystemCallArchitectures",
        "DefaultEnvironment",
    ),
    *("CPUAffinity", "NUMAPolicy", "NUMAMask", "TimerSlackNSec", "DefaultTimerSlackNSec"),
    *("DefaultOOMScoreAdjust", "DefaultRestrictSUIDSGID", "ProtectSystem"),
)


def raises_nr_open(root: ImageRoot) -> bool:
    """Whether PID 1 raises the kernel setting fs.nr_open, which is the upper limit for LimitNOFILE=. PID 1 of Debian 13
    raises this setting, and PID 1 of Debian 12 does not.
    """
    return _has(root, _RAISES_NR_OPEN)


def raises_core_limit(root: ImageRoot) -> bool:
    """Whether PID 1 has no limit for core dumps. Then PID 1 also sets kernel.core_pattern to a program that discards
    them, until sysctl.d(5) names another one (initialize_coredump in main.c of systemd's src/core). The result is true
    for Debian 13.
    """
    return _has(root, _RAISES_CORE_LIMIT)


def limits_of_pid_one(root: ImageRoot) -> Directives:
    """The limits that PID 1 sets for itself and that its services inherit, as directives of system.conf. In Debian 13,
    PID 1 has no limit for core dumps. In Debian 12, PID 1 has the kernel's limit for core dumps.
    """
    return {"DefaultLimitCORE": ("infinity",)} if raises_core_limit(root) else {}


def refuse_manager(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for settings in system.conf that apply to PID 1 and thus to every service, even with
    an empty value. A process that starts early would lack these settings.
    """
    assigned = dict(assignments(manager_texts(root), "[Manager]"))
    lost = [name for name in _MANAGERS if name in assigned]
    if lost:
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the image's system.conf has {', '.join(lost)}",
            hint="say it in drop-ins of the services (service.d) instead; see docs/internals/starter.md",
        )


def knows_reload(root: ImageRoot) -> bool:
    """Whether the image's systemd has Type=notify-reload, as systemd 253 and later have."""
    return _has(root, _RELOAD)


def maps_owners(root: ImageRoot) -> bool:
    """Whether the private directories of a unit with DynamicUser= belong to the user `nobody` on the volume, and to the
    unit's user only in the unit's namespace. The result is true for Debian 13. In Debian 12, the directories belong to
    the unit's user on the volume, too.
    """
    return _has(root, _MAPS_OWNERS)


def has_own_tmp(root: ImageRoot) -> bool:
    """Whether a unit with DynamicUser= and without PrivateTmp= has a new file system at /tmp. The result is true for
    Debian 13. In Debian 12, such a unit has a directory in the machine's /tmp.
    """
    return _has(root, _OWN_TMP)


def newer_directives(root: ImageRoot, names: Collection[str]) -> frozenset[str]:
    """The directives among ``names`` that the image's systemd handles like Debian 13's systemd, and not like Debian
    12's. These are the differences:

    - MemoryDenyWriteExecute=: the kernel denies write and execute (PR_SET_MDWE).
    - PrivateNetwork= implies PrivateMounts= and a new /sys.
    - ProtectHome=tmpfs: the file systems are small and read-only.
    - SystemCallFilter= with a list of allowed calls: a call that systemd does not know fails with ENOSYS.
    - User=: the process can load filters of system calls without giving up new privileges.
    """
    return frozenset(
        name for name, (text, kind) in _NEWER.items() if name in names and _has(root, text, kind)
    )


def names_root(root: ImageRoot) -> bool:
    """Whether a service without User= has USER=root in its environment. The result is true for Debian 13."""
    return _has(root, _NAMES_ROOT)


def comment_records(root: ImageRoot) -> tuple[tuple[str, ...], ...]:
    """The record which tells the starter that a comment in a file of variables (EnvironmentFile=, /etc/default/locale)
    ends with its line, even if this line ends with a backslash. The result is empty for systemd before version 254, in
    which such a comment continues on the next line.
    """
    return (("comments", "one-line"),) if _has(root, _ENDS_COMMENTS, _SHARED) else ()


def _has(root: ImageRoot, message: bytes, kind: str = _CORE) -> bool:
    return any(message in root.read_bytes(path, _MOST_BYTES) for path in _programs(root, kind))


def _programs(root: ImageRoot, kind: str) -> Iterator[PurePosixPath]:
    """The paths of systemd's programs and of its libraries with the name ``kind``. Each file occurs only once, because
    many names may be links to one large file.
    """
    libraries = (path for place in _LIBRARIES for path in root.glob(PurePosixPath(place) / f"{kind}-*.so"))
    found = dict.fromkeys(root.resolve(path).canonical for path in (_PROGRAM, _EXECUTOR, *libraries))
    yield from (path for path in found if path is not None and root.host(path).is_file())
