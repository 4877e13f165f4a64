"""The steps that PID 1 of the image's systemd takes before it starts anything, and the meaning of some directives, as
far as versions of systemd differ in them (main.c of systemd's src/core). Init does everything else of this kind for
each image (initramfs/init/second).

Distributions may switch these steps off when they build systemd. So this module looks into the program itself, where
a step that is compiled in has a message of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import Directives

_PROGRAM = PurePosixPath("/usr/lib/systemd/systemd")
# Which starts the services, since systemd 255.
_EXECUTOR = PurePosixPath("/usr/lib/systemd/systemd-executor")
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/systemd")
_RAISES_NR_OPEN = b"Failed to bump fs.nr_open"
# A message of the reader of environment files, which is in systemd's own library (env-file.c of systemd 254 and
# later).
_ENDS_COMMENTS = b"is now treated as a non comment line since v254"
_RAISES_CORE_LIMIT = b"Failed to set RLIMIT_CORE"
# With DynamicUser= (namespace.c of systemd 257).
_MAPS_OWNERS, _OWN_TMP = b"ID-mapped mount created successfully", b"unit-private-tmp"
# With which words a newer systemd does more for these directives: exec-invoke.c and namespace.c of systemd 254 and later.
_NEWER = {
    "MemoryDenyWriteExecute": b"MemoryDenyWriteExecute= with PR_SET_MDWE",
    "PrivateNetwork": b"private-sysfs",
}
_CORE, _SHARED = "libsystemd-core", "libsystemd-shared"
# systemd 257's have 4 MiB.
_MOST_BYTES = 64 << 20


def raises_nr_open(root: ImageRoot) -> bool:
    """Whether PID 1 raises fs.nr_open, which bounds LimitNOFILE= (Debian 13's does, Debian 12's does not)."""
    return _has(root, _RAISES_NR_OPEN)


def limits_of_pid_one(root: ImageRoot) -> Directives:
    """The limits that PID 1 sets for itself and that its services inherit, as directives of system.conf. In Debian
    13, PID 1 has no limit for core dumps. In Debian 12, it has the kernel's limit.
    """
    return {"DefaultLimitCORE": ("infinity",)} if _has(root, _RAISES_CORE_LIMIT) else {}


def maps_owners(root: ImageRoot) -> bool:
    """Whether the private directories of a unit with DynamicUser= belong to nobody on the volume, and to the unit's
    user only in the unit's namespace. This is so in Debian 13. In Debian 12, they belong to the user on the volume,
    too.
    """
    return _has(root, _MAPS_OWNERS)


def has_own_tmp(root: ImageRoot) -> bool:
    """Whether a unit with DynamicUser= and without PrivateTmp= has a new file system at /tmp. This is so in Debian
    13. In Debian 12, the unit has a directory in /tmp.
    """
    return _has(root, _OWN_TMP)


def newer_directives(root: ImageRoot, names: Collection[str]) -> frozenset[str]:
    """Those of the directives ``names`` for which the image's systemd does what Debian 13's does, and Debian 12's does not:
    it denies write and execute by the kernel's own means (PR_SET_MDWE), and PrivateNetwork= implies PrivateMounts= and a
    new /sys.
    """
    return frozenset(name for name, message in _NEWER.items() if name in names and _has(root, message))


def comment_records(root: ImageRoot) -> tuple[tuple[str, ...], ...]:
    """The record which says that a comment in a file of variables (EnvironmentFile=, /etc/default/locale) ends with its
    line, even if this line ends with a backslash. Empty for systemd before version 254, where the comment goes on.
    """
    return (("comments", "one-line"),) if _has(root, _ENDS_COMMENTS, _SHARED) else ()


def _has(root: ImageRoot, message: bytes, kind: str = _CORE) -> bool:
    return any(message in root.read_bytes(path, _MOST_BYTES) for path in _programs(root, kind))


def _programs(root: ImageRoot, kind: str) -> Iterator[PurePosixPath]:
    """systemd's program and its libraries of this kind, each once: many names may be links to one large file."""
    libraries = (path for place in _LIBRARIES for path in root.glob(PurePosixPath(place) / f"{kind}-*.so"))
    found = dict.fromkeys(root.resolve(path).canonical for path in (_PROGRAM, _EXECUTOR, *libraries))
    yield from (path for path in found if path is not None and root.host(path).is_file())
