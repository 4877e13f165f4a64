"""Find out who owns an open file. For a file on a FUSE file system, find out which user has mounted this file system.

The program that serves a FUSE file system chooses the owners and modes that the file system shows (fuse(4)). This
module does not rely on these owners and modes, and so also finds the user who mounted such a file system.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The ID that a user namespace shows in place of an ID that it does not map (user_namespaces(7)).
OVERFLOW = 65534
UNKNOWN = -1
# linux/magic.h, as statfs(2) says it.
FUSE, PROC = 0x65735546, 0x9FA0
_STATFS_BYTES = 256
_PROC_SELF = Path("/proc/self")

# One row of /proc/PID/uid_map: the first ID inside, the first outside, how many (user_namespaces(7)).
Extent = tuple[int, int, int]
_EVERY_ID: tuple[Extent, ...] = ((0, 0, 2**32 - 1),)


@dataclass(frozen=True)
class Owner:
    """The owner and group of a file. ``mounter`` is the user who mounted the FUSE file system of the file. ``mounter``
    is None when the file system is not FUSE, and UNKNOWN when the user is not known.
    """

    uid: int
    gid: int
    mounter: int | None = None


def owner_here(fd: int) -> Owner:
    """The owner of an open file, as the user namespace of this process shows it. Raises the OSError of fstat(2)."""
    status = os.fstat(fd)
    return Owner(status.st_uid, status.st_gid, _mounter(status.st_dev) if file_system(fd) == FUSE else None)


def mounter_of(fd: int) -> int | None:
    """The user who mounted the FUSE file system of an open file. The result is UNKNOWN when the user is not known, and
    None when the file system is not FUSE.
    """
    try:
        return _mounter(os.fstat(fd).st_dev) if file_system(fd) == FUSE else None
    except OSError:
        # Only a FUSE file system refuses this to a process that has opened the file.
        return UNKNOWN


def file_system(fd: int) -> int:
    """The type of the file system that has the open file ``fd``. The type is f_type, the first field of the result of
    fstatfs(2).
    """
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(fd, buffer) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    return ctypes.c_long.from_buffer(buffer).value


def fuse_users(mountinfo: str) -> Mapping[str, int]:
    """The IDs of the users who mounted FUSE file systems. The keys are the devices of the file systems (`major:minor`).
    ``mountinfo`` is the text of /proc/PID/mountinfo (proc(5)).

    A virtiofs file system is also a FUSE file system, but only root can mount it. So the user of a virtiofs file system
    is always root. The result leaves out any other file system whose user ``mountinfo`` does not name.
    """
    found: dict[str, int] = {}
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        words, more = mount.split(), file_system.split()
        if len(words) < 3 or len(more) < 3:
            continue
        options = dict(each.partition("=")[::2] for each in more[2].split(","))
        if more[0] == "virtiofs":
            found[words[2]] = 0
        elif options.get("user_id", "").isdecimal():
            found[words[2]] = int(options["user_id"])
    return found


def maps_all() -> bool:
    """Whether the user namespace of this process maps every user ID of the host to itself."""
    return mapped("uid") == _EVERY_ID


def mapped(kind: str) -> tuple[Extent, ...]:
    """The IDs that the user namespace of this process maps. ``kind`` is ``uid`` or ``gid``."""
    return extents((_PROC_SELF / f"{kind}_map").read_text())


def extents(text: str) -> tuple[Extent, ...]:
    """The rows of ``text``, which has the format of /proc/PID/uid_map. This function is pure."""
    rows = (tuple(map(int, line.split())) for line in text.splitlines())
    return tuple((row[0], row[1], row[2]) for row in rows if len(row) == 3)


def inside(outside: int, rows: Sequence[Extent]) -> int | None:
    """The ID in the user namespace that stands for the ID ``outside`` of the parent namespace. The result is None when
    the user namespace does not map this ID.
    """
    for first, beyond, count in rows:
        if beyond <= outside < beyond + count:
            return first + outside - beyond
    return None


def _mounter(device: int) -> int:
    """The ID, in this user namespace, of the user who mounted the file system. If the namespace does not map this user,
    the result is OVERFLOW for root, and UNKNOWN for any other user.
    """
    named = f"{os.major(device)}:{os.minor(device)}"
    outside = fuse_users((_PROC_SELF / "mountinfo").read_text(errors="replace")).get(named, UNKNOWN)
    here = inside(outside, mapped("uid"))
    if here is None:
        # Only the file systems that root has mounted are beyond doubt.
        return OVERFLOW if outside == 0 else UNKNOWN
    return here
