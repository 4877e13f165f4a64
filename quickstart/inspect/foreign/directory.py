"""Read a directory of this host as members. A member (``members.Member``) describes one file of any kind for the
import into an image.

Another user may write to the directory at the same time. So this module opens every name relative to an open directory,
and follows no link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.host.holes import segments
from quickstart.host.openat2 import BENEATH, NO_SYMLINKS, open_directory
from quickstart.host.witness import check_mapped
from quickstart.inspect.foreign.members import CHUNK_BYTES, PATH_BYTES, Kind, Member
from quickstart.parse.printable import brief

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFREG: Kind.FILE,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFCHR: Kind.CHARACTER,
    stat.S_IFBLK: Kind.BLOCK,
    stat.S_IFSOCK: Kind.SOCKET,
}


def read_directory(directory: Path, mounted_mtime_ns: int) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """The members of ``directory`` with their data, parents first, in an order that depends only on the names. The
    first member is ``directory`` itself, with an empty path. If another file system is mounted below ``directory``,
    only its mount point is a member. This member gets the modification time ``mounted_mtime_ns``.

    Raises:

    - BadInputError for a path of more than PATH_BYTES bytes
    - OSError for a file that changes while it is read
    - ForeignOwnerError for a file whose owner our user namespace does not map
    """
    top = os.open(directory, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        device = os.fstat(top).st_dev
        first_names: dict[int, str] = {}
        # An entry is kept as its name and its directory's path, which all entries of the directory share, because a
        # stranger may have made a million long paths.
        waiting = [("", "")]
        while waiting:
            path = _joined(*waiting.pop())
            with _opened(top, path) as way:
                status = os.fstat(way)
                check_mapped(".", status, directory=way)
                if status.st_dev != device:
                    yield _member(path, status, way, mounted_mtime_ns), iter(())
                    continue
                yield _member(path, status, way), iter(())
                for name in sorted(os.listdir(way)):  # noqa: PTH208 - an open directory has no path
                    child = _joined(path, name)
                    if len(os.fsencode(child)) > PATH_BYTES:
                        raise BadInputError(
                            f"{directory} has a path of more than {PATH_BYTES} bytes: {brief(child)}",
                            hint="move it up, or remove it",
                        )
                    if stat.S_ISDIR(os.stat(name, dir_fd=way, follow_symlinks=False).st_mode):
                        waiting.append((path, name))
                    else:
                        yield _other(way, name, child, first_names)
    finally:
        os.close(top)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


@contextmanager
def _opened(top: int, path: str) -> Iterator[int]:
    way = open_directory(top, path or ".", BENEATH | NO_SYMLINKS)
    try:
        yield way
    finally:
        os.close(way)


def _other(way: int, name: str, path: str, first_names: dict[int, str]) -> tuple[Member, Iterator[bytes]]:
    """The member for the entry ``name`` of the open directory ``way``, with the entry's data. The entry must not be a
    directory. ``first_names`` has, for each inode with several names, the first path at which the inode was found. Any
    other path of this inode gives a hard link to the first path.
    """
    status = os.stat(name, dir_fd=way, follow_symlinks=False)
    if status.st_nlink > 1 and (first := first_names.setdefault(status.st_ino, path)) != path:
        return Member(path=path, kind=Kind.HARD, target=first), iter(())
    check_mapped(name, status, directory=way)
    if not stat.S_ISREG(status.st_mode):
        target = os.readlink(name, dir_fd=way) if stat.S_ISLNK(status.st_mode) else ""
        return _member(path, status, f"/proc/self/fd/{way}/{name}", target=target), iter(())
    fd = os.open(name, _FILE, dir_fd=way)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EBUSY, "it was replaced while it was read", path)
        member = _member(path, status, fd, segments=tuple(segments(fd, status.st_size)))
        return member, _data(way, name, status, member.segments)
    finally:
        os.close(fd)


def _data(
    way: int, name: str, status: os.stat_result, segments: tuple[tuple[int, int], ...]
) -> Iterator[bytes]:
    """Read a file's data. This function opens the file only when the caller requests the data. So when the caller skips
    a member, no descriptor stays open.
    """
    fd = os.open(name, _FILE, dir_fd=way)
    try:
        if not os.path.samestat(os.fstat(fd), status):
            raise OSError(errno.EBUSY, "it was replaced while it was read", name)
        for offset, length in segments:
            end = offset + length
            while offset < end:
                chunk = os.pread(fd, min(CHUNK_BYTES, end - offset), offset)
                if not chunk:
                    raise OSError(errno.EBUSY, "it got shorter while it was read")
                offset += len(chunk)
                yield chunk
    finally:
        os.close(fd)


def _member(
    path: str,
    status: os.stat_result,
    what: int | str,
    mtime_ns: int | None = None,
    *,
    target: str = "",
    segments: tuple[tuple[int, int], ...] = (),
) -> Member:
    follow = isinstance(what, int)
    names = os.listxattr(what, follow_symlinks=follow)
    return Member(
        path=path,
        kind=_KINDS[stat.S_IFMT(status.st_mode)],
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns if mtime_ns is None else mtime_ns,
        size_bytes=status.st_size if stat.S_ISREG(status.st_mode) else 0,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        segments=segments,
        target=target,
        xattrs={name: os.getxattr(what, name, follow_symlinks=follow) for name in names},
    )
