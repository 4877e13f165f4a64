"""What lies in a store, for who looks at it and makes room."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quickstart.walk import reachable, walk


@dataclass(frozen=True)
class Kept:
    """An entry as it lies in the store; ``used_s`` is when it was last asked for (seconds since the epoch)."""

    stage: str
    key: str
    path: Path
    size_bytes: int
    used_s: int

    @property
    def entry(self) -> Path:
        """The finished entry's place."""
        return self.path.with_suffix("")

    @property
    def partial(self) -> bool:
        """Whether this is not a finished entry."""
        return self.path != self.entry


def kept(paths: Iterable[Path], mark_name: str) -> Iterator[Kept]:
    """Those of ``paths`` that are there, by name; the time of ``mark_name`` in one is that of its last use."""
    for path in sorted(paths):
        # It may be removed while we look; one of an older version has no mark.
        with suppress(FileNotFoundError):
            mark = path / mark_name
            used_s = int((mark if mark.exists() else path).lstat().st_mtime)
            yield Kept(path.parent.name, path.stem, path, _allocated_bytes(path), used_s)


def _allocated_bytes(directory: Path) -> int:
    """What the files of a tree take on disk, each inode once (holes of a sparse file take nothing)."""
    inodes: dict[int, int] = {}
    top = os.fsencode(directory)
    # It may be removed while we look.
    for path, is_directory in walk(top, os.lstat(top).st_dev, on_error=lambda error: None):
        with suppress(OSError), reachable(path) as name:
            status = os.lstat(name)
            if not is_directory:
                inodes[status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())
