"""Compute the size of an image's files. From this size, `profile new` computes the size of the root disk."""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot


def tree_bytes(root: ImageRoot) -> int:
    """The total size in bytes of the image's files. Each file is rounded up to whole blocks of 4 KiB. A file
    with several hard links counts once.
    """
    total, seen = 0, set[tuple[int, int]]()
    for _, status in root.statuses_below(PurePosixPath("/")):
        if status.st_nlink > 1:
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += -(-status.st_size // 4096) * 4096
    return total
