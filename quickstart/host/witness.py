"""Ask a process outside of our user namespace who owns a file.

A user namespace shows all users whom it does not map as one user (user_namespaces(7)). So a process in the namespace
cannot tell a directory of root from a directory of a stranger. When an ordinary user becomes root of a namespace
(host.userns), a copy of the process stays outside of the namespace. This copy is the witness. The witness gets open
files (unix(7), SCM_RIGHTS), and answers with their owners as the namespace outside shows them. The witness reads and
writes nothing else, and has only the rights that the user has.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from quickstart.errors import HostLacksError
from quickstart.host.owners import OVERFLOW, Extent, Owner, inside, mapped, maps_all, owner_here

# The fields of an answer: whether the file could be examined, its user, its group, and who mounted its file
# system.
_ANSWER = struct.Struct("<?qqq")
_NO_MOUNTER = -2
_PACKETS = (socket.AF_UNIX, socket.SOCK_SEQPACKET)


@dataclass(frozen=True)
class _Outside:
    """What this process knows of the namespace outside. ``asking`` is the socket to the witness. ``uid`` is our user's
    ID outside of our namespace. ``maps_all`` says whether the namespace outside shows every user of the host.
    """

    asking: socket.socket
    uid: int
    maps_all: bool


class _State:
    """The connection to the witness, for the whole process. Only `begin` and `end` change it."""

    outside: _Outside | None = None


class ForeignOwnerError(OSError):
    """A file belongs to a user or a group that our user namespace does not map."""


def begin(leave_behind: Callable[[Callable[[int], None], int], None]) -> None:
    """Start the witness. Call this function before this process enters the user namespace, and while this process has
    only one thread. ``leave_behind`` is the function in door.py that starts a copy of this process.
    """
    asking, answering = socket.socketpair(*_PACKETS)
    with answering:
        leave_behind(_answer_all, answering.fileno())
    _State.outside = _Outside(asking, os.geteuid(), maps_all())


def end() -> None:
    """End the witness. Call this function when the process has called ``begin`` but enters no user namespace."""
    if _State.outside is not None:
        _State.outside.asking.close()
        _State.outside = None


def own_user() -> int:
    """Our user ID, in the same namespace as the IDs that `owner_of` returns."""
    return os.geteuid() if _State.outside is None else _State.outside.uid


def sees_all() -> bool:
    """Whether `owner_of` returns different owners for different users of the host."""
    return maps_all() if _State.outside is None else _State.outside.maps_all


def owner_of(fd: int) -> Owner:
    """The owner of an open file, as the witness sees it. Without a witness, the result is the owner as this process
    sees it.

    Raises OSError when the file cannot be examined, and HostLacksError when the witness has ended.
    """
    outside = _State.outside
    if outside is None:
        return owner_here(fd)
    # Each question has its own socket for the answer, because threads and copies of this process ask
    # questions, too.
    ours, theirs = socket.socketpair(*_PACKETS)
    answer = b""
    with ours:
        with theirs, suppress(OSError):
            socket.send_fds(outside.asking, [b"?"], [fd, theirs.fileno()])
        with suppress(ConnectionError):
            answer = ours.recv(_ANSWER.size)
    if len(answer) != _ANSWER.size:
        raise HostLacksError("the process that says whose a file is has ended", hint="run the verb again")
    found, uid, gid, mounter = _ANSWER.unpack(answer)
    if not found:
        raise OSError(uid, os.strerror(uid))
    return Owner(uid, gid, None if mounter == _NO_MOUNTER else mounter)


def check_mapped(path: str | bytes, status: os.stat_result, *, directory: int | None = None) -> None:
    """Raise ForeignOwnerError when our user namespace does not map the owner or the group of a file. ``status`` is the
    result of stat(2) in this process for the file at ``path``, below the open directory ``directory``.

    The function raises no error when a file belongs to the user nobody of the host, because the ID of this user also
    means the user nobody in an image. Without a witness, this function checks nothing.
    """
    if _State.outside is None or OVERFLOW not in (status.st_uid, status.st_gid):
        return
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = owner_of(fd)
    finally:
        os.close(fd)
    for kind, shown, own in (("user", status.st_uid, found.uid), ("group", status.st_gid, found.gid)):
        if shown == OVERFLOW and own != OVERFLOW and inside(own, _mapped(kind)) is None:
            raise ForeignOwnerError(0, f"belongs to the {kind} {own} of the host", path)


@cache
def _mapped(kind: str) -> tuple[Extent, ...]:
    return mapped("uid" if kind == "user" else "gid")


def _answer_all(fd: int) -> None:
    """Answer questions until no process can ask any more."""
    with socket.socket(fileno=fd) as asked:
        while True:
            asking, given, _, _ = socket.recv_fds(asked, 1, 2)
            if not asking:
                return
            try:
                # The process that asked may have ended.
                with suppress(OSError):
                    os.write(given[1], _answer(given[0]))
            finally:
                for each in given:
                    os.close(each)


def _answer(fd: int) -> bytes:
    try:
        found = owner_here(fd)
    except OSError as error:
        return _ANSWER.pack(False, error.errno or 0, 0, 0)
    return _ANSWER.pack(True, found.uid, found.gid, _NO_MOUNTER if found.mounter is None else found.mounter)
