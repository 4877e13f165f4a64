"""The exact reader takes what our writer writes, and nothing that the kernel may understand in another way."""

from __future__ import annotations

import gzip
import io
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc import CpioEntry, Header, directory, hard_link, regular, symlink, write_archive
from quickstart.initramfs.newc_reader import walk_archive
from quickstart.initramfs.payload import packing
from quickstart.model.words import Payload
from tests.unit.newcdata import FIRST, entry_lists, pack

LINKED = (FIRST, hard_link("b", FIRST), hard_link("c", FIRST))
PLAIN = Header(
    inode=1, mode=stat.S_IFREG | 0o644, uid=0, gid=0, nlink=1, mtime=0, size=0, dev_major=0, dev_minor=0,
    rdev_major=0, rdev_minor=0, name_bytes=2, checksum=0,
)  # fmt: skip
END = replace(PLAIN, inode=0, mode=0, name_bytes=11)


def read(data: bytes) -> None:
    for _, pieces in walk_archive(io.BytesIO(data), exact=True):
        for _ in pieces:
            pass


def packed(payload: Payload, *entries: CpioEntry) -> bytes:
    file = io.BytesIO()
    with packing(file, payload) as sink:
        write_archive(sink, entries)
    return file.getvalue()


def member(header: Header, name: bytes = b"a", data: bytes = b"") -> bytes:
    head = header.pack() + name + b"\0"
    head += bytes(-len(head) % 4) + data
    return head + bytes(-len(head) % 4)


@given(st.lists(entry_lists(), max_size=3))
def test_all_that_is_written_is_taken(archives: list[list[CpioEntry]]) -> None:
    read(b"".join(pack(*entries) for entries in archives))


@pytest.mark.parametrize("payload", [Payload.CPIO, Payload.GZIP, Payload.LZ4, Payload.ZSTD])
def test_each_form_and_links_are_taken(payload: Payload) -> None:
    read(pack(directory("d")) + packed(payload, *LINKED, directory("d"), symlink("d/l", "../a")))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (replace(PLAIN, inode=2), b""),
        (replace(PLAIN, dev_major=1), b""),
        (replace(PLAIN, dev_minor=1), b""),
        (replace(PLAIN, checksum=1), b""),
        (replace(PLAIN, nlink=0), b""),
        # Directories, devices and pipes with data, which the kernel leaves out; links without a target.
        (replace(PLAIN, mode=stat.S_IFDIR | 0o755, nlink=2, size=1), b"x"),
        (replace(PLAIN, mode=stat.S_IFDIR | 0o755), b""),
        (replace(PLAIN, mode=stat.S_IFCHR | 0o600, size=1), b"x"),
        (replace(PLAIN, mode=stat.S_IFIFO | 0o600, nlink=2), b""),
        (replace(PLAIN, mode=stat.S_IFLNK | 0o777), b""),
        (replace(PLAIN, mode=0o644), b""),
    ],
)
def test_another_header(header: Header, data: bytes) -> None:
    with pytest.raises(ArtefactError, match="at offset 0: the "):
        read(member(header, data=data) + member(END, b"TRAILER!!!"))


def test_lower_case_digits() -> None:
    whole = member(replace(PLAIN, mtime=0xABCD)) + member(END, b"TRAILER!!!")
    read(whole)
    with pytest.raises(ArtefactError, match="the header of a"):
        read(whole.replace(b"0000ABCD", b"0000abcd"))


@pytest.mark.parametrize(
    "trailer",
    [
        member(replace(END, size=4), b"TRAILER!!!", b"abcd"),
        member(replace(END, mode=stat.S_IFDIR), b"TRAILER!!!"),
        member(replace(END, mode=stat.S_IFLNK, size=1), b"TRAILER!!!", b"a"),
        member(replace(END, inode=7), b"TRAILER!!!"),
    ],
)
def test_another_trailer(trailer: bytes) -> None:
    """With data, it is no end to the kernel: links go on in the next archive."""
    with pytest.raises(ArtefactError, match="a trailer with a type, data or other numbers"):
        read(trailer)


@pytest.mark.parametrize(
    ("second", "third"),
    [
        (replace(PLAIN, nlink=2), None),
        (replace(PLAIN, nlink=2), replace(PLAIN, inode=1, nlink=2, size=1)),
        (replace(PLAIN, nlink=2), replace(PLAIN, inode=1, nlink=3)),
        (replace(PLAIN, nlink=2), replace(PLAIN, inode=1, nlink=2, uid=5)),
        (PLAIN, PLAIN),
    ],
)
def test_links_with_other_numbers(second: Header, third: Header | None) -> None:
    data = member(second) + (member(third, b"b", b"x" * third.size) if third else b"")
    with pytest.raises(ArtefactError, match=r"fewer names than|the header of b"):
        read(data + member(END, b"TRAILER!!!"))


def test_three_names_of_a_file_with_two() -> None:
    linked = replace(PLAIN, nlink=2)
    with pytest.raises(ArtefactError, match="the header of c"):
        read(member(linked) + member(linked, b"b") + member(linked, b"c"))


def test_names_twice_and_without_a_directory() -> None:
    second = replace(PLAIN, inode=2)
    for name in (b"a", b"b/c", b"a/b"):
        header = replace(second, name_bytes=len(name) + 1)
        with pytest.raises(ArtefactError, match="which quickstart does not write there"):
            read(member(PLAIN) + member(header, name))


def test_two_archives_in_one_stream() -> None:
    whole = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=whole, mtime=0) as stream:
        stream.write(pack(regular("a", b"", 0o644)))
        stream.write(pack(regular("b", b"", 0o644)))
    with pytest.raises(ArtefactError, match="a second archive in one compressed stream"):
        read(whole.getvalue())


@pytest.mark.parametrize("flag", [1, 2, 4, 8, 16])
def test_optional_fields_of_gzip(flag: int) -> None:
    """The kernel takes an extra field for data (lib/decompress_inflate.c)."""
    whole = bytearray(packed(Payload.GZIP, regular("a", b"", 0o644)))
    read(bytes(whole))
    whole[3] = flag
    with pytest.raises(ArtefactError, match="a gzip stream with another header than quickstart writes"):
        read(bytes(whole))
