"""Read the files in an ext4 image that somebody else has made. Each file becomes a member (``members.Member``). This
module reads the image as bytes, and never mounts it. The module checks every number in the image.

The layout is described in the kernel's Documentation/filesystems/ext4 (super.rst, group_descr.rst, inodes.rst,
ifork.rst, directory.rst, attributes.rst). This module refuses an image with unknown features. Its memory use grows with
the number of inodes, and its running time grows with the image's size.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from quickstart.errors import BadInputError
from quickstart.inspect.foreign.attributes import ACCESS, ATTRIBUTES_MAGIC, acl_text, attributes_in
from quickstart.inspect.foreign.members import CHUNK_BYTES, PATH_BYTES, Kind, Member
from quickstart.parse.printable import brief

_SUPERBLOCK_AT, _SUPERBLOCK_BYTES, _MAGIC = 1024, 1024, 0xEF53
_ROOT_INODE, _FIRST_INODE = 2, 11
# s_feature_incompat: filetype, extents, 64bit, flex_bg, csum_seed, largedir.
_UNDERSTOOD = 0x2 | 0x40 | 0x80 | 0x200 | 0x2000 | 0x4000
_INCOMPAT_64BIT = 0x80
_FLAG_EXTENTS, _FLAG_INLINE = 0x80000, 0x10000000
_EXTENT_MAGIC, _DEEPEST, _UNWRITTEN = 0xF30A, 5, 32768
_EXTENT = struct.Struct("<IHHI")
_SMALL_INODE_BYTES = 128
_LINK_BYTES, _FAST_LINK_BYTES = 4095, 59
_NAME_BYTES = 255
_KINDS = {
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFREG: Kind.FILE,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFIFO: Kind.FIFO,
    # Their numbers stay on the disk with them.
    stat.S_IFCHR: Kind.CHARACTER,
    stat.S_IFBLK: Kind.BLOCK,
    stat.S_IFSOCK: Kind.SOCKET,
}
_HINT = "fsck it in a machine of its own"


def damaged(what: str) -> BadInputError:
    """The error that this module raises for a damaged image. The caller prepends the image's name."""
    return BadInputError(f"is no whole ext4 file system: {what}", hint=_HINT)


@dataclass(frozen=True, kw_only=True)
class _Volume:
    fd: int
    size_bytes: int
    block_bytes: int
    blocks: int
    first_block: int
    inodes: int
    inodes_per_group: int
    inode_bytes: int
    descriptor_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """The ``length`` bytes of the image that begin at the byte ``offset``."""
        if offset < 0 or offset + length > self.size_bytes:
            raise damaged(f"it points to byte {offset}, and has {self.size_bytes}")
        data = os.pread(self.fd, length, offset)
        if len(data) != length:
            raise damaged("it was cut while it was read")
        return data

    def block(self, number: int) -> bytes:
        if not self.first_block < number < self.blocks:
            raise damaged(f"it points to block {number} of {self.blocks}")
        return self.read(number * self.block_bytes, self.block_bytes)


@dataclass(frozen=True, kw_only=True)
class _Inode:
    number: int
    raw: bytes
    mode: int
    size_bytes: int
    flags: int

    @property
    def kind(self) -> Kind:
        kind = _KINDS.get(stat.S_IFMT(self.mode))
        if kind is None:
            raise damaged(f"inode {self.number} is of no kind (mode {self.mode:o})")
        return kind


def read_image(fd: int) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """The members of the raw image that is open as ``fd``, parents first, each with its data. Raises BadInputError for
    a damaged image.

    The root directory comes first, with the path "". When a file has several names, its first name gives a member with
    the data. Every further name gives a hard link (a member of the kind HARD) with the same times.
    """
    volume = _volume(fd)
    first_names: dict[int, str] = {}
    seen, blocks = {_ROOT_INODE}, set[int]()
    waiting = [("", _inode(volume, _ROOT_INODE))]
    if waiting[0][1].kind is not Kind.DIRECTORY:
        raise damaged("its root is no directory")
    while waiting:
        path, directory = waiting.pop()
        yield _member(volume, directory, path), iter(())
        for name, number in sorted(_names(volume, directory, blocks).items()):
            child = f"{path}/{os.fsdecode(name)}" if path else os.fsdecode(name)
            if len(os.fsencode(child)) > PATH_BYTES:
                raise BadInputError(
                    f"has a path of more than {PATH_BYTES} bytes: {brief(child)}",
                    hint="move it up in the machine, or remove it",
                )
            inode = _inode(volume, number)
            if inode.kind is Kind.DIRECTORY:
                if number in seen:
                    raise damaged(f"the directory {child!r} has two places")
                seen.add(number)
                waiting.append((child, inode))
            elif number in first_names:
                yield _hard_link(inode, child, first_names[number]), iter(())
            else:
                first_names[number] = child
                member = _member(volume, inode, child)
                yield member, _data(volume, inode, member)


