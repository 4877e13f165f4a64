"""Find the owner of each block of an ext4 image: a file, a directory or metadata. The image is not mounted.

The layout of ext4 is described in the kernel's Documentation/filesystems/ext4 (super, group_descr, inodes, ifork,
directory).
"""

from __future__ import annotations

import bisect
import enum
import itertools
import mmap
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from quickstart.errors import ArtefactError
from quickstart.host.cpulimit import START_SET_LIMIT_S, cpu_limit
from quickstart.image.ext4 import MAX_USED_INODES, used_inodes
from quickstart.image.ext4layout import Layout, damaged, has_superblock, read_layout
from quickstart.image.inodepaths import InodePaths, path_bytes
from quickstart.parse.bounded import PATH_MAX

_ROOT_INODE, _RESIZE_INODE = 2, 7
_FLAG_EXTENTS, _FLAG_INLINE = 0x80000, 0x10000000
_EXTENT_MAGIC = 0xF30A
_UNWRITTEN = 32768
_DEEPEST = 5
EXTENTS_IN_INODE = 4
# This many take about 300 MiB of memory. Our images have a few ten thousand.
_MAX_RUNS = 1 << 20
# The limit for all paths in memory. Debian with a desktop has 350 000 files, whose paths take 70 MiB.
_MAX_PATH_BYTES = 256 << 20
_FAST_LINK_BYTES = 60


