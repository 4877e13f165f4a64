"""Read the superblock of a root volume, whatever its file system is."""

from __future__ import annotations

from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.image import btrfs, ext4, xfs
from quickstart.image.ext4layout import SUPERBLOCK_AT, SUPERBLOCK_BYTES
from quickstart.model.superblock import Superblock


def read_superblock(path: Path, at_bytes: int = 0) -> Superblock:
    """The superblock of the file system that begins at byte ``at_bytes`` of a raw image. Raises ArtefactError when there
    is no superblock of ext4, XFS or btrfs, or when it is damaged.
    """
    with path.open("rb") as file:

        def content(offset: int, length: int) -> bytes:
            file.seek(at_bytes + offset)
            return file.read(length)

        # A user's file may have the other words at their places.
        if ext4.is_superblock(block := content(SUPERBLOCK_AT, SUPERBLOCK_BYTES)):
            return ext4.parse_superblock(block, str(path))
        if content(0, len(xfs.MAGIC)) == xfs.MAGIC:
            return xfs.read_xfs(file, at_bytes, str(path))
        if content(btrfs.MAGIC_AT, len(btrfs.MAGIC)) == btrfs.MAGIC:
            return btrfs.read_btrfs(file, at_bytes, str(path))
    raise ArtefactError(f"{path} has no superblock of ext4, XFS or btrfs", hint="is the image truncated?")
