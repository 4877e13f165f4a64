"""Whose each block of an ext4 image is: file, directory, or which metadata. Reads the image itself, without mounting it or root.

Layout: Documentation/filesystems/ext4 of the kernel (super.rst, group_descr.rst, inodes.rst, ifork.rst, directory.rst).
"""

from __future__ import annotations

import bisect
import enum
import mmap
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.errors import ArtefactError
from quickstart.image.ext4 import used_inodes

_SUPERBLOCK_AT = 1024
_MAGIC = 0xEF53
_ROOT_INODE, _RESIZE_INODE = 2, 7
_COMPAT_SPARSE_SUPER2, _INCOMPAT_META_BG, _INCOMPAT_64BIT = 0x200, 0x10, 0x80
_RO_COMPAT_SPARSE_SUPER = 0x1
_FLAG_EXTENTS, _FLAG_INLINE = 0x80000, 0x10000000
_EXTENT_MAGIC = 0xF30A
_UNWRITTEN = 32768
_DEEPEST = 6
_FAST_LINK_BYTES = 60


class Kind(enum.Enum):
    """What a block of the volume holds."""

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


@dataclass(frozen=True, slots=True)
class Owner:
    """Blocks side by side that have one owner; ``offset_bytes`` is where in the file ``path`` they begin.

    ``inodes`` are, for an inode table, the files whose inodes are in them, by path. Metadata of the whole volume have no path.
    """

    kind: Kind
    first_block: int
    blocks: int
    path: PurePosixPath | None = None
    offset_bytes: int = 0
    inodes: tuple[PurePosixPath, ...] = ()


