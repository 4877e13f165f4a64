"""Define a member, and the format of the stream in which the reader sends members. A member is one file of any kind in
a tree that somebody else has made. In the stream, each member consists of the length of a JSON document (4 bytes,
little-endian), the document, and the file's data.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from quickstart.errors import BadInputError

_LENGTH = struct.Struct("<I")
# All attributes of one file have at most 64 KiB together, on ext4 and in memory. A path has at most 4 KiB.
_HEADER_LIMIT_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
# When a path with its slash exactly fills the buffer of mke2fs -d, it writes the path's NUL one byte behind the
# buffer (create_inode.c, path_append). The buffer has 255 bytes, and is doubled for longer paths. malloc rounds up
# 255, 510 and 1020 bytes, so these buffers have a spare byte. But malloc does not round up 2040 bytes, so no path may
# be that long.
PATH_BYTES = 1000
# What a member's fields are, as JSON has them.
_STRINGS, _TABLES = ("path", "kind", "target"), ("xattrs", "acls")
_NUMBERS = ("mode", "uid", "gid", "mtime_ns", "ctime_s", "size_bytes", "major", "minor")
# The block size of file systems of a GiB or more (mke2fs.conf), and of the host's file systems.
_BLOCK_BYTES = 4096
# loff_t: no file is larger.
_FILE_BYTES = (1 << 63) - 1


class Kind(enum.Enum):
    """The kinds of members. A ``HARD`` link is another name of an earlier member, and has that member's owner, mode,
    attributes and data. The link's target is the path of the earlier member.
    """

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    HARD = "hard"
    FIFO = "fifo"
    CHARACTER = "character"
    BLOCK = "block"
    SOCKET = "socket"


DEVICES = (Kind.CHARACTER, Kind.BLOCK)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file of any kind in a tree that somebody else has made.

    ``path`` is the path in the source, decoded by os.fsdecode. ``mtime_ns`` and ``ctime_s`` count from the epoch.
    ``segments`` has the (offset, length) of each part of a file that is not a hole, in bytes and in order.
    ``size_bytes`` includes holes. ``acls`` maps `access` and `default` to the ACLs of these names, in acl(5)'s text
    form. ``major`` and ``minor`` are the numbers of a device.
    """

    path: str
    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    ctime_s: int = 0
    size_bytes: int = 0
    major: int = 0
    minor: int = 0
    segments: tuple[tuple[int, int], ...] = ()
    target: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    acls: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_bytes(self) -> int:
        """The number of bytes of the file's data, which follow the member in the stream."""
        return sum(length for _, length in self.segments)

    @property
    def block_bytes(self) -> int:
        """The number of bytes in the blocks that hold the member's data. In a sparse file, every piece of data needs
        at least one block.
        """
        first = (at // _BLOCK_BYTES for at, _ in self.segments)
        end = (-(-(at + length) // _BLOCK_BYTES) for at, length in self.segments)
        return _BLOCK_BYTES * sum(end) - _BLOCK_BYTES * sum(first)

    @property
    def attribute_bytes(self) -> int:
        """The size of all extended attributes and ACLs in bytes, including the size of their names."""
        of_xattrs = sum(len(name) + len(value) for name, value in self.xattrs.items())
        return of_xattrs + sum(len(name) + len(text) for name, text in self.acls.items())


@dataclass(frozen=True, kw_only=True)
class DeviceNode:
    """A character or block device (mknod(2)) of an image. QuickStart makes the device node on the image's disk, never
    on the host.

    ``path`` begins at the root, without the leading slash, and is decoded by os.fsdecode. ``mode`` includes
    the file type.
    """

    path: str
    mode: int
    uid: int
    gid: int
    major: int
    minor: int
    mtime_s: int


def write_member(out: BinaryIO, member: Member, data: Iterator[bytes]) -> None:
    """Write ``member`` to ``out``, and then its ``data`` in the order of its segments."""
    fields = {each.name: getattr(member, each.name) for each in dataclasses.fields(member)}
    fields["kind"] = member.kind.value
    fields["xattrs"] = {name: base64.b64encode(value).decode() for name, value in member.xattrs.items()}
    _write(out, fields)
    for chunk in data:
        out.write(chunk)


def write_end(out: BinaryIO, fault: str = "", hint: str = "") -> None:
    """Write the last record, which marks the end of the members. With ``fault``, the record says what is
    wrong with the source.
    """
    _write(out, {"fault": fault, "hint": hint})
    out.flush()


def _write(out: BinaryIO, document: Mapping[str, object]) -> None:
    text = json.dumps(document).encode()
    out.write(_LENGTH.pack(len(text)))
    out.write(text)


def read_members(stream: BinaryIO, source: str) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """The members of a stream, each with its data. The caller must read a member's data before it requests
    the next member.

    Raises BadInputError for a fault that the reader reports, for a stream without a last record, and for an
    impossible member, which a compromised reader may send.
    """
    while True:
        try:
            document = _read(stream, source)
            if "fault" in document:
                fault, hint = (_string(document, name) for name in ("fault", "hint"))
                if fault:
                    raise BadInputError(f"{source} {fault}", hint=hint or None)
                return
            member = _member(document)
        except (ValueError, TypeError, KeyError) as error:
            raise BadInputError(f"{source} cannot be read: {error!s:.200}", hint="is it damaged?") from error
        data = _data(stream, member.segments, source)
        yield member, data
        # Skip the data of a member that was left out.
        for _ in data:
            pass


def read_member(stream: BinaryIO) -> Member:
    """The next member in ``stream``, which `write_member` wrote."""
    return _member(_read(stream, "what was written"))


def _read(stream: BinaryIO, source: str) -> dict[str, object]:
    """The next JSON document in the stream. Raises ValueError or TypeError for a damaged document."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size, source))
    if length > _HEADER_LIMIT_BYTES:
        raise BadInputError(f"{source} has a member with more attributes than a file can have")
    try:
        found = json.loads(_exactly(stream, length, source))
    except RecursionError as error:
        raise ValueError("a document that is nested too deep") from error
    if not isinstance(found, dict):
        raise TypeError("a document that is no object")
    return found


def _member(document: Mapping[str, object]) -> Member:
    """The member that a JSON document describes. Raises KeyError, TypeError or ValueError for an impossible member."""
    strings = {name: _string(document, name) for name in _STRINGS}
    tables = {name: _table(document, name) for name in _TABLES}
    numbers = {name: document[name] for name in _NUMBERS}
    # True is an int, too.
    if wrong := [name for name, value in numbers.items() if type(value) is not int]:
        raise TypeError(f"{wrong[0]} is no number")
    fields = {**document, **strings, **tables, "kind": Kind(strings["kind"])}
    fields["xattrs"] = {name: base64.b64decode(value) for name, value in tables["xattrs"].items()}
    fields["segments"] = _segments(document["segments"])
    return Member(**fields)  # type: ignore[arg-type]


def _string(document: Mapping[str, object], name: str) -> str:
    """The string field ``name`` of the document. Raises TypeError for another type, and ValueError for a
    string that os.fsencode refuses.
    """
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no string")
    os.fsencode(value)
    return value


def _table(document: Mapping[str, object], name: str) -> dict[str, str]:
    value = document[name]
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no table")
    for key in value:
        os.fsencode(key)
    return {key: _string(value, key) for key in value}


def _segments(value: object) -> tuple[tuple[int, int], ...]:
    """The (offset, length) of each segment in a JSON value. The function refuses a negative length. Such a length would
    reduce the total size, which has a limit.
    """
    if not isinstance(value, list):
        raise TypeError("the segments of a file are no list")
    found = tuple((offset, length) for offset, length in value)
    for each in found:
        if any(type(number) is not int or not 0 <= number <= _FILE_BYTES for number in each):
            raise ValueError("a file has a segment that no file can have")
    return found


def _data(stream: BinaryIO, segments: Sequence[tuple[int, int]], source: str) -> Iterator[bytes]:
    """The data of the segments, in chunks. No chunk spans two segments."""
    for _, left_bytes in segments:
        while left_bytes > 0:
            chunk = _exactly(stream, min(CHUNK_BYTES, left_bytes), source)
            left_bytes -= len(chunk)
            yield chunk


def _exactly(stream: BinaryIO, size_bytes: int, source: str) -> bytes:
    data = stream.read(size_bytes)
    if len(data) < size_bytes:
        raise BadInputError(
            f"{source} cannot be read: what reads it ended before its end",
            hint="it asks for more memory or time than a sound one does",
        )
    return data
