"""Read and write the list of digests, which is in part A of the initramfs. The list names the expected files of part
B. With this list, the checker, a program in part A, finds damaged files of part B (docs/internals/integrity.md).

All numbers have 32 bits, little-endian. A header of 12 bytes has ``QSPARTB3`` and the number of entries. Then comes
one entry for each member of part B, in the order of the members. The fields of an entry are st_mode, uid, gid, size,
``same_as``, CRC-32, the length of the name with its NUL, the length of the link's target, the name, and the target.

The CRC-32 is computed as in zlib and gzip (IEEE 802.3), over the whole content of a regular file. For all other
members, the field CRC-32 is 0. The field ``same_as`` is for hard links. When an earlier entry is another name of the
same file, ``same_as`` is 1 + the number of this earlier entry. For all other entries, ``same_as`` is 0.

Each file has only one digest, even when the file is long. docs/adr/0009-digest.md gives the reasons for this rule and
for the choice of CRC-32.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc import CpioEntry

_MAGIC = b"QSPARTB3"
_HEAD = struct.Struct("<8sI")
_RECORD = struct.Struct("<8I")
_READ_BYTES = 1 << 20
_REBUILD = "build the artefact again"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file that part B of the initramfs is expected to have. ``name`` is the file's path relative to the root.
    ``crc`` is the CRC-32 of a regular file's content, and ``text`` is the target of a symbolic link.

    ``same_as`` is the name of the earlier file to which this file is a hard link, or empty.
    """

    name: bytes
    mode: int
    uid: int
    gid: int
    size_bytes: int
    text: bytes = b""
    crc: int = 0
    same_as: bytes = b""


def listed(entries: Iterable[CpioEntry]) -> Iterator[Listed]:
    """The files that exist after an archive of ``entries`` is unpacked."""
    sizes: dict[str, int] = {}
    for entry in entries:
        name, text = entry.name.encode("utf-8", "surrogateescape"), b""
        size_bytes = crc = 0
        if stat.S_ISREG(entry.mode) and entry.link_to:
            size_bytes = sizes[entry.link_to]
        elif stat.S_ISREG(entry.mode):
            crc, size_bytes = content_crc(entry.data), _size_bytes(entry.data)
        elif isinstance(entry.data, bytes):
            size_bytes, text = len(entry.data), entry.data
        sizes[entry.name] = size_bytes
        same_as = entry.link_to.encode("utf-8", "surrogateescape")
        yield Listed(
            name=name,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            size_bytes=size_bytes,
            text=text,
            crc=crc,
            same_as=same_as,
        )


def content_crc(data: bytes | Path) -> int:
    """The CRC-32 of a regular file's content."""
    if isinstance(data, bytes):
        return zlib.crc32(data)
    crc = 0
    with data.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc


def _size_bytes(data: bytes | Path) -> int:
    return data.stat().st_size if isinstance(data, Path) else len(data)


def list_bytes(files: Iterable[Listed]) -> bytes:
    """The list of digests in the binary format that the checker, a program in the guest, reads."""
    numbers: dict[bytes, int] = {}
    parts = []
    for number, each in enumerate(files):
        numbers[each.name] = number
        same_as = numbers[each.same_as] + 1 if each.same_as else 0
        numbers_of_it = (each.mode, each.uid, each.gid, each.size_bytes, same_as, each.crc)
        record = _RECORD.pack(*numbers_of_it, len(each.name) + 1, len(each.text))
        parts.append(b"".join((record, each.name, b"\0", each.text)))
    return b"".join((_HEAD.pack(_MAGIC, len(parts)), *parts))


def read_list(data: bytes) -> tuple[Listed, ...]:
    """The files in a list of digests. Raises ArtefactError when the data are not such a list."""
    files: list[Listed] = []
    magic = data[: len(_MAGIC)]
    if magic != _MAGIC and magic[:-1] == _MAGIC[:-1]:
        found = magic.decode("ascii", "backslashreplace")
        what = f"the list of digests has the format {found}, and this version reads {_MAGIC.decode()}"
        raise ArtefactError(what, hint=_REBUILD)
    try:
        _, count = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(count if magic == _MAGIC else 0):
            one, at = _read_one(data, at, files)
            files.append(one)
    except (struct.error, IndexError):
        files, at = [], 0
    if not files or at != len(data):
        raise ArtefactError(f"the list of digests of {len(data)} bytes is damaged", hint=_REBUILD)
    return tuple(files)


def _read_one(data: bytes, at: int, before: list[Listed]) -> tuple[Listed, int]:
    mode, uid, gid, size_bytes, same_as, crc, name_bytes, text_bytes = _RECORD.unpack_from(data, at)
    text_at = at + _RECORD.size + name_bytes
    end = text_at + text_bytes
    if end > len(data):
        raise IndexError(end)
    name, text = data[at + _RECORD.size : text_at - 1], data[text_at:end]
    first = before[same_as - 1].name if same_as else b""
    return Listed(
        name=name, mode=mode, uid=uid, gid=gid, size_bytes=size_bytes, text=text, crc=crc, same_as=first
    ), end
