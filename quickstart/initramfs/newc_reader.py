"""Read newc cpio archives of any origin (``quickstart.initramfs.newc`` describes the format).

The reader detects that a file was cut off, unless the file is empty or ends after a complete archive. The format does
not say whether another archive or padding follows a complete archive.

Like the kernel, the reader also accepts a compressed stream in place of an archive (payload.py unpacks the stream). The
file may be untrusted. So the reader reads the file in pieces, and stays within the limits that the class ``Limits``
describes.
"""

from __future__ import annotations

import dataclasses
import re
import stat
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
from quickstart.initramfs.newc_exact import Exactness
from quickstart.initramfs.payload import (
    HEADER_MOST_BYTES,
    MAGIC_BYTES,
    Allowance,
    Unpacked,
    form_of,
    has_our_header,
)
from quickstart.model.words import Payload

_HEADER_FIELDS = tuple(each.name for each in dataclasses.fields(Header))
_FIELDS = re.compile(rb"[0-9A-Fa-f]{104}")
_ZEROS_BYTES = 1 << 16


@dataclass(frozen=True)
class Limits:
    """The limits for one file: the unpacked bytes of its archives, the number of members, the total bytes of names and
    link targets, and the number of archives.

    The limit for the unpacked bytes is 4 GiB, which is the highest memory budget that a profile may set. The other
    limits keep the memory for reading a file below about 100 MiB.
    """

    unpacked_bytes: int = 4 << 30
    members: int = 100_000
    names_bytes: int = 32 << 20
    archives: int = 1024


UNLIMITED_BY_MANIFEST = Limits()


