"""Become root without root's rights on the host. For this, the process enters a user namespace in which it is root and
has the user's subordinate IDs (user_namespaces(7)).

In the namespace, UID 0 stands for the user who runs the process. UIDs 1 to 65535 stand for the user's subordinate IDs
(subuid(5), subgid(5)), as with podman. So the files of an image keep their different owners. Files that the process
writes for the user belong to the user. The process gains no right over the host. Only newuidmap(1) and newgidmap(1) are
privileged (set-uid or a file capability).
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import CommandError, MissingToolError, NeedsRootError
from quickstart.host import door, witness

TOOLS = ("newuidmap", "newgidmap", "getsubids")
# Debian's useradd gives a user this many IDs. In an image, nobody has a higher ID.
IDS = 65536
_LIMIT_S = 30.0
# linux/sched.h
_CLONE_NEWUSER = 0x10000000
_RANGE = re.compile(r"^\d+: \S+ (\d+) (\d+)$", re.MULTILINE)
OR_ROOT = ", or run it as root"
SYSCTL = Path("/proc/sys")
# Settings that forbid user namespaces on some hosts: the file, the value that forbids them, and the command
# that allows them.
_FORBIDDING = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=65536"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
# This script waits in the namespace that we leave, because there the user may map his IDs.
_MAP = """\
read -r go || exit 1
newuidmap "$1" 0 "$2" 1 1 "$3" 65535 && newgidmap "$1" 0 "$4" 1 1 "$5" 65535
"""


@dataclass(frozen=True)
class SubordinateIds:
    """The first of the user's subordinate user IDs, and the first of the user's subordinate group IDs. The user has at
    least ``IDS`` consecutive IDs from each of these two numbers on.
    """

    first_uid: int
    first_gid: int


def subordinate_ids() -> SubordinateIds:
    """The subordinate IDs of the user who runs this process. Raises NeedsRootError when the user has no range
    of ``IDS`` IDs, or when the tools for mapping IDs are missing. The error's hint is the command that adds a
    range or installs the tools.
    """
    try:
        door.need_tools(*TOOLS)
    except MissingToolError as error:
        raise NeedsRootError(
            f"{error.message}, which makes an ordinary user root of images", hint=f"{error.hint}{OR_ROOT}"
        ) from error
    name = _user_name()
    found = {}
    for kind, option in (("subuid", ()), ("subgid", ("-g",))):
        done = door.run(["getsubids", *option, name], timeout_s=_LIMIT_S, check=False)
        ranges = _RANGE.findall(done.stdout.decode(errors="replace"))
        enough = [int(first) for first, count in ranges if int(count) >= IDS]
        if not enough:
            raise NeedsRootError(
                f"the user {name} has no {IDS} ids side by side in /etc/{kind}, for the owners in an image",
                hint=f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}{OR_ROOT}",
            )
        found[kind] = min(enough)
    return SubordinateIds(found["subuid"], found["subgid"])


def check_namespaces() -> None:
    """Raise NeedsRootError when the host allows no user namespaces to ordinary users. The error's hint is the
    command that allows them.
    """
    try:
        door.run(["unshare", "--user", "true"], timeout_s=_LIMIT_S)
    except CommandError as error:
        raise NeedsRootError(
            f"this host gives an ordinary user no user namespace: {'; '.join(error.tail.split(chr(10)))}",
            hint=f"{_forbidden() or 'let the container have them'}{OR_ROOT}",
        ) from error


def _forbidden() -> str:
    for name, value, mend in _FORBIDDING:
        path = SYSCTL / name
        if path.exists() and path.read_text().strip() == value:
            return mend
    return ""


def is_host_root() -> bool:
    """Whether this process is root of the host, and not only of a user namespace."""
    whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    return os.geteuid() == 0 and whole


def need_host_root(step: str) -> None:
    """Raise NeedsRootError unless this process is root of the host. ``step`` is the name of the work that needs root of
    the host. Root of a user namespace is not allowed to do this work.
    """
    if not is_host_root():
        raise NeedsRootError(f"{step} needs root of the host", hint="run it as root")


def become_root() -> None:
    """Make this process root of a user namespace of its own, unless it is root already.

    The process keeps its PID, terminal, open files and groups. A copy of the process stays outside of the namespace,
    and tells the process who owns a file (host.witness). Call this function while the process has only one thread. On
    failure, this function raises NeedsRootError with the command that fixes the problem. The process is then unchanged,
    unless newuidmap itself failed.
    """
    if os.geteuid() == 0:
        return
    ids = subordinate_ids()
    check_namespaces()
    words = (os.getpid(), os.geteuid(), ids.first_uid, os.getegid(), ids.first_gid)
    reading, writing = os.pipe()
    witness.begin(door.leave_behind)
    try:
        with door.filtered(["sh", "-c", _MAP, "sh", *map(str, words)], reading) as mapping:
            _unshare()
            os.write(writing, b"go\n")
            if fault := mapping.fault():
                raise NeedsRootError(
                    f"the subordinate ids cannot be taken: {fault}",
                    hint=f"see newuidmap(1){OR_ROOT}",
                )
    except BaseException:
        witness.end()
        raise
    finally:
        os.close(reading)
        os.close(writing)
    # The supplementary groups are kept, because one of them may have access to /dev/kvm.
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        why = "more than one thread" if number == errno.EINVAL else os.strerror(number)
        raise NeedsRootError(f"no user namespace for this process: {why}", hint="run it as root")


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
