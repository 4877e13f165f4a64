"""The list of digests in part A: what part B is to be, by which the checker finds a damaged one (docs/integrity.md).

All numbers have 32 bits, little-endian. A head of 16 bytes: ``QSPARTB2``, the number of entries, CHUNK_BYTES. Then each member of
part B in its order: st_mode, uid, gid, size, ``same_as``, the length of its name with the NUL at its end, that of its link's text;
the name; the text; and of a regular file one BLAKE2b-256 (RFC 7693) for each CHUNK_BYTES of its content, of an empty file that of
nothing. ``same_as`` is 0, or 1 + the number of the earlier entry that this is a hard link to: then no digest follows.

In chunks, because pieces of equal length are equal work for the lanes that hash side by side.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc import CpioEntry

CHUNK_BYTES = 65536
DIGEST_BYTES = 32
_MAGIC = b"QSPARTB2"
_HEAD = struct.Struct("<8sII")
_RECORD = struct.Struct("<7I")
_REBUILD = "build the artefact again"


@dataclass(frozen=True)
class Listed:
    """What is to be at ``name``, relative to the root; ``digests`` are of a regular file's chunks, ``text`` is a link's.

    ``same_as`` names the earlier file that this is another name of, or is empty.
    """

    name: bytes
    mode: int
    uid: int
    gid: int
    size_bytes: int
    text: bytes = b""
    digests: tuple[bytes, ...] = ()
    same_as: bytes = b""


def listed(entries: Iterable[CpioEntry]) -> Iterator[Listed]:
    """What the archive of these entries is to become when it is unpacked."""
    sizes: dict[str, int] = {}
    for entry in entries:
        name, text = entry.name.encode("utf-8", "surrogateescape"), b""
        size_bytes = 0
        digests: tuple[bytes, ...] = ()
        if stat.S_ISREG(entry.mode) and entry.link_to:
            size_bytes = sizes[entry.link_to]
        elif stat.S_ISREG(entry.mode):
            digests = chunk_digests(entry.data)
            size_bytes = _size_bytes(entry.data)
        elif isinstance(entry.data, bytes):
            size_bytes, text = len(entry.data), entry.data
        sizes[entry.name] = size_bytes
        same_as = entry.link_to.encode("utf-8", "surrogateescape")
        yield Listed(name, entry.mode, entry.uid, entry.gid, size_bytes, text, digests, same_as)


def chunk_digests(data: bytes | Path) -> tuple[bytes, ...]:
    """The BLAKE2b-256 of each chunk of a regular file's content."""
    return tuple(hashlib.blake2b(chunk, digest_size=DIGEST_BYTES).digest() for chunk in _chunks(data))


def _size_bytes(data: bytes | Path) -> int:
    return data.stat().st_size if isinstance(data, Path) else len(data)


def _chunks(data: bytes | Path) -> Iterator[bytes]:
    if isinstance(data, Path):
        with data.open("rb") as file:
            chunk = file.read(CHUNK_BYTES)
            yield chunk
            while len(chunk) == CHUNK_BYTES and (chunk := file.read(CHUNK_BYTES)):
                yield chunk
    else:
        yield from (data[at : at + CHUNK_BYTES] for at in range(0, max(1, len(data)), CHUNK_BYTES))


def list_bytes(files: Iterable[Listed]) -> bytes:
    """The list as the checker reads it."""
    numbers: dict[bytes, int] = {}
    parts = []
    for number, each in enumerate(files):
        numbers[each.name] = number
        same_as = numbers[each.same_as] + 1 if each.same_as else 0
        sizes = (each.mode, each.uid, each.gid, each.size_bytes, same_as, len(each.name) + 1, len(each.text))
        parts.append(b"".join((_RECORD.pack(*sizes), each.name, b"\0", each.text, *each.digests)))
    return b"".join((_HEAD.pack(_MAGIC, len(parts), CHUNK_BYTES), *parts))


def read_list(data: bytes) -> tuple[Listed, ...]:
    """The files of a list; raises ArtefactError when it is none."""
    files: list[Listed] = []
    magic = data[: len(_MAGIC)]
    if magic != _MAGIC and magic[:-1] == _MAGIC[:-1]:
        found = magic.decode("ascii", "backslashreplace")
        what = f"the list of digests has the format {found}, and this version reads {_MAGIC.decode()}"
        raise ArtefactError(what, hint=_REBUILD)
    try:
        _, count, chunk_bytes = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(count if (magic, chunk_bytes) == (_MAGIC, CHUNK_BYTES) else 0):
            one, at = _read_one(data, at, files)
            files.append(one)
    except (struct.error, IndexError):
        files, at = [], 0
    if not files or at != len(data):
        raise ArtefactError(f"the list of digests of {len(data)} bytes is damaged", hint=_REBUILD)
    return tuple(files)


def _read_one(data: bytes, at: int, before: list[Listed]) -> tuple[Listed, int]:
    mode, uid, gid, size_bytes, same_as, name_bytes, text_bytes = _RECORD.unpack_from(data, at)
    at += _RECORD.size
    name, text = data[at : at + name_bytes - 1], data[at + name_bytes : at + name_bytes + text_bytes]
    at += name_bytes + text_bytes
    chunks = max(1, -(-size_bytes // CHUNK_BYTES)) if stat.S_ISREG(mode) and not same_as else 0
    if at + chunks * DIGEST_BYTES > len(data):
        raise IndexError(at)
    digests = tuple(data[at + DIGEST_BYTES * n : at + DIGEST_BYTES * (n + 1)] for n in range(chunks))
    first = before[same_as - 1].name if same_as else b""
    return Listed(name, mode, uid, gid, size_bytes, text, digests, first), at + chunks * DIGEST_BYTES
