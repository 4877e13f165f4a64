"""Write files into an image in which package scripts have run. This module resolves a name as a program inside the
image would resolve the name.

The module resolves links below the image's root, by openat2(2) with RESOLVE_IN_ROOT. If the last component of a name is
a link, the functions do not follow the link, but replace, remove or change the link itself. Names are relative to the
image's root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from quickstart.errors import ReferenceImageError
from quickstart.host.openat2 import IN_ROOT, NO_MAGICLINKS, open_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# A file that is changed is read completely, so its size is limited.
_WHOLE_BYTES = 16 << 20


def write(root: Path, name: str, data: bytes, mode: int = 0o644) -> None:
    """Write a new file, in place of any entry with this name. The function makes missing directories. The umask has no
    effect.

    Raises ReferenceImageError when the file cannot be written, for example because a directory has this name.
    """
    with _faults(root, name), _entry(root, name, make=True) as (directory, last):
        _unlink(directory, last)
        fd = os.open(last, _FILE | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)


def remove(root: Path, name: str) -> None:
    """Remove the file or link with this name, if it exists. Raises ReferenceImageError for a directory."""
    with _faults(root, name):
        try:
            with _entry(root, name) as (directory, last):
                _unlink(directory, last)
        except (FileNotFoundError, NotADirectoryError):
            return


def remove_matching(root: Path, pattern: str) -> None:
    """Remove the files and links that match ``pattern``. The part of ``pattern`` before the last slash is the name of a
    directory. The part after the last slash is a pattern of fnmatch(3).
    """
    parent = str(PurePosixPath(pattern).parent)
    with _faults(root, pattern):
        try:
            directory = _open(root, parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            for name in sorted(os.listdir(directory)):  # noqa: PTH208 - of a descriptor
                mode = os.lstat(name, dir_fd=directory).st_mode
                if fnmatchcase(name, PurePosixPath(pattern).name) and not stat.S_ISDIR(mode):
                    os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def make_directory(root: Path, name: str, mode: int = 0o755) -> None:
    """Make a directory with this name and mode, if it is missing. Raises ReferenceImageError when something
    other than a directory has this name.
    """
    with _faults(root, name):
        fd = _made(root, name)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def rewrite(root: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the content of a regular file. The file keeps its owner and mode.

    The function does not change a file that is missing, not regular or larger than 16 MiB.
    """
    with _faults(root, name):
        try:
            with _entry(root, name) as (directory, last):
                status = os.lstat(last, dir_fd=directory)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _WHOLE_BYTES:
                    return
                with os.fdopen(os.open(last, _FILE | os.O_RDWR, dir_fd=directory), "r+b") as file:
                    data = change(file.read())
                    file.seek(0)
                    file.write(data)
                    file.truncate()
        except (FileNotFoundError, NotADirectoryError):
            return


@contextmanager
def _faults(root: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReferenceImageError(
            f"/{name} of the image {root} cannot be written: {error.strerror}",
            hint="what has a package of the profile made of it?",
        ) from error


@contextmanager
def _entry(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """A descriptor of the directory that contains ``name``, and the last component of ``name``."""
    path = PurePosixPath(name)
    fd = _made(root, str(path.parent)) if make else _open(root, str(path.parent))
    try:
        yield fd, path.name
    finally:
        os.close(fd)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _made(root: Path, name: str) -> int:
    try:
        return _open(root, name)
    except FileNotFoundError:
        path = PurePosixPath(name)
        parent = _made(root, str(path.parent))
        try:
            os.mkdir(path.name, dir_fd=parent)
            fd = os.open(path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.fchmod(fd, 0o755)
        finally:
            os.close(parent)
        return fd


def _open(root: Path, name: str) -> int:
    """A descriptor of a directory in the image. Raises the OSError of openat2(2)."""
    top = os.open(root, _DIRECTORY)
    try:
        return open_directory(top, name, IN_ROOT | NO_MAGICLINKS)
    finally:
        os.close(top)
