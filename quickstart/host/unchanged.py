"""Read, copy and hash files that another process may write to. A copy that this module makes has exactly the expected
size. After the reading, the module checks whether the file has changed since it was first seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import BadInputError
from quickstart.host.holes import data_chunks

_CHUNK_BYTES = 1 << 20
_HINT = "end what writes to it, and do it again"


@dataclass(frozen=True)
class Seen:
    """The state of a file at one moment. The state consists of the file's identity (device and inode), its size in
    bytes, and the time of its last write (st_mtim, in ns).

    The change time (st_ctim) is not included, because a new hard link (link(2)) changes it.
    """

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int


def seen(what: int | Path) -> Seen:
    """The present state of a file. The caller gives a descriptor or a path of the file. The function does not follow a
    link at the path. Raises OSError when the file cannot be examined.
    """
    status = os.fstat(what) if isinstance(what, int) else os.lstat(what)
    return Seen(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def check_unchanged(path: Path, before: Seen) -> None:
    """Raise BadInputError when the file at ``path`` was replaced or written to since it had the state ``before``."""
    try:
        now = seen(path)
    except FileNotFoundError:
        now = None
    if now != before:
        raise changed(path)


@contextmanager
def unchanged(path: Path, before: Seen) -> Iterator[None]:
    """A context manager that checks, at its start and at its end, that the file at ``path`` is still in the state
    ``before``. Raises BadInputError as `check_unchanged` does.
    """
    check_unchanged(path, before)
    yield
    check_unchanged(path, before)


def changed(path: Path) -> BadInputError:
    """The error to raise for a file that another process has changed."""
    return BadInputError(f"{path} changed while it was read", hint=_HINT)


def exactly(source: int, size_bytes: int, path: Path) -> Iterator[bytes]:
    """The content of the open file ``source``, in pieces. Raises BadInputError unless the file has exactly
    ``size_bytes`` bytes.

    The pieces have no more than ``size_bytes`` bytes together. ``path`` is the name of the file in the message.
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
    """Copy the open file ``source`` to the file ``target``, from the current position of ``target`` on. If
    ``size_bytes`` is given, ``source`` must have exactly this size. Zeros become holes, because a stranger's file of
    some kilobytes may contain gigabytes of zeros, which would fill the disk of the copy.

    Raises BadInputError when ``source`` has another size, and when another process writes to ``source`` during the
    call.
    """
    before, begin = seen(source), target.tell()
    end = begin + before.size_bytes
    if size_bytes not in (None, before.size_bytes):
        raise changed(path)
    for offset, chunk in data_chunks(source, before.size_bytes):
        target.seek(begin + offset)
        # A file that grows may have more bytes than at first.
        target.write(chunk[: before.size_bytes - offset])
    target.seek(end)
    target.truncate()
    if seen(source) != before:
        raise changed(path)


def digest_of(source: int, path: Path) -> str:
    """The SHA-256 of the open file ``source``. Raises BadInputError when another process writes to the file
    during the call.
    """
    before = seen(source)
    digest = hashlib.sha256()
    for chunk in exactly(source, before.size_bytes, path):
        digest.update(chunk)
    if seen(source) != before:
        raise changed(path)
    return digest.hexdigest()


def digest_of_data(source: int, path: Path) -> str:
    """A SHA-256 over the size of the open file ``source``, and over each chunk of its data together with the offset of
    the chunk. Holes and written zeros give the same result. Reading holes takes no time.

    Raises BadInputError when another process writes to the file during the call.
    """
    before = seen(source)
    digest = hashlib.sha256(before.size_bytes.to_bytes(8, "big"))
    for offset, chunk in data_chunks(source, before.size_bytes):
        digest.update(offset.to_bytes(8, "big"))
        digest.update(chunk)
    if seen(source) != before:
        raise changed(path)
    return digest.hexdigest()