class Stream(Protocol):
    """A source of bytes. ``read`` returns up to ``count`` bytes, and no bytes at the end."""

    def read(self, count: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class CpioMember:
    """One member of an archive. ``data`` is the member's content or link target. ``offset`` is the position of the
    member's header in bytes. The position is relative to the file or, when ``in_stream`` is true, to the unpacked
    content of the member's compressed stream.

    ``archive`` is the number of the member's archive in the file, counted from 0. The hard links of a file have the
    same ``archive`` and ``inode``, and an ``nlink`` above 1. Only one of these hard links has the data. In our
    archives, this is the first hard link, and in archives of other writers, the last.
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
    in_stream: bool
    data: bytes = field(repr=False)


def read_archive(stream: Stream, limits: Limits = UNLIMITED_BY_MANIFEST) -> Iterator[CpioMember]:
    """Yield the members of all archives in the stream as the function `walk_archive` does, but with their data."""
    for member, pieces in walk_archive(stream, limits):
        yield dataclasses.replace(member, data=b"".join(pieces))


def walk_archive(
    stream: Stream, limits: Limits = UNLIMITED_BY_MANIFEST, *, exact: bool = False
) -> Iterator[tuple[CpioMember, Iterator[bytes]]]:
    """Yield the members of all archives in the stream, in order. The function does not yield the trailer at the end of
    each archive. The stream is never rewound.

    The field ``data`` of a member is empty. With each member, the function yields an iterator, which yields the
    member's data in pieces of at most 1 MiB. The caller can read these pieces until it requests the next member. Pieces
    that the caller has not read by then are skipped.

    The function reads only the newc format (``070701``), with upper- or lower-case digits. An archive may be
    uncompressed, or in a gzip, LZ4 or Zstandard stream. Offsets are relative to the stream's position at the call. An
    empty stream has no members. Raises ArtefactError, with the offset, in these four cases.

    - Some bytes in the stream do not form a member.
    - The padding has a byte that is not zero.
    - ``limits`` are exceeded.
    - The stream does not end after a trailer.

    With ``exact``, the function also raises ArtefactError in these three cases.

    - An archive is not exactly what ``write_archive`` writes (newc_exact.py).
    - A compressed stream has more than one archive.
    - The header of a compressed stream is not the one that `payload.packing` writes.
    """
    tally = _Tally(limits)
    source = _Source(stream, tally)
    unpacked = Allowance(limits.unpacked_bytes)
    while source.skip_zeros():
        form = form_of(source.peek(MAGIC_BYTES))
        if form is Payload.CPIO:
            yield from _walk_one(source, tally, in_stream=False, exact=exact)
        else:
            # A compressed stream without an archive takes time as well.
            tally.stream(source.offset)
            if exact and not has_our_header(form, source.peek(HEADER_MOST_BYTES)):
                raise _damaged(
                    source.offset, f"a {form.value} stream with another header than quickstart writes"
                )
            inner = _Source(Unpacked(source, form, unpacked), tally)
            while inner.skip_zeros():
                if exact and inner.archives:
                    raise _damaged(source.offset, "a second archive in one compressed stream")
                inner.archives += 1
                yield from _walk_one(inner, tally, in_stream=True, exact=exact)


def _walk_one(
    source: _Source, tally: _Tally, *, in_stream: bool, exact: bool
) -> Iterator[tuple[CpioMember, Iterator[bytes]]]:
    if source.offset % 4:
        raise _damaged(source.offset, "a header that does not begin at a multiple of 4 bytes")
    archive = tally.archive(source.offset)
    exactness = Exactness() if exact else None
    while True:
        start = source.offset
        member = _read_member(source, archive, in_stream, exactness)
        tally.member(start, member)
        pieces = source.pieces(member.size, f"data of {member.name!r}")
        if member.name != TRAILER:
            yield member, pieces
        for _ in pieces:
            pass
        source.take_padding()
        if member.name == TRAILER:
            return


class _Tally:
    """Counts the bytes, members and archives of a file, and compares the numbers with the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left_bytes = limits.unpacked_bytes
        self._members = self._names_bytes = self._archives = self._streams = 0

    def take(self, count: int, offset: int, what: str) -> None:
        """Count ``count`` bytes before they are read. Raises ArtefactError when the limit is exceeded."""
        if count > self._left_bytes:
            raise _damaged(
                offset, f"{what}: {count} bytes, where no more than {self._left_bytes} can be left"
            )
        self._left_bytes -= count

    def member(self, offset: int, member: CpioMember) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise _damaged(offset, f"more than {self._limits.members} members")
        link_bytes = member.size if stat.S_ISLNK(member.mode) else 0
        if link_bytes > PATH_MAX:
            raise _damaged(offset, f"a link to a name of {link_bytes} bytes")
        self._names_bytes += len(member.name) + link_bytes
        if self._names_bytes > self._limits.names_bytes:
            raise _damaged(offset, f"names of more than {self._limits.names_bytes} bytes")

    def archive(self, offset: int) -> int:
        """Count an archive that begins at ``offset``. Return the archive's number, counted from 0."""
        self._archives += 1
        if self._archives > self._limits.archives:
            raise _damaged(offset, f"more than {self._limits.archives} archives")
        return self._archives - 1

    def stream(self, offset: int) -> None:
        """Count a compressed stream that begins at ``offset``."""
        self._streams += 1
        if self._streams > self._limits.archives:
            raise _damaged(offset, f"more than {self._limits.archives} compressed streams")


class _Source:
    """A view of the stream that reads only forward, counts the bytes that are read, and can look ahead."""

    def __init__(self, stream: Stream, tally: _Tally) -> None:
        self._stream, self._tally = stream, tally
        self._ahead = b""
        self.offset = self.archives = 0

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes of the stream. Even when ``count`` is a damaged length, the function needs at most
        as much memory as the stream has bytes.
        """
        return b"".join(self.pieces(count, what))

    def pieces(self, count: int, what: str) -> Iterator[bytes]:
        """The next ``count`` bytes of the stream, in pieces."""
        start = self.offset
        if count:
            self._tally.take(count, start, what)
        missing = count
        while missing:
            chunk = self.read(min(missing, CHUNK_BYTES))
            if not chunk:
                raise _damaged(start, f"{what}: the file ends after {count - missing} of {count} bytes")
            missing -= len(chunk)
            yield chunk

    def peek(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream, which are not consumed. There are fewer bytes at the end of the
        stream.
        """
        while len(self._ahead) < count and (chunk := self._stream.read(ARCHIVE_ALIGNMENT)):
            self._ahead += chunk
        return self._ahead[:count]

    def read(self, count: int, /) -> bytes:
        """At most the next ``count`` bytes. The result is empty at the end of the stream."""
        found = self._ahead[:count] or self._stream.read(count)
        self._ahead = self._ahead[count:]
        self.offset += len(found)
        return found

    def give_back(self, data: bytes, /) -> None:
        """Put ``data`` back in front of the stream. ``data`` must be the bytes that were read last."""
        self._ahead = data + self._ahead
        self.offset -= len(data)

    def take_padding(self) -> None:
        start = self.offset
        if any(self.take(-self.offset % 4, "padding")):
            raise _damaged(start, "padding that is not zero")

    def skip_zeros(self) -> bool:
        """Skip to the next byte that is not zero. Return False at the end of the stream."""
        while True:
            if not self._ahead:
                self._ahead = self._stream.read(_ZEROS_BYTES)
            if not self._ahead:
                return False
            rest = self._ahead.lstrip(b"\0")
            self.offset += len(self._ahead) - len(rest)
            self._ahead = rest
            if rest:
                return True


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _read_member(source: _Source, archive: int, in_stream: bool, exactness: Exactness | None) -> CpioMember:
    start = source.offset
    raw = source.take(HEADER_BYTES, "header")
    if not raw.startswith(MAGIC):
        raise _damaged(start, f"magic {raw[:6]!r} instead of {MAGIC!r}")
    if not _FIELDS.fullmatch(raw, len(MAGIC)):
        raise _damaged(start, "a header whose fields are not hexadecimal")
    numbers = (int(raw[at : at + 8], 16) for at in range(len(MAGIC), HEADER_BYTES, 8))
    header = Header(**dict(zip(_HEADER_FIELDS, numbers, strict=True)))
    if not 1 < header.name_bytes <= PATH_MAX:
        raise _damaged(start, f"a name of {header.name_bytes} bytes")
    name = source.take(header.name_bytes, "name")
    if name.find(b"\0") != header.name_bytes - 1:
        raise _damaged(start, f"name {name[:60]!r}, whose first NUL is not its end")
    source.take_padding()
    head = raw + name
    if exactness and (fault := exactness.fault(_decode(name[:-1]), header, head + bytes(-len(head) % 4))):
        raise _damaged(start, fault)
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
        offset=source.offset,
        archive=archive,
        in_stream=in_stream,
        data=b"",
    )


def _damaged(offset: int, what: str) -> ArtefactError:
    return ArtefactError(
        f"cpio archive is damaged at offset {offset}: {what}", hint="build the artefact again"
    )
