"""Manage the directories that the import of a foreign archive or disk makes. This module opens the directories by their
paths. It remembers the owner, mode, attributes and time of each directory until all files are written.
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

    An untrusted archive may contain a million directories, each with a path of about 1 KiB and many KiB of extended
    attributes. So this class keeps the owner, mode, attributes and time of each directory in ``file``, a temporary file
    that is empty at first. It keeps only the offsets in this file in memory. A directory is opened by its whole path,
    because the kernel resolves a path of any number of components in one call.
    """

    def __init__(self, top: int, file: BinaryIO) -> None:
        self._top, self._file = top, file
        self._end = 0
        # The directories' offsets by the hashes of their paths, in the order in which the directories were made.
        self._places: dict[bytes, int] = {}

    def remember(self, parts: Sequence[str], member: Member) -> None:
        """Remember that the directory at ``parts`` gets the owner, mode, attributes and time of ``member`` once all
        members are written. A later call for the same directory replaces what an earlier call has remembered.
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
        """A descriptor of the directory at ``parts``. The function follows no link. For each missing directory, it
        calls ``make`` with a descriptor of the directory's parent and the components of the directory's path.

        Raises OSError when openat2(2) fails for another reason than a missing directory.
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
        """The first component of the path ``parts`` that cannot be opened as a directory. When every component can be
        opened, the result is the last component.
        """
        for depth, part in enumerate(parts):
            try:
                os.close(self._open(parts[: depth + 1]))
            except OSError:
                return part
        return parts[-1]

    def _open(self, parts: Sequence[str]) -> int:
        return open_directory(self._top, "/".join(parts) or ".", _BENEATH)
