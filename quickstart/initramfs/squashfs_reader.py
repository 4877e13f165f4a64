"""Read part B of the initramfs when part B is a SquashFS image. We use a reader of our own, because the image may be
untrusted.

unsquashfs would write the image's content into a directory of this host, with devices and set-user-ID files, without
limits on number and size. This reader writes nothing and obeys the limits in ``Limits``. It returns a file's content in
pieces of one block.

The format is version 4.0, little-endian (the kernel's Documentation/filesystems/squashfs.rst and
fs/squashfs/squashfs_fs.h). An image has a superblock, then data blocks, and then tables of inodes, directories and
fragments. The tables consist of metadata blocks of at most 8 KiB. The only supported compression is LZ4, which our
images use. The reader refuses an image with extended attributes.
"""

from __future__ import annotations

import functools
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import lz4.block

from quickstart.errors import ArtefactError
from quickstart.initramfs import squashfs_exact
from quickstart.initramfs.newc import PATH_MAX
from quickstart.initramfs.newc_reader import Limits
from quickstart.initramfs.squashfs_cursor import Cursor, name_at, target_at
from quickstart.initramfs.squashfs_exact import (
    BLOCK_LENGTH_MASK,
    METADATA_BYTES,
    Blocks,
    Entry,
    Inodes,
    Mark,
    Order,
    number_of,
)  # fmt: skip

# Returns at most this many bytes from a place in the image, and fewer only at the image's end.
Reader = Callable[[int, int], bytes]

