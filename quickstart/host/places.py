"""Find the other users who could interfere with a path, by replacing a directory on the way to the path or by serving
its file system.

A path is trusted when two conditions are true for every directory on the way from / to this path, with links followed.
The directory belongs to a trusted user, and no other user can rename entries of the directory. In a directory with the
sticky bit, other users can rename only their own entries (inode(7)). The program that serves a FUSE file system chooses
the owners and modes that the file system shows. So this module treats everything on a FUSE file system as belonging to
the user who mounted the file system (fuse(4)).
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quickstart.host import witness
from quickstart.host.owners import OVERFLOW, PROC, UNKNOWN, file_system

_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# The kernel follows this many links (path_resolution(7)).
_LINKS = 40
_ACL = "system.posix_acl_access"
# The file that names the sources of users (nsswitch.conf(5)), and the sources that list all users (getpwent(3)).
_SOURCES = Path("/etc/nsswitch.conf")
_LISTING = frozenset({"files", "compat", "systemd"})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One directory, link or file on the way to a path.

    ``status`` has the owner and the group as they are outside of the user namespace that this process has made. A
    process outside, the witness, reports them (host.witness). ``mounter`` is the user who mounted the FUSE file system
    of the step. ``mounter`` is None when the file system is not FUSE, and -1 when the user is not known. ``by_proc``
    says that the step is in a proc(5) file system. ``acl`` says that the step has an access control list (acl(5)).
    """

    path: Path
    status: os.stat_result
    mounter: int | None = None
    by_proc: bool = False
    acl: bool = False


@dataclass(frozen=True)
class Trust:
    """The trusted users. If ``unmapped`` is true, the ID that stands for all unmapped users is also trusted."""

    users: frozenset[int]
    unmapped: bool = False

    def has(self, uid: int) -> bool:
        return uid in self.users or (self.unmapped and uid == OVERFLOW)


def trusted() -> Trust:
    """The trusted users. These are root, our own user, and the owner of the running program, who can change the program
    and so can do everything that we can do.

    A user namespace shows all unmapped IDs as one ID. If this process has made its user namespace, a witness process
    outside of the namespace tells us the owners of files. In any other namespace, this process cannot tell unmapped
    users apart, and trusts all of them.
    """
    own = witness.own_user()
    return Trust(frozenset({0, own}) | _program_owners(own), not witness.sees_all())


def swapped_by_others(path: Path) -> str:
    """A clause about the first step on the way to ``path`` that another user could replace. The clause names the step
    and the reason, for example ``/srv/x belongs to another user (1001)``. The result is empty when no other user could
    replace a step.

    The result is also empty for a path that is missing or that we may not enter.
    """
    trust = trusted()
    return next((f"{step.path} {said}" for step in way(path) if (said := fault(step, trust))), "")


def fault_at(path: Path) -> str:
    """The reason why the entry ``path`` itself is not trusted. The function `fault` makes the text of this reason. This
    function (`fault_at`) does not examine the directories on the way to the entry. If the entry is a link, the function
    does not follow the link. The result is empty when the entry is trusted.
    """
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        child, step = _step(parent, path.name, path)
        os.close(child)
    finally:
        os.close(parent)
    return fault(step, trusted())


def fault_of(fd: int, path: Path) -> str:
    """The reason why the open file ``fd`` is not trusted. The function `fault` makes the text of this reason. ``path``
    is the path by which the file was opened.
    """
    return fault(_seen(fd, path), trusted())


def make_directories(directory: Path) -> str:
    """Make ``directory`` and its missing parents. If another user could replace one of these directories, the function
    stops at this directory, and returns a text that says why (see the function `swapped_by_others`). Otherwise, the
    function returns an empty text.

    Before the function makes a directory, it examines the directory's parent. So no link of another user can lead us to
    another place. Whatever the umask is, no group may write to the new directories. Raises FileExistsError when one of
    the names belongs to a file that is not a directory.
    """
    for each in (*reversed(directory.absolute().parents), directory.absolute()):
        if not each.is_dir():
            if said := swapped_by_others(each.parent):
                return said
            each.mkdir(mode=0o755, exist_ok=True)
    return swapped_by_others(directory)


def fault(step: Step, trust: Trust) -> str:
    """The reason why a step on the way to a path is not trusted. The reason is a phrase such as ``belongs to another
    user (1001)``. The result is empty when the step is trusted.
    """
    mode = step.status.st_mode
    if step.by_proc and stat.S_ISLNK(mode):
        return "is a link of /proc, which leads where another process is"
    if step.mounter is not None and not trust.has(step.mounter):
        whose = "nobody known" if step.mounter == UNKNOWN else f"another user ({step.mounter})"
        return f"lies on a FUSE file system of {whose}, who says of owners what he likes"
    if not trust.has(step.status.st_uid):
        return f"belongs to another user ({step.status.st_uid})"
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    by_group = mode & stat.S_IWGRP and (step.acl or not _is_private(step.status.st_gid, trust))
    return "can be written by others" if mode & stat.S_IWOTH or by_group else ""


