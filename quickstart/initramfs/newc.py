"""Write archives in the newc cpio format. (`newc_reader` reads them.)

The sources for this format are Documentation/driver-api/early-userspace/buffer-format.rst and init/initramfs.c of the
kernel. A member begins with a header of 110 bytes (magic ``070701`` and 13 fields of eight hexadecimal digits). The
name with its NUL and then the data follow. Zeros after the name and after the data let the next part begin at a
multiple of 4 bytes. A member named ``TRAILER!!!`` ends an archive. More archives may follow after zeros.

Hard links are members with the same inode and an ``nlink`` above 1. The kernel makes every later name a link to the
first name, and does not truncate the file (maybe_link and do_name in init/initramfs.c). So this module writes the
content with the first name, and size 0 with all other names. GNU cpio and BusyBox create a name with size 0 only after
they have read the name with the content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from quickstart.errors import ArtefactError, BadInputError

MAGIC = b"070701"
HEADER_BYTES = 110
TRAILER = "TRAILER!!!"
ARCHIVE_ALIGNMENT = 512
# init/initramfs.c silently skips a member whose name (with its NUL) or link target is longer.
PATH_MAX = 4096
MAX_FIELD = 0xFFFFFFFF
CHUNK_BYTES = 1 << 20

_TYPES = frozenset(
    {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK}
)


class Sink(Protocol):
    """The destination of an archive. A sink is a buffered stream, or a compressor that writes into a stream."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, kw_only=True)
class CpioEntry:
    """A member of an archive that this module writes.

    ``name`` is relative to the archive's root, without ``.``, ``..`` or empty components. Bytes that are not UTF-8 are
    surrogate-escaped. ``mode`` is a complete ``st_mode``. ``data`` is a regular file's content or a symlink's target,
    and is empty for all other types. A ``Path`` in ``data`` is a host file, which `write_archive` reads while it writes
    the archive. ``mtime`` is in seconds since 1970. ``rdev_major`` and ``rdev_minor`` are used only for device nodes.
    ``names`` is the number of names that a regular file has in the archive. The entry for the first name has the data.
    The entry for each other name is made by ``hard_link``, and its ``link_to`` is the first name.
    """

    name: str
    mode: int
    data: bytes | Path = b""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    rdev_major: int = 0
    rdev_minor: int = 0
    names: int = 1
    link_to: str = ""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The 13 numbers of a member's header, in the order of the format."""

    inode: int
    mode: int
    uid: int
    gid: int
    nlink: int
    mtime: int
    size: int
    dev_major: int
    dev_minor: int
    rdev_major: int
    rdev_minor: int
    name_bytes: int
    checksum: int

    def pack(self) -> bytes:
        numbers = (
            self.inode, self.mode, self.uid, self.gid, self.nlink, self.mtime, self.size,
            self.dev_major, self.dev_minor, self.rdev_major, self.rdev_minor, self.name_bytes, self.checksum,
        )  # fmt: skip
        return MAGIC + b"".join(b"%08X" % number for number in numbers)


def directory(path: PurePosixPath | str, mode: int = 0o755) -> CpioEntry:
    """The entry for a directory. ``mode`` has the permission bits."""
    return CpioEntry(name=str(path), mode=stat.S_IFDIR | mode)


def regular(path: PurePosixPath | str, data: bytes | Path, mode: int) -> CpioEntry:
    """The entry for a regular file with the given bytes, or with the content of a host file. ``mode`` has the
    permission bits.
    """
    return CpioEntry(name=str(path), mode=stat.S_IFREG | mode, data=data)


def hard_link(path: PurePosixPath | str, first: CpioEntry) -> CpioEntry:
    """The entry for another name of the regular file ``first``. The entry of ``first`` must come earlier in the
    archive, and its ``names`` must be above 1.
    """
    return replace(first, name=str(path), data=b"", link_to=first.name)


def symlink(path: PurePosixPath | str, target: PurePosixPath | str) -> CpioEntry:
    """The entry for a symbolic link. The mode of the link is 0777, because Linux shows this mode for every link."""
    return CpioEntry(name=str(path), mode=stat.S_IFLNK | 0o777, data=_encode(str(target)))


