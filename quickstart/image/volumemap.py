"""Find out which file or which metadata owns each block of a root volume."""

from __future__ import annotations

from quickstart.image.blockmap import BlockMap, read_block_map
from quickstart.image.inodepaths import InodePaths
from quickstart.model.rootdisk import RootDisk
from quickstart.model.words import FileSystem

_NO_OWNERS = BlockMap(block_bytes=4096, inode_bytes=512, _runs=(), _paths=InodePaths(), _first_inode={})


def volume_map(disk: RootDisk) -> BlockMap:
    """The map of the blocks of ``disk``. For a file system other than ext4, the map names no owners. Raises the errors of
    ``read_block_map``.
    """
    if disk.superblock.file_system is not FileSystem.EXT4:
        return _NO_OWNERS
    return read_block_map(disk.path)
