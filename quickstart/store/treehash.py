"""A directory tree as one hash: every path, type, mode, owner, extended attribute, link (hard ones too), content and time."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from quickstart.host.walk import reachable, walk

# A chunk of a file that is all zeros does not enter the hash, so a hole and written zeros are the same.
_CHUNK_BYTES = 1 << 18
_ZEROS = bytes(_CHUNK_BYTES)
_PLAIN = re.compile(rb"[A-Za-z0-9._+/-]+")
_BATCH = 64
_THREADS = 2


def tree_hash(root: Path, *, without: str = "") -> str:
    """SHA-256 of the tree below ``root`` but its entry ``without``, depth first by name, with times of modification in seconds.

    Whether a file's zeros are holes or written makes no difference. A directory on which another file system is mounted counts
    as an empty one. Our own files count as root's. Raises OSError for what cannot be read.
    """
    top = os.fsencode(root)
    device = root.stat().st_dev
    left_out = os.path.join(top, os.fsencode(without))  # noqa: PTH118 - bytes in, bytes out
    paths = (path for path, _ in walk(top, device) if path != left_out)
    digest = hashlib.sha256()
    first_names: dict[tuple[int, int], bytes] = {}

    def describe(batch: Sequence[bytes]) -> list[tuple[bytes, os.stat_result, bytes]]:
        return [(path, *_described(path, top, device)) for path in batch]

    # Reading lets go of the interpreter's lock: a third less time when the tree is not in memory, and no more when it is.
    with ThreadPoolExecutor(_THREADS) as pool:
        for described in pool.map(describe, _batches(paths)):
            for path, status, description in described:
                digest.update(description)
                first = first_names.setdefault((status.st_dev, status.st_ino), path)
                if first != path:
                    digest.update(_second_name(first[len(top) :]))
    return digest.hexdigest()


def _second_name(first: bytes) -> bytes:
    """What follows the description of a file that is there already, as ``first``.

    A name of any bytes could be another file's description, of 32 bytes: who may choose both finds such a pair in seconds. For
    one of few characters he would need some 2**74 tries, and it stands for itself.
    """
    return first + b"\0" if _PLAIN.fullmatch(first) else hashlib.sha256(b"first name\0" + first).digest()


def _batches(paths: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    while batch := tuple(islice(paths, _BATCH)):
        yield batch


def _described(path: bytes, root: bytes, device: int) -> tuple[os.stat_result, bytes]:
    with reachable(path) as name:
        status = os.lstat(name)
        return status, _describe(path, name, status, root, device)


def _describe(path: bytes, name: bytes, status: os.stat_result, root: bytes, device: int) -> bytes:
    """The hash of what is at ``path``, which system calls know by ``name``."""
    digest = hashlib.sha256()
    # What is an ordinary user's own is root's in his user namespace (host/userns.py): the same tree from inside and outside.
    uid = 0 if status.st_uid == os.geteuid() else status.st_uid
    gid = 0 if status.st_gid == os.getegid() else status.st_gid
    digest.update(f"{status.st_mode:o} {uid} {gid} {status.st_rdev}\0".encode())
    # The volume carries it, and init compares it (the root directory's own does not reach it).
    # A mount point's is that of what is mounted.
    if path != root and not (stat.S_ISDIR(status.st_mode) and status.st_dev != device):
        digest.update(f"{status.st_mtime_ns // 10**9}\0".encode())
    digest.update(path[len(root) :] + b"\0")
    if stat.S_ISLNK(status.st_mode):
        digest.update(os.readlink(name))  # noqa: PTH115 - bytes in, bytes out
    elif stat.S_ISREG(status.st_mode):
        digest.update(_content(name))
    digest.update(_of_attributes(name))
    return digest.digest()


def _of_attributes(name: bytes) -> bytes:
    """The extended attributes: a value may hold what looks like another one, so the lengths count where there are several."""
    found = [
        (os.fsencode(key), os.getxattr(name, key, follow_symlinks=False))
        for key in sorted(os.listxattr(name, follow_symlinks=False))
    ]
    text = b"".join(b"\0" + key + b"\0" + value for key, value in found)
    if len(found) < 2:
        return text
    # No name is empty: a single attribute never begins so.
    lengths = " ".join(f"{len(key)} {len(value)}" for key, value in found)
    return b"\0\0" + f"{len(found)} {lengths}".encode() + text


def _content(path: bytes) -> bytes:
    """The hash of a regular file: its size, then offset and bytes of each chunk that is not all zeros."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(fd).st_size
        digest = hashlib.sha256(size_bytes.to_bytes(8, "big"))
        offset = _next_data(fd, 0, size_bytes)
        while offset < size_bytes:
            chunk = os.pread(fd, _CHUNK_BYTES, offset)
            # A slice of the whole length is no copy.
            if chunk != _ZEROS[: len(chunk)]:
                digest.update(offset.to_bytes(8, "big"))
                digest.update(chunk)
            offset = _next_data(fd, offset + _CHUNK_BYTES, size_bytes)
        return digest.digest()
    finally:
        os.close(fd)


def _next_data(fd: int, offset: int, size_bytes: int) -> int:
    """The first chunk's offset from ``offset`` on that has data (lseek(2), SEEK_DATA); the size when there is none."""
    if offset >= size_bytes:
        return size_bytes
    try:
        data = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size_bytes
    return data - data % _CHUNK_BYTES
