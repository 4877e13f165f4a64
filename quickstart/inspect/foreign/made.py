"""The directories that the writer of foreign members makes. They are opened by their paths, and the owner, mode,
attributes and time of each are remembered until the end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from quickstart.host.openat2 import BENEATH, NO_SYMLINKS, NO_XDEV, open_directory
from quickstart.inspect.foreign.members import Member, read_member, write_member

_BENEATH = BENEATH | NO_SYMLINKS | NO_XDEV


class Directories:
    """The directories below the open directory ``top``.

    An untrusted archive may contain a million directories, each with a path of about 1 KiB and many KiB of
    extended attributes. So what is remembered is kept in ``file``, an empty temporary file, and only the offsets
    in this file are kept in memory. The kernel resolves a path in one call, however many components it has.
    """

    def __init__(self, top: int, file: BinaryIO) -> None:
        self._top, self._file = top, file
        self._end = 0
        # By the hashes of their paths, in the order in which they were made.
        self._places: dict[bytes, int] = {}

    def remember(self, parts: Sequence[str], member: Member) -> None:
        """Remember that the directory at ``parts`` gets the owner, mode, attributes and time of ``member`` at the
        end. A later call for the same directory replaces an earlier one.
        """
        path = "/".join(parts)
        write_member(self._file, replace(member, path=path), iter(()))
        key = hashlib.blake2b(os.fsencode(path), digest_size=16).digest()
        self._places[key], self._end = self._end, self._file.tell()

    def remembered(self) -> Iterator[Member]:
        """The member that was remembered for each directory. Each directory comes after the directories below it."""
        for place in reversed(self._places.values()):
            self._file.seek(place)
            yield read_member(self._file)

    def open(self, parts: Sequence[str], make: Callable[[int, Sequence[str]], None]) -> int:
        """A descriptor of the directory at ``parts``. No link is followed. ``make`` is called for each missing
        directory, with a descriptor of the directory that is to hold it.

        Raises OSError as openat2(2) does.
        """
        depth = len(parts)
        while True:
            try:
                way = self._open(parts[:depth])
                break
            except FileNotFoundError:
                depth -= 1
        try:
            for below in range(depth + 1, len(parts) + 1):
                make(way, parts[:below])
                before, way = way, open_directory(way, parts[below - 1], _BENEATH)
                os.close(before)
        except BaseException:
            os.close(way)
            raise
        return way

    def obstacle(self, parts: Sequence[str]) -> str:
        """The first component of the path ``parts`` that cannot be opened as a directory. The last component when
        all can be opened.
        """
        for depth, part in enumerate(parts):
            try:
                os.close(self._open(parts[: depth + 1]))
            except OSError:
                return part
        return parts[-1]

    def _open(self, parts: Sequence[str]) -> int:
        return open_directory(self._top, "/".join(parts) or ".", _BENEATH)