@dataclass(frozen=True)
class BlockMap:
    """The owners of all blocks of a volume that are in use, in order."""

    block_bytes: int
    inode_bytes: int
    _runs: tuple[Owner, ...]
    # By inode number: a path of it.
    _paths: dict[int, PurePosixPath]
    # Of a run of an inode table, by its first block: its first inode.
    _first_inode: dict[int, int]

    @property
    def runs(self) -> tuple[Owner, ...]:
        """All owners in order; ``inodes`` is empty in these."""
        return self._runs

    @property
    def inodes(self) -> Mapping[PurePosixPath, int]:
        """The number of each path's inode; of an inode with several paths it has one."""
        return {path: number for number, path in self._paths.items()}

    def inode_blocks(self, paths: Collection[PurePosixPath]) -> tuple[int, ...]:
        """The blocks of the inode tables that hold the inodes of ``paths``, in order and once each."""
        each = self.block_bytes // self.inode_bytes
        tables = sorted((first, block) for block, first in self._first_inode.items())
        found = set()
        for number, path in self._paths.items():
            if path in paths:
                first, block = tables[bisect.bisect_right(tables, number, key=lambda table: table[0]) - 1]
                found.add(block + (number - first) // each)
        return tuple(sorted(found))

    def owners(self, offset_bytes: int, length_bytes: int) -> tuple[Owner, ...]:
        """Who has the blocks that this range touches, in order and without gaps; what nobody has is FREE."""
        at, end = offset_bytes // self.block_bytes, -(-(offset_bytes + length_bytes) // self.block_bytes)
        found: list[Owner] = []
        index = max(0, bisect.bisect_right(self._runs, at, key=lambda run: run.first_block) - 1)
        while at < end:
            run = self._runs[index] if index < len(self._runs) else None
            if run is not None and run.first_block + run.blocks <= at:
                index += 1
            elif run is None or run.first_block > at:
                until = end if run is None else min(end, run.first_block)
                found.append(Owner(Kind.FREE, at, until - at))
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
            first = self._first_inode[run.first_block] + skipped * each
            numbers = range(first, first + (until - at) * each)
            inodes = tuple(self._paths[number] for number in numbers if number in self._paths)
        return Owner(
            run.kind, at, until - at, run.path, run.offset_bytes + skipped * self.block_bytes, inodes
        )


def read_block_map(image: Path) -> BlockMap:
    """The map of the raw ext4 ``image``; raises ArtefactError for what is none, is damaged or has the feature meta_bg."""
    with image.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            reader = _Reader(data, str(image))
            return reader.read(used_inodes(image))
        except (struct.error, IndexError) as error:
            raise ArtefactError(f"{image} is damaged: {error}", hint="fsck it, or build it again") from error


class _Reader:
    """Walks one file system; ``runs`` collects what it meets, ``paths`` a path of each inode."""

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self.data, self.source = data, source
        self.runs: list[Owner] = []
        self.first_inode: dict[int, int] = {}
        self.paths: dict[int, PurePosixPath] = {}
        at = _SUPERBLOCK_AT
        if self._u16(at + 0x38) != _MAGIC:
            raise ArtefactError(f"{source} has no ext4 superblock", hint="is the image truncated?")
        if self._u32(at + 0x60) & _INCOMPAT_META_BG:
            raise ArtefactError(f"{source} has meta_bg, which we cannot read", hint="mkfs.ext4 without it")
        self.block_bytes = 1024 << self._u32(at + 0x18)
        self.first_block = self._u32(at + 0x14)
        self.blocks = self._u32(at + 0x4)
        if self._u32(at + 0x60) & _INCOMPAT_64BIT:
            self.blocks |= self._u32(at + 0x150) << 32
        self.blocks_per_group, self.inodes_per_group = self._u32(at + 0x20), self._u32(at + 0x28)
        self.inode_bytes = self._u16(at + 0x58)
        self.journal_inode = self._u32(at + 0xE0)
        wide = self._u32(at + 0x60) & _INCOMPAT_64BIT
        self.descriptor_bytes = self._u16(at + 0xFE) if wide else 32
        self.groups = -(-(self.blocks - self.first_block) // self.blocks_per_group)

    def read(self, used: tuple[int, ...]) -> BlockMap:
        self._group_metadata()
        self._walk()
        for number in (_RESIZE_INODE, self.journal_inode):
            if number:
                kind = Kind.JOURNAL if number == self.journal_inode else Kind.RESERVED
                self._blocks_of(number, kind, None, kind)
        for number in used:
            if number not in self.paths:
                # Removed while it was open, or of the file system's own.
                self.paths[number] = PurePosixPath(f"inode {number}")
                self._blocks_of(number, Kind.FILE, self.paths[number])
        runs = sorted(set(self.runs), key=lambda run: (run.first_block, str(run.path)))
        return BlockMap(
            self.block_bytes, self.inode_bytes, tuple(_disjoint(runs)), self.paths, self.first_inode
        )

    def _u16(self, at: int) -> int:
        return int(struct.unpack_from("<H", self.data, at)[0])

    def _u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def _add(
        self, kind: Kind, first: int, blocks: int, path: PurePosixPath | None = None, offset: int = 0
    ) -> None:
        if blocks > 0:
            self.runs.append(Owner(kind, first, blocks, path, offset))

    def _group_metadata(self) -> None:
        tables = -(-self.inodes_per_group * self.inode_bytes // self.block_bytes)
        descriptor_blocks = -(-self.groups * self.descriptor_bytes // self.block_bytes)
        for group in range(self.groups):
            first = self.first_block + group * self.blocks_per_group
            if self._has_superblock(group):
                self._add(Kind.SUPERBLOCK, first, 1)
                self._add(Kind.DESCRIPTORS, first + 1, descriptor_blocks)
            block_bitmap, inode_bitmap, table = self._descriptor(group)
            self._add(Kind.BLOCK_BITMAP, block_bitmap, 1)
            self._add(Kind.INODE_BITMAP, inode_bitmap, 1)
            self._add(Kind.INODE_TABLE, table, tables)
            self.first_inode[table] = group * self.inodes_per_group + 1

    def _has_superblock(self, group: int) -> bool:
        if group == 0:
            return True
        if self._u32(_SUPERBLOCK_AT + 0x5C) & _COMPAT_SPARSE_SUPER2:
            return group in struct.unpack_from("<2I", self.data, _SUPERBLOCK_AT + 0x24C)
        if not self._u32(_SUPERBLOCK_AT + 0x64) & _RO_COMPAT_SPARSE_SUPER:
            return True
        return group == 1 or any(_is_power(group, base) for base in (3, 5, 7))

    def _descriptor(self, group: int) -> tuple[int, int, int]:
        """Where a group's block bitmap, inode bitmap and inode table begin."""
        at = (self.first_block + 1) * self.block_bytes + group * self.descriptor_bytes
        low = struct.unpack_from("<3I", self.data, at)
        high = struct.unpack_from("<3I", self.data, at + 0x20) if self.descriptor_bytes >= 64 else (0, 0, 0)
        first, second, third = (a | b << 32 for a, b in zip(low, high, strict=True))
        return first, second, third

    def _inode_at(self, number: int) -> int:
        group, index = divmod(number - 1, self.inodes_per_group)
        return self._descriptor(group)[2] * self.block_bytes + index * self.inode_bytes

    def _walk(self) -> None:
        """Every file that has a name, from the root down."""
        self.paths[_ROOT_INODE] = PurePosixPath("/")
        waiting = [_ROOT_INODE]
        while waiting:
            number = waiting.pop()
            path = self.paths[number]
            mode = self._u16(self._inode_at(number))
            if not stat.S_ISDIR(mode):
                kind = Kind.LINK if stat.S_ISLNK(mode) else Kind.FILE
                self._blocks_of(number, kind, path)
                continue
            pieces = sorted(self._blocks_of(number, Kind.DIRECTORY, path), key=lambda run: run.offset_bytes)
            for name, child in self._names(pieces):
                if child not in self.paths:
                    self.paths[child] = path / name
                    waiting.append(child)

    def _names(self, pieces: list[Owner]) -> Iterator[tuple[str, int]]:
        for piece in pieces:
            for block in range(piece.first_block, piece.first_block + piece.blocks):
                at, end = block * self.block_bytes, (block + 1) * self.block_bytes
                while at < end:
                    number, length, name_length = struct.unpack_from("<IHB", self.data, at)
                    if length < 8 or at + length > end:
                        raise ArtefactError(
                            f"{self.source}: the directory {piece.path} is damaged",
                            hint="fsck it, or build it again",
                        )
                    name = self.data[at + 8 : at + 8 + name_length]
                    if number and name not in (b".", b".."):
                        yield os.fsdecode(name), number
                    at += length

    def _blocks_of(
        self, number: int, kind: Kind, path: PurePosixPath | None, tree: Kind = Kind.EXTENTS
    ) -> list[Owner]:
        """Note an inode's blocks: its data as ``kind``, what leads to them as ``tree``; return those of the data."""
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

    def _extents(self, at: int, kind: Kind, path: PurePosixPath | None, tree: Kind, level: int = 0) -> None:
        magic, entries, _, depth = struct.unpack_from("<4H", self.data, at)
        if magic != _EXTENT_MAGIC or level > _DEEPEST:
            raise ArtefactError(
                f"{self.source}: the extents of {path} are damaged", hint="fsck it, or build it again"
            )
        for entry in range(at + 12, at + 12 + 12 * entries, 12):
            logical, second, third, low = struct.unpack_from("<IHHI", self.data, entry)
            if depth:
                (low, high) = struct.unpack_from("<IH", self.data, entry + 4)
                block = low | high << 32
                self._add(tree, block, 1, path)
                self._extents(block * self.block_bytes, kind, path, tree, level + 1)
            else:
                length = second - _UNWRITTEN if second > _UNWRITTEN else second
                self._add(kind, low | third << 32, length, path, logical * self.block_bytes)

    def _pointers(self, at: int, kind: Kind, path: PurePosixPath | None, tree: Kind) -> None:
        """The classic map: twelve blocks, then one that lists blocks, one that lists such lists, one more of these."""
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
        self._add(tree, block, 1, path)
        per_block = self.block_bytes // 4
        for index, each in enumerate(
            struct.unpack_from(f"<{per_block}I", self.data, block * self.block_bytes)
        ):
            self._pointed(each, depth - 1, logical + index * per_block ** (depth - 1), kind, path, tree)


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1


def _disjoint(runs: list[Owner]) -> Iterator[Owner]:
    """``runs``, sorted by block, without what an earlier one has already: backups lie inside the resize inode's room."""
    reached = 0
    for run in runs:
        skipped = max(0, reached - run.first_block)
        if skipped < run.blocks:
            # Several inodes may share a block of attributes; the first has it.
            yield Owner(run.kind, run.first_block + skipped, run.blocks - skipped, run.path, run.offset_bytes)
            reached = run.first_block + run.blocks
