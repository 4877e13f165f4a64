"""The list of digests: its line for every kind of entry, written and read back."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.initramfs.digests import Listed, content_crc, list_bytes, listed, read_list
from quickstart.initramfs.newc import CpioEntry, directory, hard_link, regular, symlink

# By gzip -lv; the second is the check value that tables of CRCs give.
FIXED = {b"": 0, b"123456789": 0xCBF43926, b"abc": 0x352441C2}
LARGE = bytes(range(256)) * 257


def entries(tmp_path: Path) -> tuple[CpioEntry, ...]:
    (tmp_path / "large").write_bytes(LARGE)
    first = CpioEntry(name="fast/a", mode=0o100755, data=b"abc", uid=3, gid=4, names=2)
    return (
        directory("fast", 0o750),
        first,
        hard_link("fast/b", first),
        regular("fast/empty", b"", 0o600),
        symlink("fast/l\udcff", "a\nb"),
        regular("fast/large", tmp_path / "large", 0o644),
    )


def test_what_is_said_of_each_kind(tmp_path: Path) -> None:
    assert list(listed(entries(tmp_path))) == [
        Listed(name=b"fast", mode=0o040750, uid=0, gid=0, size_bytes=0),
        Listed(name=b"fast/a", mode=0o100755, uid=3, gid=4, size_bytes=3, crc=0x352441C2),
        Listed(name=b"fast/b", mode=0o100755, uid=3, gid=4, size_bytes=3, same_as=b"fast/a"),
        Listed(name=b"fast/empty", mode=0o100600, uid=0, gid=0, size_bytes=0),
        Listed(name=b"fast/l\xff", mode=0o120777, uid=0, gid=0, size_bytes=3, text=b"a\nb"),
        Listed(name=b"fast/large", mode=0o100644, uid=0, gid=0, size_bytes=len(LARGE), crc=zlib.crc32(LARGE)),
    ]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = tuple(listed(entries(tmp_path)))
    assert read_list(list_bytes(files)) == files


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_file_of_the_host_and_its_bytes_have_the_same_crc(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(data)
    assert content_crc(tmp_path / "f") == content_crc(data) == zlib.crc32(data)


@pytest.mark.parametrize("data", FIXED)
def test_the_crc_is_that_of_gzip(data: bytes) -> None:
    assert content_crc(data) == FIXED[data]


@pytest.mark.parametrize("before", [b"QSPARTB1", b"QSPARTB2"])
def test_a_list_of_before_is_refused_by_its_name(tmp_path: Path, before: bytes) -> None:
    """They had SHA-256 and BLAKE2b."""
    old = list_bytes(listed(entries(tmp_path))).replace(b"QSPARTB3", before, 1)
    said = f"has the format {before.decode()}, and this version reads QSPARTB3"
    with pytest.raises(ArtefactError, match=said):
        read_list(old)


def test_the_format_byte_by_byte() -> None:
    files = [
        Listed(name=b"d", mode=0o040755, uid=1, gid=2, size_bytes=0),
        Listed(name=b"l", mode=0o120777, uid=0, gid=0, size_bytes=1, text=b"t"),
        Listed(name=b"f", mode=0o100644, uid=0, gid=0, size_bytes=3, crc=0x352441C2),
        Listed(name=b"g", mode=0o100644, uid=0, gid=0, size_bytes=3, same_as=b"f"),
    ]
    assert list_bytes(files) == (
        b"QSPARTB3"
        + struct.pack("<I", 4)
        + struct.pack("<8I", 0o040755, 1, 2, 0, 0, 0, 2, 0)
        + b"d\0"
        + struct.pack("<8I", 0o120777, 0, 0, 1, 0, 0, 2, 1)
        + b"l\0t"
        + struct.pack("<8I", 0o100644, 0, 0, 3, 0, 0x352441C2, 2, 0)
        + b"f\0"
        + struct.pack("<8I", 0o100644, 0, 0, 3, 3, 0, 2, 0)
        + b"g\0"
    )


def test_a_list_that_is_cut_or_longer_is_refused(tmp_path: Path) -> None:
    whole = list_bytes(listed(entries(tmp_path)))
    for end in range(len(whole)):
        with pytest.raises(ArtefactError, match=f"the list of digests of {end} bytes is damaged"):
            read_list(whole[:end])
    with pytest.raises(ArtefactError):
        read_list(whole + b"\0")
    with pytest.raises(ArtefactError):
        read_list(b"X" + whole[1:])
