"""Check that the kernel finds in a SquashFS image what a reader of its lists finds.

The kernel (fs/squashfs) does not read a directory as a list. It knows an inode by the number in the directory's
entry, and takes the inode of this number that it has read before. It begins to look a name up where the index of
a long directory says, and ends at the first name that is behind the one that it looks for. mksquashfs writes
numbers, index and order in one way only, so whoever shows or judges an image takes no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

METADATA_BYTES = 8192
# In the size of a data block; the bit above says that the block is uncompressed.
BLOCK_LENGTH_MASK = (1 << 24) - 1
_NUMBER_MASK = 0xFFFFFFFF


class Entry(NamedTuple):
    """An entry of a directory: the type and number of its inode, and the block and offset where the inode is."""

    name: bytes
    block: int
    offset: int
    kind: int
    number: int

    @property
    def reference(self) -> int:
        """The place of the inode, in one number, as the superblock has that of the root."""
        return self.block << 16 | self.offset


class Mark(NamedTuple):
    """An entry of a directory's index: the position in the list at which a run of entries begins, the run's
    metadata block, relative to the table of directories, and the name of its first entry.
    """

    position: int
    block: int
    name: bytes


def number_of(base: int, delta: int) -> int:
    """The number of an inode from that of its run and the entry's difference, as the kernel adds them."""
    return (base + delta) & _NUMBER_MASK


@dataclass
class Inodes:
    """The inodes that were met: by its number, the reference to each one's place in the table of inodes."""

    _references: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, reference: int, *, is_directory: bool) -> None:
        """Raises ValueError when another inode has this number, or when a directory has two names, of which the
        kernel keeps one.
        """
        is_known = number in self._references
        if is_known and (is_directory or self._references[number] != reference):
            raise ValueError(f"two files have the inode {number}")
        self._references[number] = reference


@dataclass
class Order:
    """The entries of one directory so far, compared with the ``marks`` of its index. ``begin`` is the offset of
    its list in the first block.
    """

    marks: Iterator[Mark]
    begin: int
    _last: bytes = b""
    _mark: Mark | None = None

    def __post_init__(self) -> None:
        self._mark = next(self.marks, None)

    def begin_run(self, position: int, place: tuple[int, int], name: bytes) -> None:
        """A run of entries begins at ``position`` of the list, which is at ``place``: the relative metadata block
        and the offset in it. ``name`` is that of its first entry.
        """
        if self._mark is None or position < self._mark.position:
            return
        offset = (position + self.begin) % METADATA_BYTES
        if self._mark != (position, place[0], name) or offset != place[1]:
            raise ValueError("the index of a directory is not that of its list")
        self._mark = next(self.marks, None)

    def add(self, name: bytes) -> None:
        if name <= self._last:
            raise ValueError(f"a directory's list has the name {name!r} twice or out of order")
        self._last = name

    def end(self) -> None:
        """The list has ended."""
        if self._mark is not None:
            raise ValueError("the index of a directory is longer than its list")


@dataclass
class Blocks:
    """The blocks of data that were met, those of files and those of fragments: by its place in the image, the
    size of each as the image gives it, with the flag for an uncompressed block.

    The kernel keeps an unpacked block by its place alone (fs/squashfs/cache.c, squashfs_cache_get). If two files
    gave one place different sizes, the content of one of them would depend on which file is read first.
    """

    _sizes: dict[int, int] = field(default_factory=dict)

    def add(self, place: int, size: int) -> None:
        """Raises ValueError when another file gives the block at ``place`` another size."""
        if self._sizes.setdefault(place, size) != size:
            raise ValueError(f"the block at {place} has two sizes")

    def end(self) -> None:
        """All blocks have been met. Raises ValueError when two of them overlap."""
        end = 0
        for place, size in sorted(self._sizes.items()):
            if place < end:
                raise ValueError(f"the block at {place} overlaps another one")
            end = place + (size & BLOCK_LENGTH_MASK)


def check_owners(count: int, table: bytes) -> None:
    """Raise ValueError unless the image's table of ``count`` user and group IDs has root's alone, as build's does."""
    if count != 1 or table != bytes(4):
        raise ValueError("it has files of other owners than root, and build packs none")
