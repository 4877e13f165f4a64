"""Read, from a stream, the members of a tar archive that somebody else has made (tar(5): ustar, pax and GNU
extensions).

Python's tarfile parses the archive, in an unprivileged process (module ``reader``). This module limits how much tarfile
keeps in memory.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Self, cast

from quickstart.errors import BadInputError
from quickstart.inspect.foreign.members import CHUNK_BYTES, DEVICES, Kind, Member
from quickstart.model import MIB
from quickstart.parse.printable import brief

_XATTR, _ACL = "SCHILY.xattr.", "SCHILY.acl."
_HINT = "is it cut?"
# tarfile copies the records of global pax headers for each member. So their size counts once for each member, and
# each member gets all their attributes. Git writes one record of 52 bytes.
_GLOBAL_RECORDS, _GLOBAL_BYTES = 64, 4096
# Limits for headers: for one header, for all headers without the members' shares, and the share of a member. tarfile
# takes a second for a million records of five bytes. A member's header has half a KiB, and its names and attributes
# have about as much. Few members have attributes of 64 KiB.
_HEADER_BYTES, _SPARE_BYTES, _SHARE_BYTES = MIB, 16 * MIB, 2048
# A record has 10 KiB as a rule.
_PADDING_BYTES = 16 * MIB
_NEGATIVE = tarfile.ReadError("a header has a negative size")
_PAX_TIME = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]*)?", re.ASCII)
# Before CVE-2024-6232 was mended, tarfile searched for "\d+ hdrcharset", and began anew at each digit. A name has at most
# 255 digits, but a link's target may have more. A mended tarfile has this pattern.
_BEGINS_ANEW = not hasattr(tarfile, "_header_length_prefix_re")
_DIGITS = re.compile(rb"\d{256}")


class _Headers:
    """The stream from which tarfile reads an archive's headers. Names, attributes and maps of holes belong to the
    headers. tarfile does not limit their size, so ``read`` raises BadInputError when one header is too large, or
    when all headers together are too large for the number of members.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self._left_bytes = _SPARE_BYTES

    def give_share(self) -> None:
        """Raise the limit for the headers of all members together by 2 KiB. Call this function once for each member,
        after its headers have been read. So the limit is proportional to the number of members.
        """
        self._left_bytes += _SHARE_BYTES

    def read(self, count: int) -> bytes:
        # A header in base 256 may have a negative size, which would count backwards.
        if count < 0:
            raise _NEGATIVE
        # The bytes are counted before they are read, because the stream may be gigabytes of zeros.
        self._left_bytes -= count
        if count > _HEADER_BYTES or self._left_bytes < 0:
            raise BadInputError(
                f"cannot be unpacked whole: a header has more than {_HEADER_BYTES} bytes, or all have more than "
                f"{_SHARE_BYTES} for each member and {_SPARE_BYTES} more",
                hint="make it without extended attributes, with `tar --no-xattrs`",
            )
        data = self.stream.read(count)
        if _BEGINS_ANEW and _DIGITS.search(data):
            raise BadInputError(
                "cannot be unpacked whole: a header has 256 digits or more in a row",
                hint="use a Python in which CVE-2024-6232 is mended, as in Debian 12",
            )
        return data

    def tell(self) -> int:
        return self.stream.tell()

    def seek(self, place: int) -> int:
        """Go forward to ``place``. The caller has read all data of the member, so ``place`` is usually the end of the
        padding of the member's last block. Raises BadInputError when ``place`` is further away. The skipped data would
        then belong to no file, and no limit would apply to them.
        """
        if place - self.stream.tell() >= tarfile.BLOCKSIZE:
            raise BadInputError(
                "cannot be unpacked whole: a file has more data than the map of its holes says",
                hint="make it without `tar --sparse`",
            )
        return self.stream.seek(place)

    def close(self) -> None:
        self.stream.close()


class _Archive(tarfile.TarFile):
    """An archive from which tarfile reads only headers."""

    def __init__(self, name: str | None, mode: Any, fileobj: BinaryIO, **rest: Any) -> None:
        # tarfile's own stream: it goes forward only, and counts as the archive does.
        self.headers = _Headers(fileobj)
        super().__init__(name, mode, cast("Any", self.headers), **rest)


