"""Files that somebody may write to while they are read: a copy is as long as was said, what is looked at twice is the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import BadInputError

_CHUNK_BYTES = 1 << 20
_HINT = "end what writes to it, and do it again"


@dataclass(frozen=True)
class Seen:
    """A file as it was at one moment: which it is, its size in bytes, and when it was last written to (st_mtim, in ns).

    Its time of change is not in it: another name (link(2)) changes that.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int


def seen(what: int | Path) -> Seen:
    """The open or named file as it is now; a link is not followed. Raises OSError."""
    status = os.fstat(what) if isinstance(what, int) else os.lstat(what)
    return Seen(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def check_unchanged(path: Path, before: Seen) -> None:
    """Raise BadInputError when the file at ``path`` is another one than ``before``, or was written to since."""
    try:
        now = seen(path)
    except FileNotFoundError:
        now = None
    if now != before:
        raise changed(path)


@contextmanager
def unchanged(path: Path, before: Seen) -> Iterator[None]:
    """What was read of ``path`` while the context lasts is of the file that it was ``before``; raises as `check_unchanged`."""
    check_unchanged(path, before)
    yield
    check_unchanged(path, before)


def changed(path: Path) -> BadInputError:
    """The error for a file that somebody writes to."""
    return BadInputError(f"{path} changed while it was read", hint=_HINT)


def exactly(source: int, size_bytes: int, path: Path) -> Iterator[bytes]:
    """The open file ``source`` from its beginning, in pieces; raises BadInputError when it has not just ``size_bytes``.

    No more than these are ever read. ``path`` is its name for the message.
    """
    offset = 0
    while offset < size_bytes:
        chunk = os.pread(source, min(_CHUNK_BYTES, size_bytes - offset), offset)
        if not chunk:
            raise changed(path)
        offset += len(chunk)
        yield chunk
    if os.pread(source, 1, offset):
        raise changed(path)


def copy_exactly(source: int, target: BinaryIO, path: Path, size_bytes: int | None = None) -> None:
    """Copy the open file ``source`` to ``target``: as much as it has, which has to be ``size_bytes``; raises as `exactly`."""
    for chunk in exactly(source, os.fstat(source).st_size if size_bytes is None else size_bytes, path):
        target.write(chunk)


def digest_of(source: int, path: Path) -> str:
    """SHA-256 of the open file ``source``, as large as it is now; raises BadInputError when it is written to meanwhile."""
    before = seen(source)
    digest = hashlib.sha256()
    for chunk in exactly(source, before.size_bytes, path):
        digest.update(chunk)
    if seen(source) != before:
        raise changed(path)
    return digest.hexdigest()
