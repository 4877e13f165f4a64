"""The size of an image's files, from which the profile's disk follows."""

from __future__ import annotations

from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot


def tree_bytes(root: ImageRoot) -> int:
    """The size of the image's files, each in whole blocks of 4 KiB, and once whatever the number of its names."""
    total, seen = 0, set[tuple[int, int]]()
    for _, status in root.statuses_below(PurePosixPath("/")):
        if status.st_nlink > 1:
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += -(-status.st_size // 4096) * 4096
    return total
