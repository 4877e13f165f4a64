"""The targets for disks and archives (ext4, qcow2, newc, squashfs), for unified kernel images, and for ldconfig's cache."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from quickstart.errors import ArtefactError, BadInputError, GuestError
from quickstart.image.blockmap import read_block_map
from quickstart.image.ext4 import block_groups, parse_superblock, used_inodes
from quickstart.image.extents import parse_extents
from quickstart.image.qcow2 import Form, data_bytes
from quickstart.image.superblock import read_superblock
from quickstart.image.xfs import read_xfs
from quickstart.initramfs.newc_reader import read_archive, walk_archive
from quickstart.initramfs.squashfs_reader import walk_image
from quickstart.inspect.disk.systemdboot import read_menu
from quickstart.inspect.disk.unified import command_line, divide, release, sections
from quickstart.inspect.disk.verdict import examined
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldcache import cached_paths
from tests.fuzz.places import as_text
from tests.fuzz.target import Target


def _superblock(data: bytes, _: Path) -> None:
    with suppress(ArtefactError):
        read_xfs(io.BytesIO(data), 0, "root.raw")
    parse_superblock(data, "root.raw")


def _ext4(data: bytes, base: Path) -> None:
    path = base / "root.raw"
    path.write_bytes(data)
    for read in (read_superblock, block_groups, used_inodes):
        with suppress(ArtefactError):
            read(path)
    found = read_block_map(path)
    found.owners(0, len(data))
    found.inode_blocks(list(found.inodes))


def _extents(data: bytes, _: Path) -> None:
    parse_extents(as_text(data), 4096)


_MOST_BYTES = 1 << 30


def _qcow2(data: bytes, base: Path) -> None:
    path = base / "root.qcow2"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        for form in Form:
            # Its caller makes an error of ours of it.
            with suppress(ValueError):
                data_bytes(fd, _MOST_BYTES, form)
    finally:
        os.close(fd)


def _newc(data: bytes, _: Path) -> None:
    for _member in read_archive(io.BytesIO(data)):
        pass
    for _exact, pieces in walk_archive(io.BytesIO(data), exact=True):
        for _piece in pieces:
            pass


def _squashfs(data: bytes, _: Path) -> None:
    for _file, pieces in walk_image(lambda at, count: data[at : at + count], len(data)):
        for _piece in pieces:
            pass


# The line before a record's content.
_HEAD = re.compile(rb"^([a-z-]+(?: \d{1,3}(?: \./.{0,300})?)?) \d{1,20}$", re.MULTILINE)


def _records(data: bytes, _: Path) -> None:
    """As they are, and framed anew: a change of a length would else never come further than to the frame."""
    with suppress(GuestError):
        examined(data)
    examined(_framed(data))


def _framed(data: bytes) -> bytes:
    pieces = _HEAD.split(data)[1:]
    # A line break ends the head, and another one the content.
    records = ((head, content[1:-1]) for head, content in zip(pieces[::2], pieces[1::2], strict=True))
    framed = b"".join(b"%s %d\n%s\n" % (head, len(content), content) for head, content in records)
    return framed + b"end 1\n\n\n"


def _unified(data: bytes, base: Path) -> None:
    with suppress(ValueError):
        for section in sections(data).values():
            found = section.of(data)
            release(found or b"")
            command_line(found or b"")
    path = "/EFI/Linux/a.efi"
    read_menu({path: data}, {path: len(data)})
    (base / "image").write_bytes(data)
    with suppress(BadInputError):
        divide(base / "image", base / "kernel", base / "initramfs")
    for name in ("kernel", "initramfs"):
        (base / name).unlink(missing_ok=True)


def _cache(data: bytes, base: Path) -> None:
    (base / "etc").mkdir(exist_ok=True)
    (base / "etc/ld.so.cache").write_bytes(data)
    cached_paths(ImageRoot(base), [b"a", b"libc.so.6", *(b"lib%d.so" % number for number in range(100))])


TARGETS: Mapping[str, Target] = {
    "cache": Target(_cache, (b"/lib/libc.so.6\0", b"/glibc-hwcaps/", b"/a")),
    "unified": Target(_unified, (b"MZ", b"PE\0\0", b".linux\0\0", b".initrd\0", b".osrel\0\0", b".cmdline")),
    "superblock": Target(_superblock, (b"XFSB", b"\xb4\xa5")),
    "ext4": Target(_ext4, (b"\x0a\xf3", b"\x53\xef", b"\xff\xff\xff\xff")),
    "extents": Target(_extents, (b" 0/ 0 ", b" - ", b"Uninit")),
    "qcow2": Target(
        _qcow2, (b"QFI\xfb\0\0\0\2", b"QFI\xfb\0\0\0\3", b"\x40\0\0\0\0\0", b"\x80\0\0\0\0\0", b"\xff" * 8)
    ),
    "newc": Target(_newc, (b"070701", b"TRAILER!!!", b"\x1f\x8b", b"\x02\x21\x4c\x18", b"\x28\xb5\x2f\xfd")),
    "squashfs": Target(_squashfs, (b"hsqs",)),
    "records": Target(
        _records,
        (
            *(
                b"file 1 ./",
                b"blkid 1 ",
                b"partition 1 ",
                b"TYPE=",
                b"end 0\n\n\n",
                b"menuentry '",
                b" {\n",
                b"}\n",
            ),
            *(b"\tlinux\t", b"\tinitrd\t", b" --id ", b"set default=", b" " * 1000),
        ),
    ),
}
