"""Compute one hash for a directory tree. The hash covers every path, type, mode, owner, extended attribute,
symlink, hard link, content and modification time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from quickstart.host.holes import data_chunks
from quickstart.host.walk import reachable, walk
from quickstart.host.witness import check_mapped

_PLAIN = re.compile(rb"[A-Za-z0-9._+/-]+")
_BATCH = 64
_THREADS = 2
# The number of batches that wait for a thread, so that no thread waits for us.
_AHEAD = 16
T = TypeVar("T")


def tree_hash(root: Path, *, without: str = "", as_copied_s: int | None = None) -> str:
    """The SHA-256 of the tree below ``root``. The hash does not cover the file with the name ``without`` directly in
    ``root``. Files are hashed depth first and in the order of their names. Modification times are hashed in seconds.

    A hole and written zeros in a file give the same hash. A mount point is hashed as an empty directory. Files of our
    own user are hashed as if root owned them. Raises OSError for a file that cannot be read, or that another process
    writes to during the call. Raises ForeignOwnerError for a file whose owner our user namespace does not map. The
    namespace shows such an owner as the user nobody.

    With ``as_copied_s``, the result is the hash that a copy of the tree would have (inspect/foreign/home.py makes such
    copies). The copy has no device nodes and no sockets, so the hash does not cover them. In the copy, mount points
    have the modification time ``as_copied_s``.
    """
    top = os.fsencode(root)
    device = root.stat().st_dev
    left_out = os.path.join(top, os.fsencode(without))  # noqa: PTH118 - bytes in, bytes out
    paths = (path for path, _ in walk(top, device) if path != left_out)
    digest = hashlib.sha256()
    first_names: dict[tuple[int, int], bytes] = {}

    def describe(batch: Sequence[bytes]) -> list[tuple[bytes, os.stat_result, bytes]]:
        found = ((path, *_described(path, top, device, as_copied_s)) for path in batch)
        return [each for each in found if as_copied_s is None or not _is_left_out(each[1].st_mode)]

    # Reading releases the interpreter's lock, so threads save a third of the time when the tree is not in memory.
    # When the tree is in memory, they take no more time.
    with ThreadPoolExecutor(_THREADS) as pool:
        for described in _in_order(pool, describe, _batches(paths)):
            for path, status, description in described:
                digest.update(description)
                if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
                    continue
                first = first_names.setdefault((status.st_dev, status.st_ino), path)
                if first != path:
                    digest.update(_second_name(first[len(top) :]))
    return digest.hexdigest()


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Sequence[bytes]], T], batches: Iterator[Sequence[bytes]]
) -> Iterator[T]:
    """The results for the batches, in the order of the batches. This function holds only a few batches in memory at a
    time, because a foreign tree may have a million long paths. `pool.map` would hold all batches at once.
    """
    waiting: deque[Future[T]] = deque()
    for batch in batches:
        waiting.append(pool.submit(work, batch))
        if len(waiting) == _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _second_name(first: bytes) -> bytes:
    """The bytes to hash for a further name of a file that was already hashed under the name ``first``.

    A name may have any bytes. If every name were hashed unchanged, an attacker who chooses the names and contents of
    files could give two different trees the same hash. For this attack, the attacker needs a name that equals another
    file's 32-byte hash. Among all names, such a name is found in seconds. Among names of plain characters, the search
    takes about 2**74 tries. So only a name of plain characters is hashed unchanged.
    """
    return first + b"\0" if _PLAIN.fullmatch(first) else hashlib.sha256(b"first name\0" + first).digest()


def _batches(paths: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    while batch := tuple(islice(paths, _BATCH)):
        yield batch


def _is_left_out(mode: int) -> bool:
    return stat.S_ISBLK(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _described(path: bytes, root: bytes, device: int, mounted_s: int | None) -> tuple[os.stat_result, bytes]:
    with reachable(path) as name:
        status = os.lstat(name)
        check_mapped(name, status)
        time_s: int | None = status.st_mtime_ns // 10**9
        # The time of a mount point is the time of the mounted file system.
        if stat.S_ISDIR(status.st_mode) and status.st_dev != device:
            time_s = mounted_s
        # The time of the root directory itself is not copied to the volume.
        return status, _describe(path[len(root) :], name, status, None if path == root else time_s)


def _describe(path: bytes, name: bytes, status: os.stat_result, time_s: int | None) -> bytes:
    """The hash of one file. ``path`` is the file's path in the tree, and becomes part of the hash. ``name`` is the name
    by which system calls reach the file. When ``time_s`` is None, the hash covers no time.
    """
    digest = hashlib.sha256()
    # In an ordinary user's namespace (host/userns.py), root owns the user's files. So the tree has the same hash
    # inside and outside.
    uid = 0 if status.st_uid == os.geteuid() else status.st_uid
    gid = 0 if status.st_gid == os.getegid() else status.st_gid
    digest.update(f"{status.st_mode:o} {uid} {gid} {status.st_rdev}\0".encode())
    # The volume has this time, and init compares it.
    if time_s is not None:
        digest.update(f"{time_s}\0".encode())
    digest.update(path + b"\0")
    if stat.S_ISLNK(status.st_mode):
        digest.update(os.readlink(name))  # noqa: PTH115 - bytes in, bytes out
    elif stat.S_ISREG(status.st_mode):
        digest.update(_content(name, status))
    digest.update(_of_attributes(name))
    return digest.digest()


def _of_attributes(name: bytes) -> bytes:
    """The extended attributes as bytes. A value may contain bytes that look like another attribute. So the
    lengths are included when there are several attributes.
    """
    found = [
        (os.fsencode(key), os.getxattr(name, key, follow_symlinks=False))
        for key in sorted(os.listxattr(name, follow_symlinks=False))
    ]
    text = b"".join(b"\0" + key + b"\0" + value for key, value in found)
    if len(found) < 2:
        return text
    # No name is empty, so the bytes of a single attribute never begin with two zeros.
    lengths = " ".join(f"{len(key)} {len(value)}" for key, value in found)
    return b"\0\0" + f"{len(found)} {lengths}".encode() + text


def _content(path: bytes, status: os.stat_result) -> bytes:
    """The hash of a regular file: its size, and then the offset and bytes of each chunk that is not all
    zeros.

    Raises OSError when the file is no longer the file that ``status`` describes, or when another process
    writes to it during the call.
    """
    # The file may be a pipe by now, whose other end nobody opens.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        size_bytes = status.st_size
        _check_same(fd, status, path)
        digest = hashlib.sha256(size_bytes.to_bytes(8, "big"))
        for offset, chunk in data_chunks(fd, size_bytes):
            digest.update(offset.to_bytes(8, "big"))
            digest.update(chunk)
        _check_same(fd, status, path)
        return digest.digest()
    finally:
        os.close(fd)


def _check_same(fd: int, before: os.stat_result, path: bytes) -> None:
    now = os.fstat(fd)
    same = os.path.samestat(now, before) and now.st_mode == before.st_mode
    if not same or (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise OSError(errno.EBUSY, "it changed while it was read", os.fsdecode(path))
