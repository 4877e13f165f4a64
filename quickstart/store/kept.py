"""What lies in a store, for who looks at it and makes room."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import HostLacksError
from quickstart.host.files import remove_tree
from quickstart.host.walk import reachable, walk


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


def check_trusted(root: Path, entry: Path) -> None:
    """Raise HostLacksError when somebody else could have put ``entry`` into the store ``root``: its programs run here.

    What is looked at is the store, the stage's directory, the entry and what lies directly in it, as far as they are there.
    Each has to be ours or root's, and not writable for others; all but the store no link either.
    """
    places = [(root, False), (entry.parent, True), (entry, True)]
    with suppress(OSError):
        places += [(each, True) for each in sorted(entry.iterdir())]
    for path, itself in places:
        # It may not be there yet, or somebody's whose directory we cannot enter.
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            status = path.lstat() if itself else path.stat()
            if fault := _distrusted(status, os.geteuid()):
                raise HostLacksError(
                    f"{path} {fault}: what lies in the store {root} is run here",
                    hint="set QUICKSTART_CACHE to a directory of yours that nobody else writes to",
                )


def _distrusted(status: os.stat_result, euid: int) -> str:
    if status.st_uid not in (euid, 0):
        return f"belongs to another user ({status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    # In a directory with the sticky bit others make names of their own, and these belong to them.
    ours_alone = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return "can be written by others" if status.st_mode & 0o022 and not ours_alone else ""


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


def forget(entry: Path, lock: BinaryIO) -> None:
    """Remove the lock file of an entry that is gone; ``lock`` is its exclusive lock.

    Whoever waits for it sees then that the file has lost its name, and takes a new one (Store._lock).
    """
    if not os.path.lexists(entry) and not os.path.lexists(f"{entry}.partial"):
        Path(lock.name).unlink()


def discard(final: Path) -> None:
    """Remove an entry so that it is never seen half removed: under the name of one that is being made."""
    partial = final.with_name(f"{final.name}.partial")
    remove_tree(partial)
    if os.path.lexists(final):
        final.rename(partial)
        remove_tree(partial)
