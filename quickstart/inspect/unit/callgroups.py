"""Read the groups of system calls (such as `@system-service`) from the library of the image's systemd
(systemd.exec(5)).

systemd keeps the groups in libsystemd-shared, as an array of (name, help, value). The value is a sequence of names,
each with a NUL at its end. This module reads the array's pointers from the library's relocations.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.inspect.imageroot import ImageRoot

_PLACES = ("/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/systemd")
# The first group of the array, in all versions that have groups.
_FIRST = b"@default\0"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_RELA, _DT_RELASZ = 7, 8
_R_X86_64_RELATIVE = 8
_ENTRY_BYTES = 24
_MAX_TEXT_BYTES = 1 << 16
# systemd 257's has 5 MiB, 12 program headers, 7,000 relocations and 30 groups.
_MAX_BYTES = 64 << 20
_MAX_SEGMENTS = 64
_MAX_RELOCATIONS = 1 << 18
_MAX_GROUPS = 256
# An image has one, and two during an upgrade.
_MAX_LIBRARIES = 4

Groups = Mapping[str, tuple[str, ...]]


def call_groups(root: ImageRoot) -> Groups:
    """The groups of system calls, by name. A group is a list of names of system calls and of other groups. The result
    is empty when the groups cannot be read from the image's systemd.
    """
    library = library_of_groups(root)
    return _read(root, library) if library is not None else {}


def library_of_groups(root: ImageRoot) -> PurePosixPath | None:
    """The canonical path of the library of the image's systemd that has the groups of system calls, or None."""
    paths = (path for place in _PLACES for path in root.glob(PurePosixPath(place) / "libsystemd-shared-*.so"))
    # Each file is read once, because many names may be links to one large file.
    found = dict.fromkeys(root.resolve(path).canonical for path in paths)
    libraries = itertools.islice((path for path in found if path is not None), _MAX_LIBRARIES)
    return next((path for path in libraries if _read(root, path)), None)


def _read(root: ImageRoot, path: PurePosixPath) -> Groups:
    try:
        return dict(_Library(root.read_bytes(path, _MAX_BYTES)).groups())
    except (struct.error, ValueError, KeyError, OverflowError, StartSetError):
        return {}


class _Library:
    """A 64-bit little-endian shared library. The methods raise struct.error, ValueError or KeyError when the
    library is damaged.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        if content[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit ELF file")
        (headers,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        if count > _MAX_SEGMENTS:
            raise ValueError(f"it has {count} program headers")
        found = [struct.unpack_from("<IIQQQQ", content, headers + each * size) for each in range(count)]
        self._loads: list[tuple[int, int, int]] = [
            (address, offset, length) for kind, _, offset, address, _, length in found if kind == _PT_LOAD
        ]
        ((offset, length),) = (
            (offset, length) for kind, _, offset, _, _, length in found if kind == _PT_DYNAMIC
        )
        self._dynamic = offset, length

    def groups(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        pointers = dict(self._pointers())
        texts = (address for address in pointers if self._bytes(pointers[address], len(_FIRST)) == _FIRST)
        for address in sorted(texts):
            for _ in range(_MAX_GROUPS):
                name = self._text(pointers.get(address))
                if not name.startswith("@"):
                    return
                yield name, tuple(self._texts(pointers[address + 16]))
                address += _ENTRY_BYTES
            return

    def _pointers(self) -> Iterator[tuple[int, int]]:
        """The pointers that the loader stores when it applies relocations, as (address, pointer)."""
        offset, length = self._dynamic
        tags = dict(struct.iter_unpack("<QQ", self._content[offset : offset + length]))
        at = self._offset(tags[_DT_RELA])
        if tags[_DT_RELASZ] > _MAX_RELOCATIONS * _ENTRY_BYTES:
            raise ValueError(f"it has {tags[_DT_RELASZ]} bytes of relocations")
        for place, kind, value in struct.iter_unpack("<QQQ", self._content[at : at + tags[_DT_RELASZ]]):
            if kind == _R_X86_64_RELATIVE:
                yield place, value

    def _offset(self, address: int) -> int:
        for start, offset, length in self._loads:
            if start <= address < start + length:
                return address - start + offset
        raise ValueError(f"nothing is loaded at {address:#x}")

    def _bytes(self, address: int, length: int) -> bytes:
        """The ``length`` bytes at an address, or nothing when no segment of the library contains the address."""
        if any(start <= address < start + size for start, _, size in self._loads):
            at = self._offset(address)
            return self._content[at : at + length]
        return b""

    def _text(self, address: int | None) -> str:
        return next(self._texts(address), "") if address is not None else ""

    def _texts(self, address: int) -> Iterator[str]:
        """The strings that follow each other at ``address``, up to an empty string."""
        whole = self._bytes(address, _MAX_TEXT_BYTES)
        for text in whole.split(b"\0"):
            if not text:
                return
            yield text.decode("ascii", "replace")
