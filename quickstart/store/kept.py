"""List and remove the entries of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quickstart.errors import HostLacksError
from quickstart.host.files import remove_tree
from quickstart.host.places import fault_at, fault_of, make_directories, swapped_by_others
from quickstart.host.walk import reachable, walk
from quickstart.store.ownfiles import OPEN_STAGES, close_to_others

# The stage with images that somebody gave, and the name of an image's directory in its entry.
_IMAGES, _TOP = "reference", "root"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An entry of the store, finished or unfinished. ``used_s`` is the time of its last use, in seconds since the
    epoch.
    """

    stage: str
    key: str
    path: Path
    size_bytes: int
    used_s: int

    @property
    def entry(self) -> Path:
        """The path of the finished entry."""
        return self.path.with_suffix("")

    @property
    def partial(self) -> bool:
        """Whether this is an unfinished entry."""
        return self.path != self.entry


def check_place(root: Path, stage: Path | None = None) -> None:
    """Raise HostLacksError when another user could replace the store ``root`` or a directory on the path to the store.
    This check is necessary because this host runs programs from the store.

    With ``stage``, the stage's directory in the store is also checked. This directory may not be a link, because
    entries would be made and removed at the link's target. Other users may have write permission neither to the store
    nor to the stage's directory, not even with the sticky bit. A path that does not exist yet passes the check.
    """
    if stage is not None and stage.is_symlink():
        raise _distrusted(f"{stage} is a link", root)
    for place in (root,) if stage is None else (root, stage):
        if fault := swapped_by_others(place) or _shared_fault(place):
            raise _distrusted(fault, root)


def _shared_fault(place: Path) -> str:
    """A text that says that other users can make files in the directory ``place``. The result is empty unless ``place``
    has the sticky bit and is writable for other users. The sticky bit does not prevent other users from making files.
    It only prevents them from replacing files that belong to somebody else.
    """
    # Path.stat raises ValueError for an invalid path.
    with suppress(OSError, ValueError):
        mode = place.stat().st_mode
        if mode & stat.S_ISVTX and mode & 0o022:
            return f"{place} can be written by others"
    return ""


def make_stage(root: Path, stage: Path) -> None:
    """Make the store and the stage's directory in the store, if they are missing. Other users can enter this directory
    only if the stage is one of OPEN_STAGES, the stages whose entries have nothing from an image. Raises HostLacksError
    when the store or the stage's directory is not safe from other users (see `check_place`).
    """
    if fault := make_directories(root):
        raise _distrusted(fault, root)
    check_place(root, stage)
    private = stage.name not in OPEN_STAGES
    stage.mkdir(mode=0o700 if private else 0o755, exist_ok=True)
    # An older version may have made the directory with more rights.
    if private:
        close_to_others(stage)
    # Another user may have made the directory between the check and mkdir.
    check_place(root, stage)


@contextmanager
def opened_stage(root: Path, stage: Path) -> Iterator[int]:
    """Open the directory of a stage, so that entries can be removed in it. Raises HostLacksError when the store or the
    stage's directory is not safe from other users (see `check_place`).
    """
    check_place(root, stage)
    fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if fault := fault_of(fd, stage):
            raise _distrusted(f"{stage} {fault}", root)
        yield fd
    finally:
        os.close(fd)


def check_trusted(root: Path, entry: Path) -> None:
    """Raise HostLacksError when another user could have put ``entry`` into the store ``root``.

    This function checks the directories on the path to the store, the store, the stage's directory, the entry and the
    entry's direct contents, as far as these files and directories exist. All these files and directories must belong to
    a trusted user (see ``trusted`` in host/places.py). Inside the store, no such file or directory may be a link, or
    writable for its group or for others. The top directory of an image is not checked when nobody else can enter the
    stage's directory.
    """
    check_place(root)
    places = [root.resolve(), entry.parent, entry]
    with suppress(OSError):
        places += sorted(entry.iterdir())
    for path in places:
        # The path may not exist yet, or may be in a directory of somebody else that we cannot enter.
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            if _is_image(path):
                continue
            if fault := fault_at(path) or _strict_fault(path.lstat()):
                raise _distrusted(f"{path} {fault}", root)


