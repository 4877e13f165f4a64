"""Who else could act on what lies at a path: who may swap a directory on the way to it, or serves its file system.

A name is believed when each directory from / on, with links followed, belongs to a user who is trusted, and nobody else may rename
what is in it. In a directory with the sticky bit others rename only what is theirs (inode(7)). A FUSE file system says of owners
and modes what the program behind it likes, so that what lies on it is the mounting user's (fuse(4)).
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# path_resolution(7): as many links the kernel follows.
_LINKS = 40
# linux/magic.h, as statfs(2) says it.
_FUSE, _PROC = 0x65735546, 0x9FA0
_STATFS_BYTES = 256
# As what a user namespace shows an id that it does not map (user_namespaces(7)).
_OVERFLOW = 65534
_UNKNOWN = -1
_ACL = "system.posix_acl_access"
# nsswitch.conf(5): where users come from, and which of these tell them all (getpwent(3)).
_SOURCES = Path("/etc/nsswitch.conf")
_LISTING = frozenset({"files", "compat", "systemd"})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One directory, link or file on the way to a path, as it lies there.

    ``mounter`` is the user whose FUSE it lies on, None where it lies on none, -1 where that is not known; ``by_proc`` says that it
    is in proc(5), ``acl`` that it has an access control list (acl(5)).
    """

    path: Path
    status: os.stat_result
    mounter: int | None = None
    by_proc: bool = False
    acl: bool = False


@dataclass(frozen=True)
class Trust:
    """Users who may do here what they like; ``unmapped``: ids that cannot be told from each other in this namespace count, too."""

    users: frozenset[int]
    unmapped: bool = False

    def has(self, uid: int) -> bool:
        return uid in self.users or (self.unmapped and uid == _OVERFLOW)


def trusted() -> Trust:
    """Root, the user who we are, and whom the program that runs here belongs to: that user can do all that we can already.

    In a user namespace the ids that it does not map are all one; who asks for one asks about his places before (cli.output).
    """
    return Trust(frozenset({0, os.geteuid()}) | _program_owners(os.geteuid()), not _maps_all())


def swapped_by_others(path: Path) -> str:
    """Who else could put something else in the place of ``path``, as the end of a sentence; empty when nobody could.

    What is not there yet, or cannot be entered, is nobody's.
    """
    trust = trusted()
    return next((f"{step.path} {said}" for step in way(path) if (said := fault(step, trust))), "")


def fault_at(path: Path) -> str:
    """What is wrong with ``path`` itself, which is not followed, wherever it lies; empty when nothing is."""
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        child, step = _step(parent, path.name, path)
        os.close(child)
    finally:
        os.close(parent)
    return fault(step, trusted())


def fault(step: Step, trust: Trust) -> str:
    """Why a step is not to be trusted; empty when it is."""
    mode = step.status.st_mode
    if step.by_proc and stat.S_ISLNK(mode):
        return "is a link of /proc, which leads where another process is"
    if step.mounter is not None and not trust.has(step.mounter):
        whose = "nobody known" if step.mounter == _UNKNOWN else f"another user ({step.mounter})"
        return f"lies on a FUSE file system of {whose}, who says of owners what he likes"
    if not trust.has(step.status.st_uid):
        return f"belongs to another user ({step.status.st_uid})"
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    by_group = mode & stat.S_IWGRP and (step.acl or not _is_private(step.status.st_gid, trust))
    return "can be written by others" if mode & stat.S_IWOTH or by_group else ""


def way(path: Path) -> tuple[Step, ...]:
    """The steps from / to ``path``, with links followed as far as they lead and the names are there (chase by hand of namei(7))."""
    left, links, here = [*reversed(path.absolute().parts[1:])], 0, Path("/")
    fd, first = _step(None, "/", here)
    steps = [first]
    try:
        while left:
            name = left.pop()
            try:
                child, step = _step(fd, name, here / name)
            except OSError:
                # Whoever goes on by the name is told why it cannot be entered.
                break
            steps.append(step)
            if not stat.S_ISLNK(step.status.st_mode):
                os.close(fd)
                fd, here = child, here.parent if name == ".." else here / name
                continue
            os.close(child)
            links += 1
            if step.by_proc or links > _LINKS:
                break
            target = Path(os.readlink(name, dir_fd=fd))
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            if target.is_absolute():
                os.close(fd)
                fd, here = os.open("/", _ANY), Path("/")
    finally:
        os.close(fd)
    return tuple(steps)


