"""Open files in a directory with untrusted contents. This module opens only regular files, and only by plain names. The
module does not follow links. Opening a file never waits, although open(2) of a FIFO would wait.

A plain name has one component, so O_NOFOLLOW guarantees as much as RESOLVE_BENEATH of openat2(2) would. All later
checks use the open descriptor, so replacing the file after it was opened has no effect.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.host.owners import mounter_of

_HINT = "give a directory whose files are plain ones, not links, pipes or devices"
# O_NONBLOCK: opening a FIFO must not wait for its other end. For regular files, this flag has no effect.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def check_plain_name(name: str) -> None:
    """Raise BadInputError for a name that has several components or leads out of the directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise BadInputError(f"{name!r} is not the name of a file in its directory", hint=_HINT)


def open_regular(path: Path, *, writable: bool = False) -> int:
    """Open the regular file at ``path``, and return the descriptor. The last component of ``path`` must not be a link.

    A file that is opened for writing must not have a second name (hard link), because that name may be in another
    directory. Raises BadInputError when such a file has a second name. Also raises BadInputError when the file is not
    regular. The message then says the kind of the file. Raises FileNotFoundError when the file does not exist, and the
    OSError of open(2) for other failures.
    """
    check_plain_name(path.name)
    # open(2) fails with ELOOP for a symbolic link, and with ENXIO for a socket or a device without a
    # driver. A check by lstat before that gives a clearer message.
    _check_mode(path, path.lstat().st_mode)
    fd = os.open(path, _SAFE | (os.O_RDWR if writable else os.O_RDONLY))
    try:
        status = os.fstat(fd)
        _check_mode(path, status.st_mode)
        if writable and status.st_nlink != 1:
            raise BadInputError(
                f"{path} has {status.st_nlink} names (hard links), and is to be written to",
                hint="copy the directory with cp -r, which makes files of their own",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened_regular(path: Path, *, writable: bool = False) -> Iterator[int]:
    """A context with the descriptor that ``open_regular`` returns. The context closes the descriptor when it ends."""
    fd = open_regular(path, writable=writable)
    try:
        yield fd
    finally:
        os.close(fd)


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """The content of the regular file at ``path``. Raises BadInputError when the file is larger than ``limit_bytes``."""
    with opened_regular(path) as fd:
        return content_of(fd, path, limit_bytes)


def content_of(fd: int, path: Path, limit_bytes: int) -> bytes:
    """The content of the open regular file ``fd``. ``path`` is the name of the file in the message. Raises BadInputError
    when the file is larger than ``limit_bytes``.
    """
    size_bytes = os.fstat(fd).st_size
    if size_bytes > limit_bytes:
        raise BadInputError(f"{path} has {size_bytes} bytes; at most {limit_bytes} are read")
    with os.fdopen(os.dup(fd), "rb") as file:
        # The file may grow in the meantime.
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise BadInputError(f"{path} has more than {limit_bytes} bytes, and at most as many are read")
    return data


def read_judged(path: Path, limit_bytes: int, owner: int = 0) -> tuple[bytes, str]:
    """Return the content of the regular file at ``path``, and the place where another user could have replaced or
    changed the file.

    The place is the first directory on the way to the file, or the file itself, where a user other than root and
    ``owner`` (a user's ID) may write. When there is no such place, the second value is empty. A file or directory on a
    FUSE file system counts as belonging to the user who mounted the file system.

    The content and the place come from the same descriptors, even if files are renamed during the call. First, the
    function resolves links. Then the function opens the components of the path one after the other, each in the
    directory that it has opened before, and follows no link. Write permission of other users for a directory with the
    sticky bit does not count, because in such a directory, other users can replace only their own files. Raises
    BadInputError when the file is not regular or is larger than ``limit_bytes``, and the OSError of open(2) for other
    failures.
    """
    way = Path(os.path.realpath(path))
    doubt = ""
    with ExitStack() as opened:
        place: int | None = None
        for depth, name in enumerate(way.parts):
            last = depth == len(way.parts) - 1
            if last:
                _check_mode(way, os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
            place = os.open(name, _SAFE | (0 if last else os.O_DIRECTORY), dir_fd=place)
            opened.callback(os.close, place)
            status = os.fstat(place)
            others = status.st_mode & 0o022 and not (status.st_mode & stat.S_ISVTX and not last)
            mounter = mounter_of(place)
            if not doubt and (others or not {status.st_uid, mounter} <= {0, owner, None}):
                doubt = str(Path(*way.parts[: depth + 1]))
        if place is None:
            raise BadInputError(f"{path} is no file")
        _check_mode(way, os.fstat(place).st_mode)
        return content_of(place, way, limit_bytes), doubt


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise BadInputError(f"{path} is {kind_of(mode)}, not a regular file", hint=_HINT)


def kind_of(mode: int) -> str:
    """The kind of a file in words, from its st_mode."""
    kinds = {
        stat.S_IFREG: "a plain file",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe (FIFO)",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a directory",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
