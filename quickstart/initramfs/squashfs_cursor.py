"""Read the tables of a SquashFS image. A table consists of records in metadata blocks. A record may begin in one
metadata block and continue in the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from quickstart.initramfs.newc import PATH_MAX

_LINK = struct.Struct("<II")
# Less one, it is in a byte.
_MOST_NAME_BYTES = 256


class Cursor:
    """A position in a table. The position consists of a metadata block of the image, and an offset in this block. At
    the end of a block, reading continues in the next block.
    """

    def __init__(self, metadata: Callable[[int], tuple[bytes, int]], block: int, offset: int) -> None:
        self._metadata, self._block, self._offset = metadata, block, offset

    @property
    def place(self) -> tuple[int, int]:
        return self._block, self._offset

    def settled(self) -> tuple[int, int]:
        """The position of the next byte. At the end of a block, this is the beginning of the next block."""
        data, following = self._metadata(self._block)
        return (following, 0) if self._offset == len(data) else self.place

    def take(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            data, following = self._metadata(self._block)
            if self._offset > len(data):
                raise ValueError("a place behind the end of a table's block")
            piece = data[self._offset : self._offset + count - len(found)]
            self._offset += len(piece)
            found += piece
            if not piece:
                self._block, self._offset = following, 0
        return found

    def unpack(self, record: struct.Struct) -> tuple[int, ...]:
        return record.unpack(self.take(record.size))


def name_at(cursor: Cursor, excess: int) -> bytes:
    """The name at ``cursor``, which has ``excess`` + 1 bytes. Raises ValueError for a name that no file can have."""
    if excess >= _MOST_NAME_BYTES:
        raise ValueError(f"a name of {excess + 1} bytes")
    name = cursor.take(excess + 1)
    if name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise ValueError(f"the name {name!r}, which is none of a file")
    return name


def target_at(cursor: Cursor) -> bytes:
    """The target of a symbolic link. ``cursor`` is in the middle of the link's inode, where three fields
    follow: the number of hard links, the target's length, and the target.
    """
    _, length = cursor.unpack(_LINK)
    if not 0 < length < PATH_MAX:
        raise ValueError(f"a link to a name of {length} bytes")
    target = cursor.take(length)
    if b"\0" in target:
        # The kernel stops there.
        raise ValueError("a link to a name with a NUL")
    return target
