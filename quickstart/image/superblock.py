"""Read the superblock of a root volume, whatever its file system is."""

from __future__ import annotations

from pathlib import Path

from quickstart.image import ext4, xfs
from quickstart.image.ext4layout import SUPERBLOCK_AT, SUPERBLOCK_BYTES
from quickstart.model.superblock import Superblock


def read_superblock(path: Path, at_bytes: int = 0) -> Superblock:
    """The superblock of the file system that begins at byte ``at_bytes`` of a raw image. Raises ArtefactError when there
    is no superblock of ext4 or XFS, or when it is damaged.
    """
    with path.open("rb") as file:
        file.seek(at_bytes)
        if file.read(len(xfs.MAGIC)) == xfs.MAGIC:
            return xfs.read_xfs(file, at_bytes, str(path))
        file.seek(at_bytes + SUPERBLOCK_AT)
        return ext4.parse_superblock(file.read(SUPERBLOCK_BYTES), str(path))
