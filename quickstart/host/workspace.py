"""Make directories for one run of QuickStart, in the temporary directory. If a run was killed, the next run removes the
directories of the killed run.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from quickstart.errors import HostLacksError
from quickstart.host.files import check_temporary, remove_tree, temporary_directory
from quickstart.host.locks import EXCLUSIVE, try_lock

# This file is locked as long as its process lives. A directory without this file is kept by somebody, or is
# not ours.
_OWNER = "owner"
_HINT = "set TMPDIR to a local file system"
# In unix(7), sun_path has 108 bytes, and the last one is zero. The second number is the longest name of our
# sockets, with its slash.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME_BYTES = 16
# Paths in this directory are short, whatever TMPDIR is.
_SHORT = Path("/tmp")  # noqa: S108 - the place, not a file of a known name


@contextmanager
def workspace(prefix: str, *, keep: bool = False, place: Path | None = None) -> Iterator[Path]:
    """A context with a new directory, whose name begins with ``prefix``. The context removes the directory when it
    ends, unless ``keep`` is set.

    The function makes the directory in ``place``, which defaults to the temporary directory. Before it makes the
    directory, it removes directories in ``place`` that killed processes of this user have left. Raises HostLacksError
    when another user could replace the directory, and OSError when the directory cannot be made.
    """
    place = place or temporary_directory()
    check_temporary(place)
    _remove_orphans(place, prefix)
    with ExitStack() as stack:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        if not keep:
            stack.callback(remove_tree, made)
            stack.enter_context(_owned(made))
            # The directory is removed before the lock is released. Otherwise, another run would take it for
            # an orphan.
            stack.callback(remove_tree, made)
        yield made


@contextmanager
def room_for_sockets(directory: Path) -> Iterator[Path]:
    """A context with a directory for UNIX sockets. If the path of ``directory`` is short enough for a socket address
    (unix(7)), the context gives ``directory`` itself. Otherwise, it gives another directory, which has a short path.
    """
    if len(os.fsencode(directory)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES:
        yield directory
        return
    with workspace("quickstart-sockets-", place=_SHORT) as short:
        yield short


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    new = directory / f".{_OWNER}"
    with new.open("wb") as file:
        # On a file system without locks, this file would mark the directory as an orphan.
        with suppress(HostLacksError):
            try_lock(file.fileno(), EXCLUSIVE, "the temporary directory", _HINT)
            # So nobody can see the mark without the lock.
            new.rename(directory / _OWNER)
        yield


def _remove_orphans(place: Path, prefix: str) -> None:
    for path in sorted(place.glob(f"{prefix}*")):
        # Another run may remove it at this moment.
        with suppress(OSError, HostLacksError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            with (path / _OWNER).open("rb+") as owner:
                if try_lock(owner.fileno(), EXCLUSIVE, "the temporary directory", _HINT):
                    remove_tree(path)
