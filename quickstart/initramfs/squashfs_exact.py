"""Check that the kernel finds the same files in a SquashFS image as a reader that reads every directory's list of
entries from its beginning to its end.

The kernel (fs/squashfs) finds files in another way, so in an unusual image it could find other files than the reader.
Each entry in a directory's list has the number of an inode and the place of this inode. When the kernel already has an
inode of this number in memory, it uses that inode and ignores the place in the entry. When the kernel looks up a name
in a long directory, it does not begin at the beginning of the list, but where the directory's index says. In any
directory, the kernel gives up the look-up at the first entry whose name begins with a greater byte than the name that
it looks for.

mksquashfs always writes the numbers, the index and the order of the entries in the same way. So when QuickStart shows
or judges an image from somebody else, it accepts only an image that is written in this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

METADATA_BYTES = 8192
# The bits of a data block's size. The bit above them says that the block is uncompressed.
BLOCK_LENGTH_MASK = (1 << 24) - 1
_NUMBER_MASK = 0xFFFFFFFF


class Entry(NamedTuple):
    """An entry of a directory. The entry has a name, and the type (``kind``), number and place of the inode. The place
    says where in the inode table the inode is: ``block`` is the position of a metadata block, in bytes from the
    table's beginning, and ``offset`` is the offset in this block.
    """

    name: bytes
    block: int
    offset: int
    kind: int
    number: int

    @property
    def reference(self) -> int:
        """The place of the inode as one number, in the format that the superblock uses for the root's inode."""
        return self.block << 16 | self.offset


class Mark(NamedTuple):
    """An entry of a directory's index. A mark says where a run of entries (consecutive entries with one common header)
    begins. ``position`` is the run's position in the directory's list, in bytes. ``block`` is the position of the
    run's metadata block, in bytes from the beginning of the directory table. ``name`` is the name of the run's first
    entry.
    """

    position: int
    block: int
    name: bytes


def number_of(base: int, delta: int) -> int:
    """The number of an entry's inode. ``base`` is the number in the header of the entry's run. ``delta`` is the
    difference that the entry itself contains. The sum of the two wraps at 32 bits, as in the kernel.
    """
    return (base + delta) & _NUMBER_MASK


@dataclass
class Inodes:
    """The inodes that were found so far. For each inode's number, the object has the inode's place
    (``Entry.reference``).
    """

    _references: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, reference: int, *, is_directory: bool) -> None:
        """Record an inode. Raises ValueError when another inode has this number. Also raises ValueError when a
        directory has a second name, because the kernel keeps only one of a directory's names.
        """
        is_known = number in self._references
        if is_known and (is_directory or self._references[number] != reference):
            raise ValueError(f"two files have the inode {number}")
        self._references[number] = reference


@dataclass
class Order:
    """Checks the entries of one directory in their order, and compares their runs with the ``marks`` of the
    directory's index. ``begin`` is the offset of the directory's list in the list's first metadata block.
    """

    marks: Iterator[Mark]
    begin: int
    _last: bytes = b""
    _mark: Mark | None = None

    def __post_init__(self) -> None:
        self._mark = next(self.marks, None)

    def begin_run(self, position: int, place: tuple[int, int], name: bytes) -> None:
        """Check a run of entries that begins at ``position`` in the list (in bytes). ``place`` says where the run
        begins in the directory table. The two numbers in ``place`` are the position of a metadata block, as in
        ``Mark``, and an offset in that block. ``name`` is the name of the run's first entry. Raises ValueError when
        the index does not match.
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
        """Raise ValueError if the index has further marks after the last run of the list."""
        if self._mark is not None:
            raise ValueError("the index of a directory is longer than its list")


@dataclass
class Blocks:
    """The data blocks and fragment blocks that were found so far. For each block's place in the image, the object has
    the block's size. The size is the number that the image contains, which includes the flag for an uncompressed
    block.

    The kernel's cache looks up an unpacked block by its place alone (fs/squashfs/cache.c, squashfs_cache_get). If two
    files gave different sizes for the block at one place, the content of one file would depend on which file the
    kernel reads first.
    """

    _sizes: dict[int, int] = field(default_factory=dict)

    def add(self, place: int, size: int) -> None:
        """Record a block. Raises ValueError when an earlier file has another size for the block at ``place``."""
        if self._sizes.setdefault(place, size) != size:
            raise ValueError(f"the block at {place} has two sizes")

    def end(self) -> None:
        """Raise ValueError when two of the blocks overlap. Call this method after all blocks were recorded."""
        end = 0
        for place, size in sorted(self._sizes.items()):
            if place < end:
                raise ValueError(f"the block at {place} overlaps another one")
            end = place + (size & BLOCK_LENGTH_MASK)


def check_owners(count: int, table: bytes) -> None:
    """Raise ValueError unless root's ID is the only ID in ``table``, the image's table of ``count`` user and group
    IDs. An image that `build` makes has no other ID.
    """
    if count != 1 or table != bytes(4):
        raise ValueError("it has files of other owners than root, and build packs none")