def place_of(path: Path) -> tuple[Path, str]:
    """Return two values. The first value is the path of ``path`` after all links are followed. The second value is a
    clause about the first step on the way that another user could replace, as the function `swapped_by_others` returns
    it.

    Both results come from one walk along the path, because a second walk could follow a link that was not checked. The
    function checks the entry at ``path`` itself only if the entry is a link, because only a link has an effect on where
    ``path`` leads.
    """
    found = _followed(path)
    own = found.own
    by_link = own is not None and own < len(found.steps) and stat.S_ISLNK(found.steps[own].status.st_mode)
    trust = trusted()
    judged = found.steps if by_link else found.steps[:own]
    return found.place, next((f"{step.path} {said}" for step in judged if (said := fault(step, trust))), "")


def way(path: Path) -> tuple[Step, ...]:
    """The steps from / to ``path``. Links are followed as far as the names exist, as in path_resolution(7)."""
    return _followed(path).steps


@dataclass(frozen=True)
class _Followed:
    """The result of a walk along a path. ``own`` is the index in ``steps`` of the path's last name. ``own`` is None for
    /, and when the walk ended before the last name. ``place`` is the path, in which the links are resolved as far as
    the walk went.
    """

    steps: tuple[Step, ...]
    place: Path
    own: int | None


def _followed(path: Path) -> _Followed:
    left, links, here = [*reversed(path.absolute().parts[1:])], 0, Path("/")
    own: int | None = None
    fd, first = _step(None, "/", here)
    steps = [first]
    try:
        while left:
            name = left.pop()
            # The names of a link's target are put on top of the path's remaining names.
            if not left and own is None:
                own = len(steps)
            try:
                child, step = _step(fd, name, here / name)
            except OSError:
                # A caller that uses this path later gets an error, which says why the path cannot be entered.
                here = here.joinpath(name, *reversed(left))
                break
            steps.append(step)
            if not stat.S_ISLNK(step.status.st_mode):
                os.close(fd)
                fd, here = child, here.parent if name == ".." else here / name
                continue
            os.close(child)
            links += 1
            if step.by_proc or links > _LINKS:
                here = here.joinpath(name, *reversed(left))
                break
            target = Path(os.readlink(name, dir_fd=fd))
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            if target.is_absolute():
                os.close(fd)
                fd, here = os.open("/", _ANY), Path("/")
    finally:
        os.close(fd)
    return _Followed(tuple(steps), here, own)


def _step(parent: int | None, name: str, path: Path) -> tuple[int, Step]:
    fd = os.open(name, _ANY, dir_fd=parent)
    try:
        return fd, _seen(fd, path)
    except BaseException:
        os.close(fd)
        raise


def _seen(fd: int, path: Path) -> Step:
    try:
        status, kind, owner = os.fstat(fd), file_system(fd), witness.owner_of(fd)
        acl = bool(status.st_mode & stat.S_IWGRP) and _has_acl(fd)
    except OSError:
        # Only a FUSE file system refuses this to a process that has opened the file.
        return Step(path=path, status=os.stat_result((0,) * 10), mounter=UNKNOWN)
    told = os.stat_result((*status[:4], owner.uid, owner.gid, *status[6:10]))
    return Step(path=path, status=told, mounter=owner.mounter, by_proc=kind == PROC, acl=acl)


def _has_acl(fd: int) -> bool:
    with suppress(OSError):
        return bool(os.getxattr(f"/proc/self/fd/{fd}", _ACL))
    return False


@cache
def _program_owners(own: int) -> frozenset[int]:
    """The owners of the running program and of each directory above it. ``own`` is our user. It is only the key of the
    cache, because the owners that a process sees depend on its user.
    """
    steps = way(Path(__file__))
    return frozenset(each.status.st_uid if each.mounter is None else each.mounter for each in steps)


def _is_private(gid: int, trust: Trust) -> bool:
    """Whether all members of a group are trusted. For example, Ubuntu gives each user a private group. Such a group may
    write to the user's files, because the umask is 002.
    """
    if trust.unmapped and gid == OVERFLOW:
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
    """Whether the group is a trusted user's private group, as useradd(8) makes it. Such a group has no other
    member, not even in a directory service.
    """
    for uid in trust.users:
        with suppress(KeyError):
            user = pwd.getpwuid(uid)
            if (user.pw_name, user.pw_gid) == (group.gr_name, group.gr_gid):
                return True
    return False


def _lists_all() -> bool:
    """Whether this host can list all its users. A directory service (LDAP through sssd) usually does not list its
    users.
    """
    try:
        text = _SOURCES.read_text(errors="replace")
    except OSError:
        return True
    rows = dict(line.partition("#")[0].partition(":")[::2] for line in text.splitlines())
    return set(re.sub(r"\[[^]]*\]", " ", rows.get("passwd", "")).split()) <= _LISTING
