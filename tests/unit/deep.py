"""Makes trees that are deeper than Python's recursion limit, or with paths longer than the kernel's limit."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEEP = [(250, "d"), (40, "n" * 255)]


@contextmanager
def little_recursion() -> Iterator[None]:
    """Python recurses less deep than the trees of DEEP are; so these can be small."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(list(traceback.walk_stack(None))) + 150)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def nest(top: Path, depth: int, name: str, last: str = "file") -> None:
    """Directories in each other, with a file in the last one, all of one time; made by descriptors, as no path reaches it."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        os.utime(here, (1, 1))
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open(last, os.O_CREAT | os.O_WRONLY, dir_fd=here)
    for each in (file, here):
        os.utime(each, (1, 1))
        os.close(each)