class _Strict(tarfile.TarInfo):
    """A tar header. Reading a header raises ReadError when the header is damaged, or when the global headers before it
    are too large. Without this class, tarfile would take a damaged header for the end of the archive, unless the
    header is the first one.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        # Called for the header behind each global one, before tarfile gives a copy to a member.
        _check_globals(archive.pax_headers)
        try:
            found = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {archive.offset}") from error
        if found.size < 0:
            raise _NEGATIVE
        return found


def _check_globals(headers: Mapping[str, str]) -> None:
    many = len(headers) > _GLOBAL_RECORDS or any(name.startswith((_XATTR, _ACL)) for name in headers)
    if many or sum(len(name) + len(value) for name, value in headers.items()) > _GLOBAL_BYTES:
        raise BadInputError(
            "cannot be unpacked whole: its global pax headers have attributes, or more than "
            f"{_GLOBAL_RECORDS} records, or more than {_GLOBAL_BYTES} characters",
            hint="make it without --pax-option=globexthdr",
        )


def read_archive(stream: BinaryIO) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """The members of the uncompressed archive in ``stream``, in the archive's order, each with its data.
    Raises BadInputError for a damaged archive.
    """
    try:
        with _Archive.open(
            fileobj=stream, mode="r|", bufsize=CHUNK_BYTES, tarinfo=_Strict, errors="surrogateescape"
        ) as archive:
            for info in archive:
                archive.headers.give_share()
                member = _member(info)
                data = _data(archive.headers, info, member.data_bytes)
                yield member, data
                # Skip the data of a member that was left out.
                for _ in data:
                    pass
                # tarfile keeps all members, but only hard links could need an earlier member.
                archive.members = []  # type: ignore[attr-defined]
        _read_padding(stream)
    except (tarfile.TarError, EOFError) as error:
        raise BadInputError(f"cannot be unpacked whole: {error}", hint=_HINT) from error
    except (ValueError, ArithmeticError, LookupError) as error:
        # What Python says of them helps nobody ("not enough values to unpack").
        raise BadInputError(
            "cannot be unpacked whole: a header has a number, a pax record or a map of holes that is none",
            hint=_HINT,
        ) from error


def _read_padding(stream: BinaryIO) -> None:
    """Read the padding behind the archive's end. Otherwise, the decompressor that writes into our pipe could not
    finish. The padding goes up to the end of a record. `tar --blocking-factor` sets the size of a record.
    """
    left_bytes = _PADDING_BYTES
    while chunk := stream.read(CHUNK_BYTES):
        left_bytes -= len(chunk)
        if left_bytes < 0:
            raise BadInputError(
                f"cannot be unpacked whole: more than {_PADDING_BYTES} bytes are behind its end",
                hint="if several archives were joined, unpack them with `tar --ignore-zeros`, and give the directory",
            )


def _member(info: tarfile.TarInfo) -> Member:
    kind = _kind(info)
    sparse: list[tuple[int, int]] | None = getattr(info, "sparse", None)
    segments = tuple((int(at), int(length)) for at, length in (sparse or [(0, info.size)]) if length)
    headers = info.pax_headers
    return Member(
        path=info.name,
        kind=kind,
        mode=info.mode & 0o7777,
        uid=info.uid,
        gid=info.gid,
        mtime_ns=_time_ns(headers.get("mtime", str(int(info.mtime)))),
        # Only an archive that the appliance has made needs it.
        ctime_s=_time_ns(ctime) // 10**9 if _PAX_TIME.fullmatch(ctime := headers.get("ctime", "")) else 0,
        size_bytes=info.size if kind is Kind.FILE else 0,
        major=info.devmajor if kind in DEVICES else 0,
        minor=info.devminor if kind in DEVICES else 0,
        segments=segments if kind is Kind.FILE else (),
        target=info.linkname if kind in (Kind.LINK, Kind.HARD) else "",
        xattrs={
            _plain(name.removeprefix(_XATTR)): os.fsencode(value)
            for name, value in headers.items()
            if name.startswith(_XATTR)
        },
        acls={name.removeprefix(_ACL): value for name, value in headers.items() if name.startswith(_ACL)},
    )


def _time_ns(text: str) -> int:
    """A pax time, which has a fraction. As a float, it would lose some of its nanoseconds. In a time before 1970, the
    sign belongs to the fraction, too: -1.5 is a second and a half.
    """
    whole, _, fraction = text.partition(".")
    fraction_ns = int((fraction + "0" * 9)[:9])
    return int(whole) * 10**9 + (-fraction_ns if whole.startswith("-") else fraction_ns)


def _plain(name: str) -> str:
    """The name of an extended attribute, decoded. GNU tar writes = and % in attribute names as %3D and %25."""
    return name.replace("%3D", "=").replace("%25", "%")


def _kind(info: tarfile.TarInfo) -> Kind:
    for is_it, kind in (
        (info.isdir, Kind.DIRECTORY),
        (info.isreg, Kind.FILE),
        (info.issym, Kind.LINK),
        (info.islnk, Kind.HARD),
        (info.isfifo, Kind.FIFO),
        (info.ischr, Kind.CHARACTER),
        (info.isblk, Kind.BLOCK),
    ):
        if is_it():
            return kind
    raise BadInputError(f"cannot be unpacked whole: {brief(info.name)} is of an unknown kind ({info.type!r})")


def _data(headers: _Headers, info: tarfile.TarInfo, length: int) -> Iterator[bytes]:
    """The file's data in the archive, without the holes of the file."""
    if length:
        headers.seek(info.offset_data)
    while length > 0:
        chunk = headers.stream.read(min(CHUNK_BYTES, length))
        if not chunk:
            raise tarfile.ReadError("unexpected end of data")
        length -= len(chunk)
        yield chunk
