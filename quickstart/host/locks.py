"""Locks between processes, by flock(2)."""

from __future__ import annotations

import fcntl

from quickstart.errors import HostLacksError

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


def lock(fd: int, kind: int, name: str, hint: str) -> None:
    """Lock an open file or directory, and wait for the lock without a limit. Raises HostLacksError on a file
    system without locks.

    ``name`` and ``hint`` are for the error's message: ``name`` says what the file belongs to, and ``hint``
    says which file systems have locks.
    """
    _flock(fd, kind, name, hint)


def try_lock(fd: int, kind: int, name: str, hint: str) -> bool:
    """Lock as ``lock`` does, but without waiting. Return False when another process holds the lock."""
    try:
        _flock(fd, kind | fcntl.LOCK_NB, name, hint)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def _flock(fd: int, operation: int, name: str, hint: str) -> None:
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        # ENOLCK and its like, of some network file systems.
        raise HostLacksError(
            f"the file system of {name} has no locks (flock): {error.strerror}", hint=hint
        ) from error
