"""Open a directory by a path whose resolution the kernel restricts, by openat2(2)."""

from __future__ import annotations

import ctypes
import errno
import os

# asm-generic/unistd.h (the same number everywhere), linux/openat2.h
_SYS_OPENAT2 = 437
NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH, IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# openat2(2) may fail while another process renames a directory, which no process should do.
_TRIES = 8


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_directory(top: int, name: str, resolve: int) -> int:
    """A descriptor of the directory ``name`` below the open directory ``top``. ``resolve`` has the restrictions, which
    are constants of this module. Raises the OSError of openat2(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    how = _How(_DIRECTORY, 0, resolve)
    for _ in range(_TRIES):
        fd = libc.syscall(
            ctypes.c_long(_SYS_OPENAT2), top, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), name)
