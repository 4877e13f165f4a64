"""Exchange two names in one step, by renameat2(2) with RENAME_EXCHANGE."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# The errors when the file system (for example NFS) or the kernel cannot exchange names.
_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names ``one`` and ``other``, so that each name leads to the other file. Return False, and change
    nothing, when the file system cannot do this. Raises the OSError of renameat2(2) for other failures.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        # A C library without it (musl).
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one))