def char_device(path: PurePosixPath | str, mode: int, major: int, minor: int) -> CpioEntry:
    """The entry for a character device. ``mode`` has the permission bits."""
    return CpioEntry(name=str(path), mode=stat.S_IFCHR | mode, rdev_major=major, rdev_minor=minor)


# ---------------------------------------------------------------- writing


def _encode(name: str) -> bytes:
    """The name in UTF-8. The bytes do not depend on the host's locale."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadInputError(
            f"{name!r} is no file name: {error.reason}", hint="escape bytes as U+DC80 to U+DCFF"
        ) from error


def write_archive(stream: Sink, entries: Iterable[CpioEntry]) -> int:
    """Write one archive to ``stream``, padded to a multiple of 512 bytes. Return the number of bytes written.

    Two calls with equal entries always write the same bytes. The function numbers inodes from 1 in the order of the
    entries, and hard links share an inode. ``nlink`` is 2 for a directory, and ``names`` for any other entry. When an
    error occurs, the bytes that were already written stay in the stream.

    Raises BadInputError for an entry that the kernel would not unpack correctly. Such an entry has a parent directory
    that does not come earlier in the archive, or is a hard link without a matching earlier file. An entry with a name
    that is a duplicate, absolute, not normalised or too long also leads to BadInputError. An entry with data that do
    not match its type, or with 4 GiB or more of data, leads to BadInputError, too.

    Raises ArtefactError for a host file that cannot be read, or whose size changes while it is read.
    """
    written = 0
    is_directory: dict[str, bool] = {}
    linked: dict[str, tuple[int, CpioEntry]] = {}
    for number, entry in enumerate(entries, start=1):
        check_name(entry.name, is_directory)
        check_numbers(entry)
        _check_data(entry)
        is_directory[entry.name] = stat.S_ISDIR(entry.mode)
        inode = _linked_inode(entry, linked) if entry.link_to else number
        if entry.names > 1 and not entry.link_to:
            linked[entry.name] = number, entry
        written += _write_entry(stream, entry, inode)
    end = TRAILER_HEAD
    end += bytes(-(written + len(end)) % ARCHIVE_ALIGNMENT)
    stream.write(end)
    return written + len(end)


def check_name(name: str, is_directory: dict[str, bool]) -> None:
    """Raise BadInputError for a name that ``write_archive`` does not accept. ``is_directory`` says for each earlier
    name of the archive whether it is the name of a directory.
    """
    parts = name.split("/")
    if name.startswith("/"):
        raise BadInputError(f"cpio entry {name!r} has an absolute name", hint="give it relative to the root")
    if name == TRAILER or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BadInputError(f"cpio entry {name!r} has a name that an archive cannot hold", hint="rename it")
    if len(_encode(name)) + 1 > PATH_MAX:
        raise BadInputError(
            f"cpio entry {name[:60]!r}… has a name longer than {PATH_MAX - 1} bytes",
            hint="the kernel would leave it out silently; shorten the path",
        )
    if name in is_directory:
        raise BadInputError(f"cpio entry {name!r} is there twice", hint="give every name once")
    parent = "/".join(parts[:-1])
    if parent and not is_directory.get(parent, False):
        what = "is not a directory" if parent in is_directory else "has not been written before it"
        raise BadInputError(
            f"cpio entry {name!r}: its parent {parent!r} {what}",
            hint="write the real directories first, from the top down",
        )


def check_numbers(entry: CpioEntry) -> None:
    """Raise BadInputError for a mode without a file type, and for a number that a header cannot hold."""
    if stat.S_IFMT(entry.mode) not in _TYPES or not 0 <= entry.mode <= 0o177777:
        raise BadInputError(
            f"cpio entry {entry.name!r} has mode {entry.mode:#o}, which names no file type",
            hint="give st_mode with its type bits",
        )
    for what in ("uid", "gid", "mtime", "rdev_major", "rdev_minor", "names"):
        value: int = getattr(entry, what)
        if not 0 <= value <= MAX_FIELD:
            raise BadInputError(
                f"cpio entry {entry.name!r}: {what} {value} does not fit 32 bits",
                hint="newc holds 0 to 4294967295",
            )


def _linked_inode(entry: CpioEntry, linked: dict[str, tuple[int, CpioEntry]]) -> int:
    inode, first = linked.get(entry.link_to, (0, None))
    if first is None or entry != hard_link(entry.name, first):
        raise BadInputError(
            f"cpio entry {entry.name!r} is a hard link to {entry.link_to!r}, which is no earlier file like it",
            hint="build it with hard_link()",
        )
    return inode


def _check_data(entry: CpioEntry) -> None:
    if stat.S_ISREG(entry.mode):
        return
    if entry.names != 1:
        raise BadInputError(
            f"cpio entry {entry.name!r} has {entry.names} names, but mode {entry.mode:#o} is no regular file",
            hint="only a regular file has hard links here",
        )
    if stat.S_ISLNK(entry.mode):
        target = entry.data
        if isinstance(target, Path) or not 0 < len(target) < PATH_MAX or b"\0" in target:
            raise BadInputError(
                f"cpio entry {entry.name!r}: a symlink's target has 1 to {PATH_MAX - 1} bytes and no NUL",
                hint="build it with symlink()",
            )
    elif entry.data != b"":
        raise BadInputError(
            f"cpio entry {entry.name!r} has data, but mode {entry.mode:#o} is no regular file",
            hint="leave data empty",
        )


def _write_entry(stream: Sink, entry: CpioEntry, inode: int) -> int:
    written = 0
    for chunk in _member_bytes(entry, inode):
        stream.write(chunk)
        written += len(chunk)
    padding = bytes(-written % 4)
    stream.write(padding)
    return written + len(padding)


def _member_bytes(entry: CpioEntry, inode: int) -> Iterator[bytes]:
    if isinstance(entry.data, Path):
        yield from _host_file_bytes(entry, entry.data, inode)
    else:
        yield head_of(entry, inode, len(entry.data))
        yield entry.data


def _host_file_bytes(entry: CpioEntry, source: Path, inode: int) -> Iterator[bytes]:
    # This is checked before the file is opened, because opening a FIFO would wait for its other end for ever.
    if not source.is_file():
        raise ArtefactError(
            f"{source}, packed as {entry.name!r}, is not a regular file", hint="build the image again"
        )
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield head_of(entry, inode, size)
            remaining = size
            while chunk := file.read(min(CHUNK_BYTES, remaining)):
                remaining -= len(chunk)
                yield chunk
            changed = remaining > 0 or file.read(1) != b""
    except OSError as error:
        raise ArtefactError(
            f"{source}, packed as {entry.name!r}, cannot be read: {error.strerror}",
            hint="check its permissions",
        ) from error
    if changed:
        raise ArtefactError(
            f"{source}, packed as {entry.name!r}, changed its size while it was read (was {size} bytes)",
            hint="let nothing write to the image while it is packed",
        )


def head_of(entry: CpioEntry, inode: int, size: int) -> bytes:
    """The header, the name with its NUL, and the zeros that pad them. The number of zeros depends only on the length
    of the name, because every member begins at a multiple of 4 bytes.
    """
    if size > MAX_FIELD:
        raise BadInputError(
            f"cpio entry {entry.name!r} has {size} bytes; newc holds less than 4 GiB",
            hint="exclude the file by a rule of the profile",
        )
    name = _encode(entry.name) + b"\0"
    header = Header(
        inode=inode,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        nlink=2 if stat.S_ISDIR(entry.mode) else entry.names,
        mtime=entry.mtime,
        size=size,
        dev_major=0,
        dev_minor=0,
        rdev_major=entry.rdev_major,
        rdev_minor=entry.rdev_minor,
        name_bytes=len(name),
        checksum=0,
    )
    head = header.pack() + name
    return head + bytes(-len(head) % 4)


TRAILER_HEAD = head_of(CpioEntry(name=TRAILER, mode=0), inode=0, size=0)
