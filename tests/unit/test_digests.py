"""The list of digests: what it says of every kind of entry, and that it is read as it was written."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.initramfs.digests import CHUNK_BYTES, Listed, chunk_digests, list_bytes, listed, read_list
from quickstart.initramfs.newc import CpioEntry, directory, hard_link, regular, symlink

# By b2sum -l 256 of coreutils.
DIGEST_OF_NOTHING = "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"
DIGEST_OF_ABC = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def entries(tmp_path: Path) -> tuple[CpioEntry, ...]:
    large = bytes(range(256)) * 257
    (tmp_path / "large").write_bytes(large)
    first = CpioEntry("fast/a", 0o100755, b"a" * CHUNK_BYTES, uid=3, gid=4, names=2)
    return (
        directory("fast", 0o750),
        first,
        hard_link("fast/b", first),
        regular("fast/empty", b"", 0o600),
        symlink("fast/l\udcff", "a\nb"),
        regular("fast/large", tmp_path / "large", 0o644),
    )


def test_what_is_said_of_each_kind(tmp_path: Path) -> None:
    large = (tmp_path / "large").read_bytes() if (tmp_path / "large").exists() else bytes(range(256)) * 257
    assert list(listed(entries(tmp_path))) == [
        Listed(b"fast", 0o040750, 0, 0, 0),
        Listed(b"fast/a", 0o100755, 3, 4, CHUNK_BYTES, digests=(digest(b"a" * CHUNK_BYTES),)),
        Listed(b"fast/b", 0o100755, 3, 4, CHUNK_BYTES, same_as=b"fast/a"),
        Listed(b"fast/empty", 0o100600, 0, 0, 0, digests=(bytes.fromhex(DIGEST_OF_NOTHING),)),
        Listed(b"fast/l\xff", 0o120777, 0, 0, 3, text=b"a\nb"),
        Listed(
            *(b"fast/large", 0o100644, 0, 0, CHUNK_BYTES + 256),
            digests=(digest(large[:CHUNK_BYTES]), digest(large[CHUNK_BYTES:])),
        ),
    ]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = tuple(listed(entries(tmp_path)))
    assert read_list(list_bytes(files)) == files


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_file_of_the_host_and_its_bytes_have_the_same_digests(tmp_path: Path, size: int) -> None:
    data = bytes(n * n % 251 for n in range(size))
    (tmp_path / "f").write_bytes(data)
    found = chunk_digests(tmp_path / "f")
    assert found == chunk_digests(data)
    assert len(found) == max(1, -(-size // CHUNK_BYTES))


@pytest.mark.parametrize(("data", "wanted"), [(b"", DIGEST_OF_NOTHING), (b"abc", DIGEST_OF_ABC)])
def test_the_digest_is_blake2b_256(data: bytes, wanted: str) -> None:
    assert chunk_digests(data) == (bytes.fromhex(wanted),)


def test_a_list_of_before_is_refused_by_its_name(tmp_path: Path) -> None:
    """QSPARTB1 had SHA-256."""
    old = list_bytes(listed(entries(tmp_path))).replace(b"QSPARTB2", b"QSPARTB1", 1)
    with pytest.raises(ArtefactError, match="has the format QSPARTB1, and this version reads QSPARTB2"):
        read_list(old)


def test_the_format_byte_by_byte() -> None:
    text = list_bytes([Listed(b"d", 0o040755, 1, 2, 0), Listed(b"l", 0o120777, 0, 0, 1, text=b"t")])
    assert text == (
        b"QSPARTB2"
        + struct.pack("<2I", 2, 65536)
        + struct.pack("<7I", 0o040755, 1, 2, 0, 0, 2, 0)
        + b"d\0"
        + struct.pack("<7I", 0o120777, 0, 0, 1, 0, 2, 1)
        + b"l\0t"
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
