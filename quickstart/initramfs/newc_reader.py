"""The newc cpio format: a reader of anybody's archives (the format: ``quickstart.initramfs.newc``).

What a cut-off file can hide: nothing between two archives says that another follows, and zeros after a
trailer are optional. So a file that ends at its very start or anywhere behind a complete trailer reads as a
whole one. Every other truncation is found.

Where the kernel takes a compressed stream in place of an archive, so does the reader (``quickstart.initramfs.payload``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc import (
    ARCHIVE_ALIGNMENT,
    CHUNK_BYTES,
    HEADER_BYTES,
    MAGIC,
    PATH_MAX,
    TRAILER,
    Header,
)
from quickstart.initramfs.payload import MAGIC_BYTES, Payload, Unpacked, form_of

_FIELDS = re.compile(rb"[0-9A-Fa-f]{104}")


class Stream(Protocol):
    """What is read: up to ``count`` bytes at a time, none at the end."""

    def read(self, count: int, /) -> bytes: ...


@dataclass(frozen=True)
class CpioMember:
    """One member as read. ``data`` is content or link target; ``offset`` is where it begins, in bytes: in what the compressed
    stream that it is in unpacks to, if it is in one.

    ``archive`` counts the archives of the stream from 0. Of several hard links (equal ``archive`` and ``inode``, ``nlink``
    above 1) one has the data: the first in our archives, the last in those of other writers.
    """

    name: str
    inode: int
    mode: int
    uid: int
    gid: int
    nlink: int
    mtime: int
    size: int
    rdev_major: int
    rdev_minor: int
    offset: int
    archive: int
    data: bytes = field(repr=False)


def read_archive(stream: Stream) -> Iterator[CpioMember]:
    """Yield the members of all archives in the stream, in order and without their trailers; never seeks.

    Only newc (``070701``) is read, with upper- or lower-case digits, plain or in gzip, LZ4 or Zstandard streams. Offsets count from
    where the stream stood. Raises ArtefactError, with the offset, for bytes that are no member, for padding that is not
    zero, and for an end of the stream anywhere but behind a trailer (or at once: no bytes are no members).
    """
    source, archives = _Source(stream), itertools.count()
    while source.skip_zeros():
        form = form_of(source.peek(MAGIC_BYTES))
        if form is Payload.CPIO:
            yield from _read_one(source, next(archives))
        else:
            inner = _Source(Unpacked(source, form))
            while inner.skip_zeros():
                yield from _read_one(inner, next(archives))


def _read_one(source: _Source, archive: int) -> Iterator[CpioMember]:
    if source.offset % 4:
        raise _damaged(source.offset, "a header that does not begin at a multiple of 4 bytes")
    while (member := _read_member(source, archive)).name != TRAILER:
        yield member


class _Source:
    """A forward-only view of the stream that counts the bytes taken and can look ahead."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead = b""
        self.offset = 0

    def take(self, count: int, what: str) -> bytes:
        """Exactly ``count`` bytes; a damaged length costs no more memory than the stream has bytes."""
        start = self.offset
        chunks = [self._ahead[:count]]
        self._ahead = self._ahead[count:]
        missing = count - len(chunks[0])
        while missing:
            chunk = self._stream.read(min(missing, CHUNK_BYTES))
            if not chunk:
                got = count - missing
                raise _damaged(start, f"{what}: the file ends after {got} of {count} bytes")
            chunks.append(chunk)
            missing -= len(chunk)
        self.offset += count
        return b"".join(chunks)

    def peek(self, count: int) -> bytes:
        """The next bytes, fewer at the end of the stream."""
        while len(self._ahead) < count and (chunk := self._stream.read(ARCHIVE_ALIGNMENT)):
            self._ahead += chunk
        return self._ahead[:count]

    def read(self, count: int, /) -> bytes:
        """Up to ``count`` bytes, none at the end of the stream."""
        found = self._ahead[:count] or self._stream.read(count)
        self._ahead = self._ahead[count:]
        self.offset += len(found)
        return found

    def give_back(self, data: bytes, /) -> None:
        """These bytes, the last that were read, are to be taken once more."""
        self._ahead = data + self._ahead
        self.offset -= len(data)

    def take_padding(self) -> None:
        start = self.offset
        if any(self.take(-self.offset % 4, "padding")):
            raise _damaged(start, "padding that is not zero")

    def skip_zeros(self) -> bool:
        """Go on to the next byte that is not zero; False at the end of the stream."""
        while True:
            if not self._ahead:
                self._ahead = self._stream.read(ARCHIVE_ALIGNMENT)
            if not self._ahead:
                return False
            rest = self._ahead.lstrip(b"\0")
            self.offset += len(self._ahead) - len(rest)
            self._ahead = rest
            if rest:
                return True


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _read_member(source: _Source, archive: int) -> CpioMember:
    start = source.offset
    raw = source.take(HEADER_BYTES, "header")
    if not raw.startswith(MAGIC):
        raise _damaged(start, f"magic {raw[:6]!r} instead of {MAGIC!r}")
    if not _FIELDS.fullmatch(raw, len(MAGIC)):
        raise _damaged(start, "a header whose fields are not hexadecimal")
    header = Header(*(int(raw[at : at + 8], 16) for at in range(len(MAGIC), HEADER_BYTES, 8)))
    if not 1 < header.name_bytes <= PATH_MAX:
        raise _damaged(start, f"a name of {header.name_bytes} bytes")
    name = source.take(header.name_bytes, "name")
    if name.find(b"\0") != header.name_bytes - 1:
        raise _damaged(start, f"name {name[:60]!r}, whose first NUL is not its end")
    source.take_padding()
    offset = source.offset
    data = source.take(header.size, f"data of {_decode(name[:-1])!r}")
    source.take_padding()
    return CpioMember(
        name=_decode(name[:-1]),
        inode=header.inode,
        mode=header.mode,
        uid=header.uid,
        gid=header.gid,
        nlink=header.nlink,
        mtime=header.mtime,
        size=header.size,
        rdev_major=header.rdev_major,
        rdev_minor=header.rdev_minor,
        offset=offset,
        archive=archive,
        data=data,
    )


def _damaged(offset: int, what: str) -> ArtefactError:
    return ArtefactError(
        f"cpio archive is damaged at offset {offset}: {what}", hint="build the artefact again"
    )