def trusted_entries(root: Path, stage: Path, pattern: str, note: Callable[[str], None]) -> Iterator[Path]:
    """The entries of a stage whose names match ``pattern``, sorted by name. The function leaves out an entry that
    another user could have put into the store, and calls ``note`` with a line about this entry. Raises HostLacksError
    when the store or the stage's directory is not safe from other users (see `check_place`).
    """
    check_place(root, stage)
    for path in sorted(stage.glob(pattern)):
        try:
            check_trusted(root, path)
        except HostLacksError as error:
            note(f"{error.message}; this entry is left out")
        else:
            yield path


def _is_image(path: Path) -> bool:
    """Whether ``path`` is the top directory of an image in a stage that is closed to others. The owner and the mode of
    this directory come from the image (inspect/foreign/home.py). So the owner may be any user of this host.
    """
    stage = path.parent.parent
    is_closed = stage.name == _IMAGES and stage.lstat().st_mode & 0o077 == 0
    return is_closed and path.name == _TOP and stat.S_ISDIR(path.lstat().st_mode)


def _distrusted(fault: str, root: Path) -> HostLacksError:
    return HostLacksError(
        f"{fault}: what lies in the store {root} is run here",
        hint="set QUICKSTART_CACHE to a directory of yours, all the way to which nobody else but root may write; "
        "or chmod go-w what is named, where that is yours",
    )


def _strict_fault(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    # In a directory with the sticky bit, other users can make names of their own, which belong to them.
    ours_alone = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return "can be written by others" if status.st_mode & 0o022 and not ours_alone else ""


def in_stages(root: Path, pattern: str, note: Callable[[str], None] | None = None) -> Iterator[Path]:
    """The files and directories in the stages' directories of the store whose names match ``pattern``. The function
    leaves out a stage that is a link, because the link's target does not belong to the store. It then calls ``note``
    with a line about this link.

    Raises HostLacksError when another user could replace the store. This check is necessary, because the caller reads
    the size of each tree in the store.
    """
    check_place(root)
    for stage in sorted(root.glob("*")):
        if not stage.is_symlink():
            yield from stage.glob(pattern)
        elif note is not None:
            note(f"{stage} is a link: nothing there is listed or removed")


def kept(paths: Iterable[Path], mark_name: str) -> Iterator[Kept]:
    """The entries at ``paths``, sorted by path. Files and links are left out, even links to directories, because the
    size of a link would be the size of a directory tree outside the store. The modification time of an entry's file
    ``mark_name`` is the time of the entry's last use.
    """
    for path in sorted(paths):
        # The entry may be removed during this check. An entry of an older version has no mark.
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                continue
            mark = path / mark_name
            used_s = int((mark if mark.exists() else path).lstat().st_mtime)
            yield Kept(
                stage=path.parent.name,
                key=path.stem,
                path=path,
                size_bytes=_allocated_bytes(path),
                used_s=used_s,
            )


def _allocated_bytes(directory: Path) -> int:
    """The disk space in bytes that the files of a tree use. Each inode counts once. Holes of a sparse file
    use no space.
    """
    inodes: dict[int, int] = {}
    top = os.fsencode(directory)
    # The entry may be removed meanwhile.
    for path, is_directory in walk(top, os.lstat(top).st_dev, on_error=lambda error: None):
        with suppress(OSError), reachable(path) as name:
            status = os.lstat(name)
            if not is_directory:
                inodes[status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


def forget(root: Path, entry: Path, lock: BinaryIO) -> None:
    """Remove the lock file of an entry that was removed. ``lock`` is this file, with an exclusive lock on it.

    A process that waits for the lock detects that the locked file has no name any more, and makes a new lock file (see
    ``Store._lock`` in store.py).
    """
    with opened_stage(root, entry.parent) as stage:
        if not _is_there(stage, entry.name) and not _is_there(stage, f"{entry.name}.partial"):
            os.unlink(Path(lock.name).name, dir_fd=stage)


def discard(stage: int, key: str, *, partial_only: bool = False) -> None:
    """Remove an entry from the open directory ``stage``. With ``partial_only``, remove only the remains of an
    unfinished entry.

    The entry is first renamed to the name of an unfinished entry, so that no process can use a partly removed entry.
    """
    partial = Path(f"{key}.partial")
    remove_tree(partial, dir_fd=stage)
    if not partial_only and _is_there(stage, key):
        os.rename(key, partial, src_dir_fd=stage, dst_dir_fd=stage)
        remove_tree(partial, dir_fd=stage)


def _is_there(directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        return True
    return False