# Magic, inodes, time, block size, fragments; compression, log of the block size, flags, owners, version (2 numbers).
# Then come the places of the root's inode, of the end, and of the tables of owners, attributes, inodes, directories,
# fragments and exports.
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_LZ4 = 5
# mksquashfs's default, 128 KiB.
_BLOCK_LOG = 17
# A byte of a match's length stands for at most this many unpacked bytes (lz4's block format).
_MOST_LZ4_RATIO = 255
_MOST_SHARED_BYTES = 16 << 20
_NO_TABLE = 0xFFFFFFFFFFFFFFFF
_METADATA_HEAD = struct.Struct("<H")
_METADATA_PLAIN = 0x8000
_DATA_PLAIN = 1 << 24
_DATA_BITS = 25
_MODE_BITS = 0o7777
_NO_FRAGMENT = 0xFFFFFFFF
_FRAGMENTS_IN_BLOCK = 512
_FRAGMENT = struct.Struct("<QII")
_PLACE = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
# Type, mode, owner, group, time, number.
_INODE = struct.Struct("<4H2I")
# A directory's inode: block of its list, links, length of the list, place in that block, parent. The long form:
# links, length, block, parent, index, place, attributes.
_DIRECTORY = struct.Struct("<IIHHI")
_LONG_DIRECTORY = struct.Struct("<IIIIHHI")
# A file's inode: place of its blocks, fragment, place in the fragment, size. The long form also has holes, links and
# attributes.
_FILE = struct.Struct("<IIII")
_LONG_FILE = struct.Struct("<QQQIIII")
# The length of a directory's list is this much more than its bytes, for "." and "..".
_LIST_EXCESS = 3
_RUN = struct.Struct("<3I")
# Position in the list, metadata block, length of the name less one.
_MARK = struct.Struct("<3I")
_MOST_IN_RUN = 256
_ENTRY = struct.Struct("<HhHH")
_TYPES = {
    1: stat.S_IFDIR, 2: stat.S_IFREG, 3: stat.S_IFLNK, 4: stat.S_IFBLK, 5: stat.S_IFCHR, 6: stat.S_IFIFO, 7: stat.S_IFSOCK,
}  # fmt: skip
_LONG_TYPES = 7
_HINT = "build the artefact again"


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """A file in a SquashFS image. ``name`` is relative to the image's root, ``mode`` is a complete st_mode, and
    ``target`` is the target of a link. ``mtime_s`` is the time of the last change, in seconds since 1970. ``place``
    says where the content of a regular file lies in the image. Files with the same place have the same content
    (mksquashfs stores equal content once).
    """

    name: str
    mode: int
    size_bytes: int
    target: str
    place: tuple[int, ...] = ()
    mtime_s: int = 0


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The place of a regular file's data. The file's blocks begin at ``begin`` in the image. The end of the file may
    be in the fragment block ``fragment``, at the offset ``fragment_at``. ``sizes`` is the place of the file's list of
    block sizes in the inode table, as (metadata block, offset).
    """

    begin: int
    size_bytes: int
    fragment: int
    fragment_at: int
    sizes: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class _Inode:
    """An inode. ``target`` is the target of a link, and ``content`` is the place of a regular file's data. ``list_at``
    has three numbers: the block, the offset in the block, and the length in bytes of the list of a directory's
    entries. The index of this list has ``marks`` entries and begins at ``index_at``.
    """

    number: int
    kind: int
    mode: int
    mtime_s: int
    target: bytes = b""
    content: _Content | None = None
    list_at: tuple[int, int, int] = (0, 0, 0)
    marks: int = 0
    index_at: tuple[int, int] = (0, 0)


def walk_image(
    read: Reader, size_bytes: int, limits: Limits | None = None
) -> Iterator[tuple[ImageFile, Iterator[bytes]]]:
    """Yield the files in an image of ``size_bytes`` bytes, sorted by name. A directory comes before its entries.

    With each file, the function yields an iterator, which yields a regular file's content in pieces. The caller may
    skip these pieces. Raises ArtefactError for an image that is damaged, exceeds ``limits``, or is not as mksquashfs
    writes it (squashfs_exact.py). Raises ArtefactError also for another compression than LZ4, for extended attributes,
    and for files that do not belong to root.
    """
    with _named():
        for file, pieces in _Image(read, size_bytes, limits or Limits()).walk():
            yield file, _named_pieces(pieces)


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except (struct.error, lz4.block.LZ4BlockError, ValueError) as error:
        raise ArtefactError(f"the image of part B cannot be read: {error}", hint=_HINT) from error


def _named_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    with _named():
        yield from pieces


class _Image:
    def __init__(self, read: Reader, size_bytes: int, limits: Limits) -> None:
        self._read, self._size_bytes = read, size_bytes
        self._left_bytes, self._left_files = limits.unpacked_bytes, limits.members
        self._left_names_bytes = limits.names_bytes
        head = _SUPERBLOCK.unpack(self._bytes(0, _SUPERBLOCK.size))
        magic, _, _, self._block_bytes, self._fragments, way, log, _, owners, major, _ = head[:11]
        self._root, _, owners_at, attributes_at, self._inodes_at, *rest = head[11:]
        self._directories_at, self._fragments_at, _ = rest
        if magic != _MAGIC or major != 4:
            raise ValueError("it is no SquashFS 4 image")
        if way != _LZ4:
            raise ValueError(f"it is compressed by the way {way}, and not by LZ4 ({_LZ4})")
        if log != _BLOCK_LOG or self._block_bytes != 1 << log:
            raise ValueError(f"it has blocks of {self._block_bytes} bytes")
        if attributes_at != _NO_TABLE:
            # A capability of a program is one of them.
            raise ValueError("it has extended attributes, and build packs none")
        self._metadata = functools.lru_cache(maxsize=64)(self._read_metadata)
        self._fragment = functools.lru_cache(maxsize=8)(self._read_fragment)
        self._left_fragments_bytes = limits.unpacked_bytes
        # The limit for the bytes of different contents, without holes. It is a little higher, because several files
        # may share a block.
        self._left_stored_bytes = _MOST_LZ4_RATIO * size_bytes + _MOST_SHARED_BYTES
        self._places: set[tuple[int, ...]] = set()
        (table,) = _PLACE.unpack(self._bytes(owners_at, _PLACE.size))
        squashfs_exact.check_owners(owners, self._metadata(table)[0])

    def walk(self) -> Iterator[tuple[ImageFile, Iterator[bytes]]]:
        # The unfinished lists, with the names of their directories. This stack replaces recursion, and a loop of
        # directories ends at the limits for files and names.
        root, inodes, blocks = self._inode(*_split(self._root)), Inodes(), Blocks()
        inodes.add(root.number, self._root, is_directory=True)
        stack = [(b"", self._entries(root))]
        while stack:
            above, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            name = above + entry.name
            inode = self._inode(entry.block, entry.offset)
            if (inode.number, inode.kind) != (entry.number, entry.kind):
                raise ValueError("a directory's list gives another number or type than the inode has")
            inodes.add(inode.number, entry.reference, is_directory=stat.S_ISDIR(inode.mode))
            self._left_files -= 1
            self._left_names_bytes -= len(name) + len(inode.target)
            if self._left_files < 0 or self._left_names_bytes < 0 or len(name) >= PATH_MAX:
                raise ValueError("it has too many files, or names that are too long")
            content = inode.content
            place = self._note_blocks(content, blocks) if content else ()
            size_bytes = content.size_bytes if content else len(inode.target)
            yield (
                ImageFile(
                    name=_decode(name),
                    mode=inode.mode,
                    size_bytes=size_bytes,
                    target=_decode(inode.target),
                    place=place,
                    mtime_s=inode.mtime_s,
                ),
                self._pieces(content, place) if content else iter(()),
            )
            if stat.S_ISDIR(inode.mode):
                stack.append((name + b"/", self._entries(inode)))
        blocks.end()

    # ------------------------------------------------------------ tables

    def _bytes(self, at: int, count: int) -> bytes:
        data = self._read(at, count) if 0 <= at <= self._size_bytes - count else b""
        if len(data) != count:
            raise ValueError(f"it is cut: {count} bytes at {at} are not there")
        return data

    def _read_metadata(self, at: int) -> tuple[bytes, int]:
        """The content of the metadata block at the position ``at``, and the position of the next block."""
        (head,) = _METADATA_HEAD.unpack(self._bytes(at, _METADATA_HEAD.size))
        length = head & (_METADATA_PLAIN - 1)
        data = self._bytes(at + _METADATA_HEAD.size, length)
        if not head & _METADATA_PLAIN:
            data = lz4.block.decompress(data, uncompressed_size=METADATA_BYTES)
        if not 0 < len(data) <= METADATA_BYTES:
            raise ValueError(f"a block of {len(data)} bytes in a table")
        return data, at + _METADATA_HEAD.size + length

    def _read_fragment(self, number: int) -> bytes:
        """The content of the fragment block ``number``, which has the ends of several files."""
        # This is counted before unpacking, because the block may be far smaller in the image.
        self._left_fragments_bytes -= self._block_bytes
        if self._left_fragments_bytes < 0:
            raise ValueError("its files lie in fragments to and fro")
        return self._block(*self._fragment_place(number))

    def _fragment_place(self, number: int) -> tuple[int, int]:
        """The place of the fragment block ``number`` in the image, and its size."""
        if number >= self._fragments:
            raise ValueError(f"there is no fragment {number}")
        place = self._fragments_at + _PLACE.size * (number // _FRAGMENTS_IN_BLOCK)
        (table,) = _PLACE.unpack(self._bytes(place, _PLACE.size))
        cursor = Cursor(self._metadata, table, number % _FRAGMENTS_IN_BLOCK * _FRAGMENT.size)
        begin, size, _ = cursor.unpack(_FRAGMENT)
        return begin, size

    def _block(self, at: int, size: int) -> bytes:
        """The content of the data block at ``at``. ``size`` is the block's size in the image, with a flag
        that says whether the block is uncompressed.
        """
        length = size & BLOCK_LENGTH_MASK
        if length > self._block_bytes or size >> _DATA_BITS:
            raise ValueError(f"a block of {length} bytes")
        data = self._bytes(at, length)
        if not size & _DATA_PLAIN:
            data = lz4.block.decompress(data, uncompressed_size=self._block_bytes)
        return data

    # ------------------------------------------------------------ inodes and directories

    def _inode(self, block: int, offset: int) -> _Inode:
        cursor = Cursor(self._metadata, self._inodes_at + block, offset)
        kind, bits, _, _, mtime_s, number = cursor.unpack(_INODE)
        is_long = kind > _LONG_TYPES
        kind -= _LONG_TYPES if is_long else 0
        # The kernel adds the type to the mode, and another type would be both.
        if kind not in _TYPES or bits & ~_MODE_BITS:
            raise ValueError(f"a file of the type {kind} and the mode {bits:o}")
        mode = _TYPES[kind] | bits
        inode = functools.partial(_Inode, number=number, kind=kind, mode=mode, mtime_s=mtime_s)
        if stat.S_ISDIR(mode) and is_long:
            _, length, at, _, marks, place, _ = cursor.unpack(_LONG_DIRECTORY)
            return inode(list_at=(at, place, length), marks=marks, index_at=cursor.place)
        if stat.S_ISDIR(mode):
            at, _, length, place, _ = cursor.unpack(_DIRECTORY)
            return inode(list_at=(at, place, length))
        if stat.S_ISLNK(mode):
            return inode(target=target_at(cursor))
        return inode(content=self._content(cursor, is_long) if stat.S_ISREG(mode) else None)

    def _content(self, cursor: Cursor, is_long: bool) -> _Content:
        if is_long:
            begin, size_bytes, _, _, fragment, fragment_at, _ = cursor.unpack(_LONG_FILE)
        else:
            begin, fragment, fragment_at, size_bytes = cursor.unpack(_FILE)
        if size_bytes > self._left_bytes:
            raise ValueError(
                f"a file of {size_bytes} bytes, where no more than {self._left_bytes} can be left"
            )
        self._left_bytes -= size_bytes
        return _Content(
            begin=begin, size_bytes=size_bytes, fragment=fragment, fragment_at=fragment_at, sizes=cursor.place
        )

    def _entries(self, directory: _Inode) -> Iterator[Entry]:
        if not stat.S_ISDIR(directory.mode):
            raise ValueError("its root is no directory")
        at, place, length = directory.list_at
        cursor = Cursor(self._metadata, self._directories_at + at, place)
        order = Order(self._marks(directory), place)
        left = whole = length - _LIST_EXCESS
        while left > 0:
            position, (block_at, offset_at) = whole - left, cursor.settled()
            count, block, base = cursor.unpack(_RUN)
            if count >= _MOST_IN_RUN:
                raise ValueError(f"a directory's list with a run of {count + 1}")
            left -= _RUN.size
            for each in range(count + 1):
                offset, delta, kind, name_bytes = cursor.unpack(_ENTRY)
                name = name_at(cursor, name_bytes)
                left -= _ENTRY.size + len(name)
                if each == 0:
                    order.begin_run(position, (block_at - self._directories_at, offset_at), name)
                order.add(name)
                yield Entry(name, block, offset, kind, number_of(base, delta))
        if left < 0:
            raise ValueError("a directory's list goes on behind its end")
        order.end()

    def _marks(self, directory: _Inode) -> Iterator[Mark]:
        cursor = Cursor(self._metadata, *directory.index_at)
        for _ in range(directory.marks):
            position, block, name_bytes = cursor.unpack(_MARK)
            yield Mark(position, block, name_at(cursor, name_bytes))

    # ------------------------------------------------------------ content

    def _blocks(self, content: _Content) -> Iterator[tuple[int, int]]:
        """The place and size of each block of a file, in order, but not of its fragment. A hole has the size 0."""
        whole, rest = divmod(content.size_bytes, self._block_bytes)
        sizes, at = Cursor(self._metadata, *content.sizes), content.begin
        for _ in range(whole + bool(rest and content.fragment == _NO_FRAGMENT)):
            (size,) = sizes.unpack(_SIZE)
            yield at, size
            at += size & BLOCK_LENGTH_MASK

    def _note_blocks(self, content: _Content, blocks: Blocks) -> tuple[int, ...]:
        """Record the blocks of a file, and return the place of its content (``ImageFile.place``)."""
        found = list(self._blocks(content))
        for place, size in found:
            if size:
                blocks.add(place, size)
        if content.size_bytes % self._block_bytes and content.fragment != _NO_FRAGMENT:
            blocks.add(*self._fragment_place(content.fragment))
        end = (content.size_bytes, content.fragment, content.fragment_at)
        return (content.begin, *end, *(size for _, size in found))

    def _pieces(self, content: _Content, whole: tuple[int, ...]) -> Iterator[bytes]:
        left = content.size_bytes
        if whole not in self._places:
            self._places.add(whole)
            holes = sum(not size for _, size in self._blocks(content))
            self._left_stored_bytes -= max(left - holes * self._block_bytes, 0)
            if self._left_stored_bytes < 0:
                raise ValueError("many of its files share some of their blocks")
        for place, size in self._blocks(content):
            wanted = min(left, self._block_bytes)
            # A hole has no block.
            data = self._block(place, size) if size else bytes(wanted)
            if len(data) != wanted:
                raise ValueError(f"a block of {len(data)} bytes, and not {wanted}")
            left -= wanted
            yield data
        if left:
            data = self._fragment(content.fragment)[content.fragment_at : content.fragment_at + left]
            if len(data) != left:
                raise ValueError("a fragment is cut")
            yield data


def _split(reference: int) -> tuple[int, int]:
    """The two numbers in a reference to an inode: the block of the inode table, and the offset in this block."""
    return reference >> 16, reference & 0xFFFF


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
