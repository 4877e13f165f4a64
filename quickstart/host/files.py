"""Functions for the host's file systems. The functions find the free space, recognise a full disk as the cause of a
failure, remove directory trees, and copy files of an image.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quickstart.errors import CommandError, HostLacksError, QuickStartError
from quickstart.host.mounted import mounted_at
from quickstart.host.places import swapped_by_others
from quickstart.model import MIB

_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# strerror(3) of both, and what apt says before it begins.
_WORDS = ("No space left on device", "Disk quota exceeded", "You don't have enough free space")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_PLACE_HINT = (
    "set TMPDIR=/tmp, or to a directory of yours, all the way to which nobody else but root may write"
)


def temporary_directory() -> Path:
    """$TMPDIR, or else /tmp. Unlike tempfile.gettempdir, this function writes no file, so it also works on a
    full disk.

    Raises HostLacksError when another user could replace the directory. Such a user could also replace files that we or
    our programs, for example a compiler, write to the directory and read again.
    """
    place = _temporary_place()
    check_temporary(place)
    return place


def check_temporary(place: Path) -> None:
    """Raise HostLacksError when another user could replace ``place``, the directory for temporary files."""
    if fault := swapped_by_others(place):
        raise HostLacksError(
            f"{fault}: what is made in the temporary directory {place} could be swapped", hint=_PLACE_HINT
        )


def settle_temporary_directory() -> None:
    """Choose the temporary directory once for this process. Raises HostLacksError when another user could replace the
    directory.

    Without this choice, another user could make a missing $TMPDIR later, when this process is in a user namespace. This
    process would not notice that the directory belongs to another user, because inside a user namespace, it cannot tell
    a directory of root from a directory of another user.
    """
    place = temporary_directory()
    if "TMPDIR" in os.environ:
        os.environ["TMPDIR"] = str(place)


def _temporary_place() -> Path:
    chosen = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the place, not a file of a known name
    # Path.is_dir would raise an error for a path that we may not read. TMPDIR may be that of the user who
    # called su.
    return chosen.absolute() if os.path.isdir(chosen) else Path("/tmp")  # noqa: PTH112, S108


def free_bytes(path: Path) -> int:
    """The free space in bytes for users other than root, on the file system where ``path`` is or would be made (statvfs(3))."""
    status = os.statvfs(next(each for each in (path, *path.absolute().parents) if each.exists()))
    return status.f_bavail * status.f_frsize


@contextmanager
def full_disk_named(directory: Path, name: str, hint: str) -> Iterator[None]:
    """When a full file system explains an error in the ``with`` block, raise HostLacksError with ``hint`` in place of
    the error. ``directory`` is the directory to which the ``with`` block writes. ``name`` is the name of the directory
    in the message.

    A program that fails because of a full disk does not always say so. So if a program fails while less than 1 MiB is
    free, this function also regards the full disk as the cause. Many programs also write to the temporary directory. If
    the temporary directory has less free space than ``directory``, the message names the temporary directory, and has a
    hint for it.
    """
    try:
        yield
    except HostLacksError:
        raise
    except (OSError, QuickStartError) as error:
        places = (
            (directory, name, hint),
            (_temporary_place(), "the temporary directory", "free some space there"),
        )
        place, called, mend = min(places, key=lambda each: free_bytes(each[0]))
        free = free_bytes(place)
        if not _says_full(error) and (free >= MIB or isinstance(error, OSError)):
            raise
        said = error.message if isinstance(error, QuickStartError) else str(error)
        raise HostLacksError(
            f"no space left for {called} {place} ({free} bytes free on its file system): {said}", hint=mend
        ) from error


def sync_directory(directory: Path) -> None:
    """Make renames in ``directory`` survive a power failure. Syncing a file does not sync its name (fsync(2))."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _says_full(error: BaseException | None) -> bool:
    """Whether the error, or an error that caused it, reports a lack of disk space."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _ERRNOS:
            return True
        if isinstance(error, CommandError) and any(words in error.tail for words in _WORDS):
            return True
        error = error.__cause__
    return False


def remove_tree(path: Path, *, dir_fd: int | None = None) -> None:
    """Remove a directory tree of any depth, if it exists. With ``dir_fd``, ``path`` is relative to the open directory
    ``dir_fd``. Raises HostLacksError when something is mounted in the tree.
    """
    try:
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path, dir_fd=dir_fd)
        return
    named = (path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}", path)).resolve()
    for point in mounted_at(named):
        if point != named:
            raise HostLacksError(f"{point} is mounted in what is to be removed", hint="unmount it first")
    top = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path, dir_fd=dir_fd)


def _empty(top: int) -> None:
    """Remove everything in a directory.

    The function first moves the entries two levels down up by one level. So no path gets too long for the kernel, the
    function needs no recursion, and at most two directories are open. The function follows no link, even if another
    process adds a link during the removal.
    """
    while directories := _remove_files(top):
        for name in directories:
            child = os.open(name, _DIRECTORY, dir_fd=top)
            try:
                for below in _remove_files(child):
                    os.rename(below, secrets.token_hex(16), src_dir_fd=child, dst_dir_fd=top)
            finally:
                os.close(child)
            os.rmdir(name, dir_fd=top)


def _remove_files(directory: int) -> list[str]:
    """Remove everything except directories. Return the names of the remaining directories."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


def copy_as_open(source: Path, target: Path, root: Path) -> None:
    """Copy the image's file ``source`` to the new file ``target``. If not every user of the image, whose tree is ``root``,
    can reach and read the file, only we may read the copy: an administrator who puts keys into an initramfs closes it
    (UMASK= in initramfs.conf(5)).
    """
    above = [place for place in source.parents if place.is_relative_to(root)]
    is_open = source.stat().st_mode & stat.S_IROTH and all(
        place.stat().st_mode & stat.S_IXOTH for place in above
    )
    with target.open("xb") as file:
        os.fchmod(file.fileno(), 0o644 if is_open else 0o600)
    shutil.copyfile(source, target)
