"""Locks that exclude other processes, by flock(2)."""

from __future__ import annotations

import fcntl

from quickstart.errors import HostLacksError

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


def try_lock(fd: int, kind: int, name: str, hint: str) -> bool:
    """Lock an open file or directory without waiting. Return False when another process holds the lock. Raises
    HostLacksError on a file system without locks.

    ``name`` and ``hint`` are for the message of the error. ``name`` says what the file belongs to, and ``hint`` says
    which file systems have locks.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # ENOLCK and its like, of some network file systems.
        raise HostLacksError(
            f"the file system of {name} has no locks (flock): {error.strerror}", hint=hint
        ) from error
    return True


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
