"""Read the data of a sparse file. The module skips holes. A file with little data can have terabytes of holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

CHUNK_BYTES = 1 << 18
_ZEROS = bytes(CHUNK_BYTES)
# The block of most file systems: a file takes room for whole blocks.
_BLOCK_BYTES = 4096


def copy_range(source: int, begin_bytes: int, size_bytes: int, target: int) -> None:
    """Copy a range of ``source`` to the beginning of the empty file ``target``. Blocks of 4 KiB that are all zeros
    become holes, so the copy takes hardly more room than the data.
    """
    end_bytes = begin_bytes + size_bytes
    os.ftruncate(target, size_bytes)
    for offset, chunk in data_chunks(source, end_bytes, begin_bytes - begin_bytes % CHUNK_BYTES):
        skipped = max(0, begin_bytes - offset)
        data = chunk[skipped : end_bytes - offset]
        for begin, end in _written(data):
            write_at(target, data[begin:end], offset + skipped - begin_bytes + begin)


def write_at(fd: int, data: bytes, offset: int) -> int:
    """Write all of ``data`` to the file ``fd`` at ``offset``, and return the number of bytes. pwrite(2) may write only a
    part, for example when the file system becomes full. Then the next call says so.
    """
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        rest, offset = rest[count:], offset + count
    return len(data)


def _written(data: bytes) -> Iterator[tuple[int, int]]:
    """The ranges of ``data`` that are not zeros, in whole blocks."""
    begin = None
    for at in range(0, len(data), _BLOCK_BYTES):
        block = data[at : at + _BLOCK_BYTES]
        is_empty = block == _ZEROS[: len(block)]
        if is_empty and begin is not None:
            yield begin, at
            begin = None
        elif not is_empty and begin is None:
            begin = at
    if begin is not None:
        yield begin, len(data)


def segments(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The (offset, length) of each segment of the file ``fd``, up to ``size_bytes``, that is not a hole (lseek(2),
    SEEK_DATA), in order. A file system that does not say the truth, for example in FUSE, has no holes from there on.
    """
    end = 0
    while end < size_bytes:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        begin = max(begin, end)
        after = os.lseek(fd, begin, os.SEEK_HOLE)
        end = min(after, size_bytes) if after > begin else size_bytes
        if begin < end:
            yield begin, end - begin


def data_size(fd: int, size_bytes: int) -> int:
    """The number of bytes of the file ``fd``, up to ``size_bytes``, that are not in holes. On a file system without holes,
    these are all bytes. (The number of blocks of stat(2) may be smaller for some seconds after a write, as on ZFS.)
    """
    return sum(length for _, length in segments(fd, size_bytes))


def data_chunks(fd: int, size_bytes: int, begin_bytes: int = 0) -> Iterator[tuple[int, bytes]]:
    """The chunks of the file ``fd`` that are not all zeros, as (offset, chunk). The function reads from ``begin_bytes``
    on, up to ``size_bytes``. Offsets are multiples of CHUNK_BYTES. ``begin_bytes`` must be such a multiple, too.

    The function leaves out holes, and also chunks of zeros that were written to the file.
    """
    offset = _next_data(fd, begin_bytes, size_bytes)
    while offset < size_bytes:
        chunk = os.pread(fd, CHUNK_BYTES, offset)
        # A slice of the whole length is no copy.
        if chunk != _ZEROS[: len(chunk)]:
            yield offset, chunk
        offset = _next_data(fd, offset + CHUNK_BYTES, size_bytes)


def _next_data(fd: int, offset: int, size_bytes: int) -> int:
    """The offset of the first chunk with data at or after ``offset`` (lseek(2), SEEK_DATA). The result is
    ``size_bytes`` when no such chunk exists.
    """
    if offset >= size_bytes:
        return size_bytes
    try:
        data = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size_bytes
    # Never back, whatever a file system says.
    return max(offset, data) - max(offset, data) % CHUNK_BYTES
