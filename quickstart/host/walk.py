"""Directory trees of any depth: no recursion, and paths longer than the kernel takes in one call (PATH_MAX)."""

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
    """Every path from ``top`` on, depth first by name, with whether it is a directory; none on another ``device`` is entered.

    ``on_error`` is told of a directory that cannot be read; unless it raises, the walk goes on beside it.
    """
    left = [(top, True)]
    while left:
        path, is_directory = left.pop()
        yield path, is_directory
        if is_directory:
            try:
                children = _children(path, device)
            except OSError as error:
                on_error(error)
                continue
            left += [(os.path.join(path, child), below) for child, below in children]  # noqa: PTH118 - bytes


def _children(path: bytes, device: int) -> list[tuple[bytes, bool]]:
    """Names and whether they are directories, the last name first."""
    with reachable(path) as name:
        if os.lstat(name).st_dev != device:
            return []
        with os.scandir(name) as entries:
            return sorted(
                ((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries), reverse=True
            )


@contextmanager
def reachable(path: bytes) -> Iterator[bytes]:
    """A name that system calls take for ``path``, of any length, while the context lasts."""
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
    """``path`` cut before slashes into pieces that the kernel takes."""
    while len(path) > _TAKEN_BYTES:
        cut = path.rindex(b"/", 0, _TAKEN_BYTES)
        yield path[:cut]
        path = path[cut + 1 :]
    yield path
