"""Keep one path of each inode of a volume, in little memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

# A path keeps its text, and a list of its components.
_PART_BYTES = 8


class InodePaths:
    """A path of each inode of a volume, by the inode's number.

    A path object takes some 400 bytes of memory, and far more if the path has many components. A stranger's volume may
    have very many inodes without blocks, because a directory entry for such an inode takes only a dozen bytes of the
    volume. The paths of most inodes are never requested. So for an inode without blocks, this class only stores the
    directory and the name. The class makes the path on request.
    """

    def __init__(self, paths: Mapping[int, PurePosixPath] | None = None) -> None:
        self._known: dict[int, PurePosixPath | tuple[int | None, bytes]] = dict(paths or {})

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, number: int) -> PurePosixPath:
        """Return the path of the inode ``number``, and keep the path in memory."""
        path = self._known[number] = self.made(number)
        return path

    def made(self, number: int) -> PurePosixPath:
        """Return the path of the inode ``number``, but do not keep the path in memory."""
        found = self._known[number]
        if isinstance(found, PurePosixPath):
            return found
        directory, name = found
        above = PurePosixPath() if directory is None else self.made(directory)
        return above / os.fsdecode(name)

    def items(self) -> Iterator[tuple[int, PurePosixPath]]:
        """Yield the number and the path of each inode, but do not keep the paths in memory."""
        return ((number, self.made(number)) for number in self._known)

    def put(self, number: int, path: PurePosixPath) -> None:
        """Keep the path of an inode in memory."""
        self._known[number] = path

    def name(self, number: int, directory: int | None, name: str) -> None:
        """Record that the inode ``number`` has the name ``name`` in the directory whose inode is ``directory``."""
        self._known[number] = directory, os.fsencode(name)


def path_bytes(path: str) -> int:
    """The number of bytes of memory that the text and the components of a path object take. The result does not include
    the memory that even an empty path object takes.
    """
    return sys.getsizeof(path) + _PART_BYTES * path.count("/")
