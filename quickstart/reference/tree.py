"""A directory tree as one hash: every path, type, mode, owner, extended attribute, link target, content and time."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def tree_hash(root: Path) -> str:
    """SHA-256 of the tree below ``root``, in byte order of its paths, with times of modification in seconds."""
    digest = hashlib.sha256()
    for path in _walk(os.fsencode(root)):
        digest.update(_describe(path, os.fsencode(root)))
    return digest.hexdigest()


def _walk(directory: bytes) -> Iterator[bytes]:
    yield directory
    with os.scandir(directory) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    for entry in children:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def _describe(path: bytes, root: bytes) -> bytes:
    status = os.lstat(path)
    digest = hashlib.sha256()
    digest.update(f"{status.st_mode:o} {status.st_uid} {status.st_gid} {status.st_rdev}\0".encode())
    # The volume carries it, and init compares it (the root directory's own does not reach it).
    if path != root:
        digest.update(f"{int(status.st_mtime)}\0".encode())
    digest.update(path[len(root) :] + b"\0")
    if stat.S_ISLNK(status.st_mode):
        digest.update(os.readlink(path))  # noqa: PTH115 - bytes in, bytes out
    elif stat.S_ISREG(status.st_mode):
        digest.update(_content(path))
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        digest.update(b"\0" + os.fsencode(name) + b"\0" + os.getxattr(path, name, follow_symlinks=False))
    return digest.digest()


def _content(path: bytes) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # noqa: PTH123 - a name of any bytes, which Path cannot hold unchanged
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
