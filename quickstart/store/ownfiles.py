"""Open the files and directories of a store, which somebody else may have made: without following links, and with limits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from quickstart.errors import BadInputError, HostLacksError
from quickstart.host.beneath import kind_of, read_bounded
from quickstart.model import MIB
from quickstart.parse.jsondoc import parse

# The largest of our documents, with the sources of a program, has some 300 KB.
_DOCUMENT_BYTES = 16 * MIB


def document_of(path: Path) -> Mapping[str, Any]:
    """The JSON document in the file at ``path``. Raises OSError when it cannot be read, and ValueError when it is
    not a regular file, too long, or not a JSON object.
    """
    try:
        found = parse(read_bounded(path, _DOCUMENT_BYTES))
    except BadInputError as error:
        raise ValueError(error.message) from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def open_lock(path: Path) -> BinaryIO:
    """The lock file at ``path``, which is made if it is missing. The file is only readable when we may not write
    to it. Raises HostLacksError when it is not a regular file, and OSError as open(2) does.

    In a store that somebody else made, the name may be a link. If we followed it, we would make a file at a
    place of that user's choice, such as /etc/nologin.
    """
    with suppress(FileNotFoundError):
        # Opening a device may do something by itself.
        _check_lock(path, path.lstat().st_mode)
    try:
        file: BinaryIO = open(path, "a+b", opener=_without_links)  # noqa: SIM115 - returned
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS) or not os.path.lexists(path):
            raise
        # flock(2) asks for no right to write: who may read a store may use it.
        file = open(path, "rb", opener=_without_links)  # noqa: SIM115
    try:
        _check_lock(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def _without_links(path: str, flags: int) -> int:
    # O_NONBLOCK: to open a FIFO must not wait for its other end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o666)


def _check_lock(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise HostLacksError(
            f"the lock {path} in the store is {kind_of(mode)}, not a regular file",
            hint="remove it, and do not use a store that somebody else made",
        )


def close_to_others(directory: Path) -> None:
    """Take all rights to ``directory`` from other users, if it is a directory of ours and no link."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_mode & 0o077:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
