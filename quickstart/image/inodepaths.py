"""One path of each inode of a volume, in little memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

# A path keeps its text, and a list of its components.
_PART_BYTES = 8


class InodePaths:
    """A path of each inode of a volume, by the inode's number.

    A path takes some 400 bytes, and one of many components far more. Of most inodes nobody asks for the path, and an
    inode without blocks takes a dozen bytes on a stranger's volume. So such an inode has its directory and its name
    here. Its path is made when it is asked for.
    """

    def __init__(self, paths: Mapping[int, PurePosixPath] | None = None) -> None:
        self._known: dict[int, PurePosixPath | tuple[int | None, bytes]] = dict(paths or {})

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, number: int) -> PurePosixPath:
        """The path of the inode ``number``, which is remembered."""
        path = self._known[number] = self.made(number)
        return path

    def made(self, number: int) -> PurePosixPath:
        """The path of the inode ``number``, which is not remembered."""
        found = self._known[number]
        if isinstance(found, PurePosixPath):
            return found
        directory, name = found
        above = PurePosixPath() if directory is None else self.made(directory)
        return above / os.fsdecode(name)

    def items(self) -> Iterator[tuple[int, PurePosixPath]]:
        """Each number with its path, which is not remembered."""
        return ((number, self.made(number)) for number in self._known)

    def put(self, number: int, path: PurePosixPath) -> None:
        """Remember the path of an inode."""
        self._known[number] = path

    def name(self, number: int, directory: int | None, name: str) -> None:
        """The inode ``number`` has the name ``name`` in the directory whose inode is ``directory``."""
        self._known[number] = directory, os.fsencode(name)


def path_bytes(path: str) -> int:
    """The memory that a path with this text takes once it is made, apart from the same few objects of every path."""
    return sys.getsizeof(path) + _PART_BYTES * path.count("/")