class Kind(enum.Enum):
    """The kinds of content that a block may have."""

    SUPERBLOCK = "superblock"
    DESCRIPTORS = "group descriptors"
    RESERVED = "room for group descriptors"
    BLOCK_BITMAP = "block bitmap"
    INODE_BITMAP = "inode bitmap"
    INODE_TABLE = "inode table"
    JOURNAL = "journal"
    DIRECTORY = "directory"
    EXTENTS = "extent tree"
    ATTRIBUTES = "extended attributes"
    LINK = "symbolic link"
    FILE = "file"
    FREE = "free"
    OUTSIDE = "outside of the root volume"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Consecutive blocks with one owner. ``offset_bytes`` is the position of the blocks in the file ``path``.

    For blocks of an inode table, ``inodes`` are the paths of the files whose inodes are in these blocks. For metadata
    of the whole volume, ``path`` is None.
    """

    kind: Kind
    first_block: int
    blocks: int
    path: PurePosixPath | None = None
    offset_bytes: int = 0
    inodes: tuple[PurePosixPath, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BlockMap:
    """The owners of all used blocks of a volume, in the order of the blocks."""

    block_bytes: int
    inode_bytes: int
    _runs: tuple[Owner, ...]
    _paths: InodePaths
    # The first inode of a run of an inode table, by the run's first block.
    _first_inode: dict[int, int]

    @cached_property
    def _tables(self) -> tuple[int, ...]:
        """The first blocks of the inode tables, in order."""
        return tuple(sorted(self._first_inode))

    @property
    def runs(self) -> tuple[Owner, ...]:
        """All owners in the order of their blocks. The field ``inodes`` of each owner is empty."""
        return self._runs

    @property
    def inodes(self) -> Mapping[PurePosixPath, int]:
        """The inode number of each path. When an inode has several paths, the result has only one of them."""
        return {path: number for number, path in self._paths.items()}

    def inode_blocks(self, paths: Collection[PurePosixPath]) -> tuple[int, ...]:
        """The blocks of the inode tables that contain the inodes of ``paths``, in order, without duplicates."""
        each = self.block_bytes // self.inode_bytes
        tables = sorted((first, block) for block, first in self._first_inode.items())
        found = set()
        for number, path in self._paths.items():
            if path in paths:
                first, block = tables[bisect.bisect_right(tables, number, key=lambda table: table[0]) - 1]
                found.add(block + (number - first) // each)
        return tuple(sorted(found))

    def owners(self, offset_bytes: int, length_bytes: int) -> tuple[Owner, ...]:
        """The owners of a range of the volume, in order and without gaps. Unused blocks have the kind FREE."""
        at, end = offset_bytes // self.block_bytes, -(-(offset_bytes + length_bytes) // self.block_bytes)
        found: list[Owner] = []
        index = max(0, bisect.bisect_right(self._runs, at, key=lambda run: run.first_block) - 1)
        while at < end:
            run = self._runs[index] if index < len(self._runs) else None
            if run is not None and run.first_block + run.blocks <= at:
                index += 1
            elif run is None or run.first_block > at:
                until = end if run is None else min(end, run.first_block)
                found.append(Owner(kind=Kind.FREE, first_block=at, blocks=until - at))
                at = until
            else:
                until = min(end, run.first_block + run.blocks)
                found.append(self._part(run, at, until))
                at = until
        return tuple(found)

    def _part(self, run: Owner, at: int, until: int) -> Owner:
        skipped = at - run.first_block
        inodes: tuple[PurePosixPath, ...] = ()
        if run.kind is Kind.INODE_TABLE:
            each = self.block_bytes // self.inode_bytes
            # A block of the table that another owner claims does not belong to the table, so a run may
            # begin in the table's middle.
            begin = self._tables[bisect.bisect_right(self._tables, run.first_block) - 1]
            first = self._first_inode[begin] + (at - begin) * each
            numbers = range(first, first + (until - at) * each)
            inodes = tuple(self._paths[number] for number in numbers if number in self._paths)
        return Owner(
            kind=run.kind,
            first_block=at,
            blocks=until - at,
            path=run.path,
            offset_bytes=run.offset_bytes + skipped * self.block_bytes,
            inodes=inodes,
        )


@cpu_limit("the disk", START_SET_LIMIT_S)
def read_block_map(image: Path) -> BlockMap:
    """The block map of ``image``. Raises ArtefactError when the image is damaged, not ext4, or uses meta_bg."""
    with image.open("rb") as file:
        # mmap(2) refuses an empty file. But an image with a valid layout is not empty, because it has a
        # superblock.
        layout = read_layout(file, str(image))
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            try:
                return _Reader(data, layout, str(image)).read(used_inodes(image))
            except (struct.error, IndexError, OverflowError) as error:
                raise damaged(str(image), str(error)) from error


class _Reader:
    """A reader for one file system. ``runs`` collects the owners, and ``paths`` collects one path of each inode."""

    def __init__(self, data: mmap.mmap, layout: Layout, source: str) -> None:
        self.data, self.layout, self.source = data, layout, source
        self.runs: list[Owner] = []
        self.first_inode: dict[int, int] = {}
        self.paths = InodePaths()
        # Blocks that lead to other blocks, and blocks of directories. Such a block belongs to one inode and
        # is read once.
        self.trees: set[int] = set()
        self.directories: set[int] = set()
        self.path_bytes = 0
        self.block_bytes, self.inode_bytes = layout.block_bytes, layout.inode_bytes
        (self.journal_inode,) = struct.unpack_from("<I", layout.superblock, 0xE0)

    def read(self, used: tuple[int, ...]) -> BlockMap:
        self._group_metadata()
        self._walk()
        for number in (_RESIZE_INODE, self.journal_inode):
            if number:
                kind = Kind.JOURNAL if number == self.journal_inode else Kind.RESERVED
                self._blocks_of(number, kind, None, kind)
        for number in used:
            # An inode that is only in the bitmap and not in the table takes no room in the volume.
            if number not in self.paths and self._u16(self._inode_at(number)):
                # Such a file was removed while it was open, or belongs to the file system itself.
                self.paths.name(number, None, f"inode {number}")
                self._blocks_of(number, Kind.FILE, self.paths.made(number))
        return BlockMap(
            block_bytes=self.block_bytes,
            inode_bytes=self.inode_bytes,
            _runs=tuple(_disjoint(sorted(set(self.runs), key=_order))),
            _paths=self.paths,
            _first_inode=self.first_inode,
        )

    def _damaged(self, what: str) -> ArtefactError:
        return damaged(self.source, what)

    def _u16(self, at: int) -> int:
        return int(struct.unpack_from("<H", self.data, at)[0])

    def _u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def _add(
        self, kind: Kind, first: int, blocks: int, path: PurePosixPath | None = None, offset: int = 0
    ) -> None:
        if blocks <= 0:
            return
        if first + blocks > self.layout.blocks:
            raise self._damaged(f"{kind.value} of {path or 'the volume'} at block {first}")
        if len(self.runs) >= _MAX_RUNS:
            raise self._damaged(f"it is in more than {_MAX_RUNS} pieces")
        self.runs.append(Owner(kind=kind, first_block=first, blocks=blocks, path=path, offset_bytes=offset))

    def _group_metadata(self) -> None:
        layout = self.layout
        tables = -(-layout.inodes_per_group * self.inode_bytes // self.block_bytes)
        descriptor_blocks = -(-layout.groups * layout.descriptor_bytes // self.block_bytes)
        for group in range(layout.groups):
            first = layout.first_block + group * layout.blocks_per_group
            if has_superblock(layout, group):
                self._add(Kind.SUPERBLOCK, first, 1)
                self._add(Kind.DESCRIPTORS, first + 1, descriptor_blocks)
            block_bitmap, inode_bitmap, table = self._descriptor(group)
            self._add(Kind.BLOCK_BITMAP, block_bitmap, 1)
            self._add(Kind.INODE_BITMAP, inode_bitmap, 1)
            self._add(Kind.INODE_TABLE, table, tables)
            self.first_inode[table] = group * layout.inodes_per_group + 1
        in_order = sorted(self.runs, key=lambda run: run.first_block)
        for run, following in itertools.pairwise(in_order):
            if run.first_block + run.blocks > following.first_block:
                raise self._damaged(
                    f"{run.kind.value} and {following.kind.value} at block {following.first_block}"
                )

    def _descriptor(self, group: int) -> tuple[int, int, int]:
        """The first blocks of a group's block bitmap, inode bitmap and inode table."""
        at = group * self.layout.descriptor_bytes
        low, high = struct.unpack_from("<3I", self.layout.descriptors, at), (0, 0, 0)
        if self.layout.wide:
            high = struct.unpack_from("<3I", self.layout.descriptors, at + 0x20)
        first, second, third = (a | b << 32 for a, b in zip(low, high, strict=True))
        return first, second, third

    def _inode_at(self, number: int) -> int:
        group, index = divmod(number - 1, self.layout.inodes_per_group)
        if not 0 <= group < self.layout.groups:
            raise self._damaged(f"there is no inode {number}")
        return self._descriptor(group)[2] * self.block_bytes + index * self.inode_bytes

    def _walk(self) -> None:
        """Record the blocks of every file that has a name, from the root directory down."""
        self.paths.put(_ROOT_INODE, PurePosixPath("/"))
        waiting = [_ROOT_INODE]
        while waiting:
            number = waiting.pop()
            path, before = self.paths.made(number), len(self.runs)
            mode = self._u16(self._inode_at(number))
            kind = Kind.DIRECTORY if stat.S_ISDIR(mode) else Kind.LINK if stat.S_ISLNK(mode) else Kind.FILE
            pieces = self._blocks_of(number, kind, path)
            if len(self.runs) > before:
                # The runs keep this path in memory in any case.
                self.paths.put(number, path)
            if kind is Kind.DIRECTORY:
                pieces.sort(key=lambda run: run.offset_bytes)
                waiting += self._entries(number, str(path).rstrip("/"), pieces)

    def _entries(self, directory: int, path: str, pieces: list[Owner]) -> Iterator[int]:
        """For each entry of the directory whose inode has no name yet, record the entry's name, and yield the inode."""
        for name, child in self._names(pieces):
            if child in self.paths:
                continue
            below = f"{path}/{name}"
            if len(below) >= PATH_MAX:
                # No path can name a file so deep, and every name would repeat all names above it.
                self.paths.name(child, None, f"inode {child}")
            else:
                self.paths.name(child, directory, name)
                self.path_bytes += path_bytes(below)
            # There may be any number of inodes that no bitmap marks as used.
            if len(self.paths) > MAX_USED_INODES or self.path_bytes > _MAX_PATH_BYTES:
                raise self._damaged(f"it has more than {MAX_USED_INODES} inodes, or very long names")
            yield child

    def _names(self, pieces: list[Owner]) -> Iterator[tuple[str, int]]:
        for piece in pieces:
            for block in range(piece.first_block, piece.first_block + piece.blocks):
                if block in self.directories:
                    raise self._damaged(f"the directory {piece.path} has blocks of others")
                self.directories.add(block)
                at, end = block * self.block_bytes, (block + 1) * self.block_bytes
                while at < end:
                    number, length, name_length = struct.unpack_from("<IHB", self.data, at)
                    if length < 8 or at + length > end:
                        raise self._damaged(f"the directory {piece.path}")
                    name = self.data[at + 8 : at + 8 + name_length]
                    if number and name not in (b".", b".."):
                        if not name or b"/" in name or b"\0" in name or name_length > length - 8:
                            raise self._damaged(f"the directory {piece.path} has the name {name!r}")
                        yield os.fsdecode(name), number
                    at += length

    def _blocks_of(
        self, number: int, kind: Kind, path: PurePosixPath | None, tree: Kind = Kind.EXTENTS
    ) -> list[Owner]:
        """Record an inode's blocks: blocks of data have the kind ``kind``, and blocks of extents or pointers
        have the kind ``tree``. Return the runs of data blocks.
        """
        at = self._inode_at(number)
        mode, flags = self._u16(at), self._u32(at + 0x20)
        size = self._u32(at + 4) | self._u32(at + 0x6C) << 32
        attributes = self._u32(at + 0x68) | self._u16(at + 0x76) << 32
        self._add(Kind.ATTRIBUTES, attributes, 1 if attributes else 0, path)
        before = len(self.runs)
        if flags & _FLAG_EXTENTS:
            self._extents(at + 0x28, kind, path, tree)
        elif not flags & _FLAG_INLINE and (
            stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and size >= _FAST_LINK_BYTES)
        ):
            self._pointers(at + 0x28, kind, path, tree)
        return [run for run in self.runs[before:] if run.kind is kind]

    def _tree(self, tree: Kind, block: int, path: PurePosixPath | None) -> int:
        """Record a block of an extent tree or of pointers. Return the block's offset in the image, in bytes."""
        if block in self.trees:
            raise self._damaged(f"block {block} leads to blocks of {path}, and to others")
        self.trees.add(block)
        self._add(tree, block, 1, path)
        return block * self.block_bytes

    def _extents(
        self, at: int, kind: Kind, path: PurePosixPath | None, tree: Kind, depth_above: int | None = None
    ) -> None:
        magic, entries, _, depth = struct.unpack_from("<4H", self.data, at)
        room = EXTENTS_IN_INODE if depth_above is None else (self.block_bytes - 12) // 12
        expected = depth <= _DEEPEST if depth_above is None else depth == depth_above - 1
        if magic != _EXTENT_MAGIC or not expected or entries > room:
            raise self._damaged(f"the extents of {path}")
        for entry in range(at + 12, at + 12 + 12 * entries, 12):
            logical, second, third, low = struct.unpack_from("<IHHI", self.data, entry)
            if depth:
                (low, high) = struct.unpack_from("<IH", self.data, entry + 4)
                block = low | high << 32
                self._extents(self._tree(tree, block, path), kind, path, tree, depth)
            else:
                length = second - _UNWRITTEN if second > _UNWRITTEN else second
                self._add(kind, low | third << 32, length, path, logical * self.block_bytes)

    def _pointers(self, at: int, kind: Kind, path: PurePosixPath | None, tree: Kind) -> None:
        """Record the blocks of an inode that has 12 direct and 3 indirect block pointers instead of extents."""
        logical = 0
        per_block = self.block_bytes // 4
        for index in range(15):
            depth = max(0, index - 11)
            self._pointed(self._u32(at + 4 * index), depth, logical, kind, path, tree)
            logical += per_block**depth

    def _pointed(
        self, block: int, depth: int, logical: int, kind: Kind, path: PurePosixPath | None, tree: Kind
    ) -> None:
        if not block:
            return
        if not depth:
            self._add(kind, block, 1, path, logical * self.block_bytes)
            return
        per_block = self.block_bytes // 4
        for index, each in enumerate(
            struct.unpack_from(f"<{per_block}I", self.data, self._tree(tree, block, path))
        ):
            self._pointed(each, depth - 1, logical + index * per_block ** (depth - 1), kind, path, tree)


def _order(run: Owner) -> tuple[int, str, str, int]:
    return run.first_block, str(run.path), run.kind.value, run.blocks


def _disjoint(runs: list[Owner]) -> Iterator[Owner]:
    """The sorted ``runs`` without overlaps. Runs overlap because the resize inode also lists blocks of backups."""
    reached = 0
    for run in runs:
        skipped = max(0, reached - run.first_block)
        if skipped < run.blocks:
            # Several inodes may share a block of attributes; the first has it.
            yield Owner(
                kind=run.kind,
                first_block=run.first_block + skipped,
                blocks=run.blocks - skipped,
                path=run.path,
                offset_bytes=run.offset_bytes,
            )
            reached = run.first_block + run.blocks
