"""Open the files and directories of a store without following links, and with limits on size and time. Somebody else
may have made the store.
"""

from __future__ import annotations

import errno
import os
import stat
import time
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
# The entries of these stages have nothing of an image. The entries of other stages have an image's set-uid programs,
# device nodes and password hashes, which other users of this host must not see. So the directories of those stages
# have the mode 0700.
OPEN_STAGES = ("agent", "verdicts")
# How long another user can delay us (docs/users/security.md), and how long compiling our programs may take.
_LIMIT_S, _MAKING_LIMIT_S = 60.0, 180.0
_POLL_S = 0.05


def document_of(path: Path) -> Mapping[str, Any]:
    """The JSON document in the file at ``path``. Raises OSError when the file cannot be read. Raises ValueError when
    the file is not a regular file, is too long, or does not have a JSON object.
    """
    try:
        found = parse(read_bounded(path, _DOCUMENT_BYTES))
    except BadInputError as error:
        raise ValueError(error.message) from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def open_lock(path: Path) -> BinaryIO:
    """Open the lock file at ``path``, and make the file if it is missing. If we may not write to the file, it is opened
    only for reading. Raises HostLacksError when the file is not a regular file, and OSError when open(2) fails.

    In a store that somebody else made, the name of the lock file may be a link. If we followed the link, we would make
    a file at a place that the maker of the store chooses, such as /etc/nologin.
    """
    with suppress(FileNotFoundError):
        # Opening a device may do something by itself.
        _check_lock(path, path.lstat().st_mode)
    try:
        file: BinaryIO = open(path, "a+b", opener=_without_links)  # noqa: SIM115 - returned
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS) or not os.path.lexists(path):
            raise
        # flock(2) needs no write permission, so whoever may read a store may use it.
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


class Patience:
    """The limit of the time for which a process waits for the lock of the entry ``final``.

    Other users can enter the directories of the stages in OPEN_STAGES, and can lock the lock files there. So in these
    stages, a process waits for at most _LIMIT_S. In all other stages, the time is not limited.

    While another process of quickstart makes or removes the entry, an unfinished entry exists. The limit _LIMIT_S does
    not include the time during which the unfinished entry exists. But once the process has waited for _MAKING_LIMIT_S,
    the limit includes this time, too.
    """

    def __init__(self, final: Path) -> None:
        self._final = final
        self._limited = final.parent.name in OPEN_STAGES
        self._begin_s = self._idle_since_s = time.monotonic()

    def wait(self) -> None:
        """Wait for a moment. Raises HostLacksError when the process has already waited longer than the limit allows."""
        now_s = time.monotonic()
        if os.path.lexists(f"{self._final}.partial") and now_s < self._begin_s + _MAKING_LIMIT_S:
            self._idle_since_s = now_s
        if self._limited and now_s > self._idle_since_s + _LIMIT_S:
            raise HostLacksError(
                f"{self._final}.lock is locked by another process (flock)",
                hint="end it (`lslocks` names it), or set QUICKSTART_CACHE to another directory",
            )
        time.sleep(_POLL_S)


def close_to_others(directory: Path) -> None:
    """Take all rights to ``directory`` from other users. Do nothing if ``directory`` is a link or belongs to somebody
    else.
    """
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_mode & 0o077:
                os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
