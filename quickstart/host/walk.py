"""Walk directory trees of any depth, without recursion. Paths may be longer than a system call accepts (PATH_MAX)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Linux takes 4095 bytes (limits.h); a name is at most 255.
_TAKEN_BYTES = 3800


def _raise(error: OSError) -> None:
    raise error


def walk(
    top: bytes, device: int, on_error: Callable[[OSError], None] = _raise
) -> Iterator[tuple[bytes, bool]]:
    """``top`` and every path below it, depth first and sorted by name. Each element is (path, whether the path is a
    directory).

    The function does not enter directories on a device other than ``device``. It calls ``on_error`` when it cannot read
    a directory. If ``on_error`` does not raise, the walk continues with the next directory.
    """
    # An entry is kept as its name and its directory's path, which all entries of the directory share,
    # because somebody may have made a million long paths.
    left = [(b"", top, True)]
    while left:
        parent, name, is_directory = left.pop()
        path = os.path.join(parent, name)  # noqa: PTH118 - bytes
        yield path, is_directory
        if is_directory:
            try:
                children = _children(path, device)
            except OSError as error:
                on_error(error)
                continue
            left += [(path, child, below) for child, below in children]


def _children(path: bytes, device: int) -> list[tuple[bytes, bool]]:
    """The names in a directory, in reverse order. Each element is (name, whether the name is a directory)."""
    with reachable(path) as name:
        if os.lstat(name).st_dev != device:
            return []
        with os.scandir(name) as entries:
            return sorted(
                ((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries), reverse=True
            )


@contextmanager
def reachable(path: bytes) -> Iterator[bytes]:
    """A context with a short path for the file at ``path``, which may be too long for a system call. System calls can
    use the short path while the context lasts.
    """
    if len(path) <= _TAKEN_BYTES:
        yield path
        return
    head, last = os.path.split(path)
    way = os.open(b"/" if head.startswith(b"/") else b".", os.O_PATH | os.O_DIRECTORY)
    try:
        for part in _parts(head.lstrip(b"/")):
            before = way
            way = os.open(part, os.O_PATH | os.O_DIRECTORY, dir_fd=before)
            os.close(before)
        yield b"/proc/self/fd/%d/%s" % (way, last)
    finally:
        os.close(way)


def _parts(path: bytes) -> Iterator[bytes]:
    """The pieces of ``path``, which is cut at slashes. Each piece is short enough for a system call."""
    while len(path) > _TAKEN_BYTES:
        cut = path.rindex(b"/", 0, _TAKEN_BYTES)
        yield path[:cut]
        path = path[cut + 1 :]
    yield path