def _step(parent: int | None, name: str, path: Path) -> tuple[int, Step]:
    fd = os.open(name, _ANY, dir_fd=parent)
    try:
        status, kind = os.fstat(fd), _file_system(fd)
        mounter = _mounter(status.st_dev) if kind == _FUSE else None
        acl = bool(status.st_mode & stat.S_IWGRP) and _has_acl(fd)
    except OSError:
        # Only a file system that is a program says no to one who has opened it.
        return fd, Step(path=path, status=os.stat_result((0,) * 10), mounter=_UNKNOWN)
    except BaseException:
        os.close(fd)
        raise
    return fd, Step(path=path, status=status, mounter=mounter, by_proc=kind == _PROC, acl=acl)


def _file_system(fd: int) -> int:
    """The kind of file system that ``fd`` lies on (statfs(2), whose first field is f_type)."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(fd, buffer) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs")
    return ctypes.c_long.from_buffer(buffer).value


def _has_acl(fd: int) -> bool:
    with suppress(OSError):
        return bool(os.getxattr(f"/proc/self/fd/{fd}", _ACL))
    return False


def _mounter(device: int) -> int:
    named = f"{os.major(device)}:{os.minor(device)}"
    outside = fuse_users(Path("/proc/self/mountinfo").read_text(errors="replace")).get(named, _UNKNOWN)
    return _inside(outside)


def fuse_users(mountinfo: str) -> Mapping[str, int]:
    """The users who mounted each FUSE, by device (`major:minor`), of a text like /proc/PID/mountinfo (proc(5)).

    virtiofs is FUSE, too; only root mounts it. One that does not say whose it is stays out.
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


def _inside(outside: int) -> int:
    """The id of FUSE's mounter, which is said as the host has it, in this user namespace."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, beyond, count = map(int, line.split())
        if beyond <= outside < beyond + count:
            return first + outside - beyond
    # Only root's own are beyond doubt.
    return _OVERFLOW if outside == 0 else _UNKNOWN


def _maps_all() -> bool:
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]


@cache
def _program_owners(euid: int) -> frozenset[int]:
    """Whom the program belongs to that runs here, and each directory above it; ``euid`` says whose view that is."""
    steps = way(Path(__file__))
    return frozenset(each.status.st_uid if each.mounter is None else each.mounter for each in steps)


def _is_private(gid: int, trust: Trust) -> bool:
    """Whether all members of a group are trusted: Ubuntu's users have a group of their own, which may write (umask 002)."""
    if trust.unmapped and gid == _OVERFLOW:
        return True
    try:
        group = grp.getgrgid(gid)
        uids = {pwd.getpwnam(name).pw_uid for name in group.gr_mem}
    except KeyError:
        return False
    if not (_lists_all() or _is_named_after_one(group, trust)):
        return False
    uids |= {each.pw_uid for each in pwd.getpwall() if each.pw_gid == gid}
    return all(trust.has(uid) for uid in uids)


def _is_named_after_one(group: grp.struct_group, trust: Trust) -> bool:
    """Whether it is a trusted user's own, as useradd(8) makes it; no directory has another user in that."""
    for uid in trust.users:
        with suppress(KeyError):
            user = pwd.getpwuid(uid)
            if (user.pw_name, user.pw_gid) == (group.gr_name, group.gr_gid):
                return True
    return False


def _lists_all() -> bool:
    """Whether all users of this host are told when all are asked for: those of a directory (LDAP, by sssd) mostly are not."""
    try:
        text = _SOURCES.read_text(errors="replace")
    except OSError:
        return True
    rows = dict(line.partition("#")[0].partition(":")[::2] for line in text.splitlines())
    return set(re.sub(r"\[[^]]*\]", " ", rows.get("passwd", "")).split()) <= _LISTING