def _volume(fd: int) -> _Volume:
    size_bytes = os.fstat(fd).st_size
    raw = os.pread(fd, _SUPERBLOCK_BYTES, _SUPERBLOCK_AT)
    if len(raw) < _SUPERBLOCK_BYTES or struct.unpack_from("<H", raw, 0x38)[0] != _MAGIC:
        raise damaged("it has no superblock")
    inodes, blocks, first_block, log_size, per_group, inodes_per_group, incompat = (
        struct.unpack_from("<I", raw, at)[0] for at in (0x0, 0x4, 0x14, 0x18, 0x20, 0x28, 0x60)
    )
    inode_bytes, wide = struct.unpack_from("<H", raw, 0x58)[0], bool(incompat & _INCOMPAT_64BIT)
    if incompat & ~_UNDERSTOOD:
        raise BadInputError(
            f"is ext4 with a feature that is not understood (incompat {incompat & ~_UNDERSTOOD:#x})",
            hint="only what mkfs.ext4 of Debian makes by default is",
        )
    blocks |= struct.unpack_from("<I", raw, 0x150)[0] << 32 if wide else 0
    descriptor_bytes = struct.unpack_from("<H", raw, 0xFE)[0] if wide else 32
    sound = log_size <= 6 and per_group and inodes_per_group and first_block <= 1 and blocks > first_block
    sound = sound and _SMALL_INODE_BYTES <= inode_bytes <= 1024 << min(log_size, 6)
    if not sound or descriptor_bytes not in (32, 64) or blocks << (10 + log_size) > size_bytes:
        raise damaged("its superblock is not of a file system of its size")
    if inodes > -(-(blocks - first_block) // per_group) * inodes_per_group:
        raise damaged("it has more inodes than its groups hold")
    return _Volume(
        fd=fd,
        size_bytes=size_bytes,
        block_bytes=1024 << log_size,
        blocks=blocks,
        first_block=first_block,
        inodes=inodes,
        inodes_per_group=inodes_per_group,
        inode_bytes=inode_bytes,
        descriptor_bytes=descriptor_bytes,
    )


@lru_cache(maxsize=4096)
def _table_of(volume: _Volume, group: int) -> int:
    """The first block of a group's inode table."""
    at = (volume.first_block + 1) * volume.block_bytes + group * volume.descriptor_bytes
    raw = volume.read(at, volume.descriptor_bytes)
    high = struct.unpack_from("<I", raw, 0x28)[0] if volume.descriptor_bytes == 64 else 0
    return int(struct.unpack_from("<I", raw, 0x8)[0] | high << 32)


def _inode(volume: _Volume, number: int) -> _Inode:
    if number != _ROOT_INODE and not _FIRST_INODE <= number <= volume.inodes:
        raise damaged(f"a name leads to inode {number} of {volume.inodes}")
    group, index = divmod(number - 1, volume.inodes_per_group)
    at = _table_of(volume, group) * volume.block_bytes + index * volume.inode_bytes
    raw = volume.read(at, volume.inode_bytes)
    mode, flags = struct.unpack_from("<H", raw, 0)[0], struct.unpack_from("<I", raw, 0x20)[0]
    low, high = struct.unpack_from("<I", raw, 0x4)[0], struct.unpack_from("<I", raw, 0x6C)[0]
    return _Inode(number=number, raw=raw, mode=mode, size_bytes=low | high << 32, flags=flags)


def _hard_link(inode: _Inode, path: str, target: str) -> Member:
    mtime_ns, ctime_s = _times(inode.raw)
    return Member(path=path, kind=Kind.HARD, target=target, mtime_ns=mtime_ns, ctime_s=ctime_s)


def _member(volume: _Volume, inode: _Inode, path: str) -> Member:
    raw, kind = inode.raw, inode.kind
    uid, gid = (
        struct.unpack_from("<H", raw, low)[0] | struct.unpack_from("<H", raw, high)[0] << 16
        for low, high in ((0x2, 0x78), (0x18, 0x7A))
    )
    mtime_ns, ctime_s = _times(raw)
    segments = (
        tuple((offset, length) for offset, length, _ in _pieces(volume, inode)) if kind is Kind.FILE else ()
    )
    attributes = _attributes(volume, inode) if kind in (Kind.FILE, Kind.DIRECTORY) else {}
    return Member(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(inode.mode),
        uid=uid,
        gid=gid,
        mtime_ns=mtime_ns,
        ctime_s=ctime_s,
        size_bytes=inode.size_bytes if kind is Kind.FILE else 0,
        segments=segments,
        target=_target(volume, inode, path) if kind is Kind.LINK else "",
        # QuickStart does not pack a file with one of these attributes, because the initramfs cannot carry the attribute.
        xattrs={name: value for name, value in attributes.items() if name.startswith("security.")},
        acls={"access": acl_text(attributes[ACCESS])} if ACCESS in attributes else {},
    )


def _extra_bytes(raw: bytes) -> int:
    """The number of bytes that a large inode uses for fields after its first 128 bytes (i_extra_isize)."""
    if len(raw) < _SMALL_INODE_BYTES + 4:
        return 0
    extra: int = struct.unpack_from("<H", raw, _SMALL_INODE_BYTES)[0]
    return extra if _SMALL_INODE_BYTES + extra <= len(raw) else 0


def _times(raw: bytes) -> tuple[int, int]:
    """The modification time of an inode in nanoseconds, and its change time in seconds."""
    return _time_ns(raw, 0x10, 0x88), _time_ns(raw, 0xC, 0x84) // 10**9


def _time_ns(raw: bytes, at: int, extra_at: int) -> int:
    seconds: int = struct.unpack_from("<i", raw, at)[0]
    if _SMALL_INODE_BYTES + _extra_bytes(raw) < extra_at + 4:
        return seconds * 10**9
    extra: int = struct.unpack_from("<I", raw, extra_at)[0]
    return (seconds + ((extra & 3) << 32)) * 10**9 + min(extra >> 2, 10**9 - 1)


def _attributes(volume: _Volume, inode: _Inode) -> dict[str, bytes]:
    """The inode's extended attributes."""
    raw, found = inode.raw, {}
    begin = _SMALL_INODE_BYTES + _extra_bytes(raw)
    if _extra_bytes(raw) and raw[begin : begin + 4] == ATTRIBUTES_MAGIC:
        found.update(attributes_in(raw[begin + 4 :], 0))
    if number := struct.unpack_from("<I", raw, 0x68)[0] | struct.unpack_from("<H", raw, 0x76)[0] << 32:
        block = volume.block(number)
        if block[:4] != ATTRIBUTES_MAGIC:
            raise damaged(f"inode {inode.number} has no attributes where it says")
        found.update(attributes_in(block, 32))
    return found


def _target(volume: _Volume, inode: _Inode, path: str) -> str:
    size = inode.size_bytes
    if not 0 < size <= _LINK_BYTES:
        raise damaged(f"the link {path!r} has {size} bytes")
    if inode.flags & _FLAG_EXTENTS:
        target = b"".join(_data(volume, inode, None))[:size]
    elif size <= _FAST_LINK_BYTES:
        target = inode.raw[0x28 : 0x28 + size]
    else:
        target = b""
    if len(target) != size or b"\0" in target:
        raise damaged(f"the link {path!r} leads nowhere")
    return os.fsdecode(target)


def _data(volume: _Volume, inode: _Inode, member: Member | None) -> Iterator[bytes]:
    if member is not None and not member.segments:
        return
    for _, length, at in _pieces(volume, inode):
        end = at + length
        while at < end:
            chunk = volume.read(at, min(CHUNK_BYTES, end - at))
            at += len(chunk)
            yield chunk


def _pieces(volume: _Volume, inode: _Inode) -> Iterator[tuple[int, int, int]]:
    """The segments of the file that have data, each as (offset in the file, length, offset in the image), in bytes. The
    result does not have holes, allocated blocks that were never written, and blocks after the file's end.
    """
    if not inode.size_bytes:
        return
    if not inode.flags & _FLAG_EXTENTS or inode.flags & _FLAG_INLINE:
        raise BadInputError(
            f"has an inode ({inode.number}) whose blocks are not listed as extents",
            hint="copy that file in the machine, and remove the old one",
        )
    for logical, length, physical in _extents(volume, inode, inode.raw[0x28:0x64], 0, None, set()):
        begin = logical * volume.block_bytes
        end = min(begin + length * volume.block_bytes, inode.size_bytes)
        if end > begin:
            yield begin, end - begin, physical * volume.block_bytes


def _extents(
    volume: _Volume, inode: _Inode, node: bytes, level: int, depth_wanted: int | None, seen: set[int]
) -> Iterator[tuple[int, int, int]]:
    """The file's extents in order, each as (first block in the file, number of blocks, first block in the image). The
    result does not have extents that are allocated but were never written. Raises BadInputError when an extent block is
    reached twice.
    """
    magic, entries, _, depth = struct.unpack_from("<4H", node, 0)
    fits = 12 + 12 * entries <= len(node)
    if magic != _EXTENT_MAGIC or not fits or depth > _DEEPEST or depth_wanted not in (None, depth):
        raise damaged(f"the extents of inode {inode.number}")
    free_from = 0
    for at in range(12, 12 + 12 * entries, 12):
        logical, length, high, low = _EXTENT.unpack_from(node, at)
        if depth:
            low, high = struct.unpack_from("<IH", node, at + 4)
            number = low | high << 32
            if number in seen:
                raise damaged(f"the extents of inode {inode.number} lead in a circle")
            seen.add(number)
            below = _extents(volume, inode, volume.block(number), level + 1, depth - 1, seen)
        else:
            number = low | high << 32
            written = length <= _UNWRITTEN
            length -= 0 if written else _UNWRITTEN
            if not length or not volume.first_block < number <= volume.blocks - length:
                raise damaged(f"an extent of inode {inode.number}")
            below = iter([(logical, length, number)] if written else ())
        for piece in below:
            if piece[0] < free_from:
                raise damaged(f"the extents of inode {inode.number} overlap")
            free_from = piece[0] + piece[1]
            yield piece


def _names(volume: _Volume, directory: _Inode, seen: set[int]) -> dict[bytes, int]:
    """The names in a directory, with their inode numbers. ``seen`` has the places of all directory blocks that were
    read so far. The function adds the places of this directory's blocks to ``seen``, because each block may belong to
    only one directory. Raises BadInputError for a name that the kernel would not allow.
    """
    found: dict[bytes, int] = {}
    dots: dict[bytes, int] = {}
    if directory.size_bytes % volume.block_bytes or directory.size_bytes > volume.size_bytes:
        raise damaged(f"the directory in inode {directory.number} has {directory.size_bytes} bytes")
    for offset, length, at in _pieces(volume, directory):
        for begin in range(0, length, volume.block_bytes):
            if at + begin in seen:
                raise damaged(f"the directory in inode {directory.number} has blocks of others")
            seen.add(at + begin)
            block = volume.read(at + begin, volume.block_bytes)
            for name, number in _entries(block, directory.number):
                if name in (b".", b".."):
                    if name in dots or offset + begin:
                        raise _bad_name(directory.number, name)
                    dots[name] = number
                    continue
                if not name or b"/" in name or b"\0" in name or len(name) > _NAME_BYTES or name in found:
                    raise _bad_name(directory.number, name)
                found[name] = number
    if dots.get(b".") != directory.number:
        raise damaged(f"the directory in inode {directory.number} does not know itself")
    return found


def _bad_name(number: int, name: bytes) -> BadInputError:
    return BadInputError(
        f"has a name that no file can have, or has twice, in its directory of inode {number}: {name!r}",
        hint="it was made by hand, or is damaged; nothing was taken from it",
    )


def _entries(block: bytes, inode: int) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at < len(block):
        number, length, name_length = struct.unpack_from("<IHB", block, at)
        # In a block of 64 KiB, the length of the whole block does not fit into the field. The field is then 65535 or
        # 0 (ext4_rec_len_from_disk).
        if len(block) == 65536 and length in (0, 65535):
            length = 65536
        if length < 8 + name_length or length % 4 or at + length > len(block):
            raise damaged(f"the directory in inode {inode}")
        if number:
            yield block[at + 8 : at + 8 + name_length], number
        at += length
