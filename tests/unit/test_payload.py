"""The forms of the initramfs: we read what we wrote, and damage is named."""

from __future__ import annotations

import functools
import io
import random
import re
import struct
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs import payload as payloads
from quickstart.initramfs.newc import CpioEntry, directory, regular, symlink, write_archive
from quickstart.initramfs.newc_reader import CpioMember, Limits, read_archive
from quickstart.initramfs.payload import check_kernel, packing
from quickstart.inspect.imageroot import ImageRoot
from quickstart.measure.results import PAYLOADS
from quickstart.model.words import Payload

COMPRESSED = [each for each in Payload if each.compresses]
# Half of it can be compressed.
LARGE = random.Random(1).randbytes(1 << 18) + b"quickstart " * 25_000
FIRST = (directory("etc"), regular("etc/motd", b"hello", 0o640), symlink("lib", "usr/lib"))
SECOND = (regular("large", LARGE, 0o755), regular("empty", b"", 0o600))


@functools.cache
def packed(payload: Payload, *parts: tuple[CpioEntry, ...]) -> bytes:
    stream = io.BytesIO()
    for entries in parts:
        with packing(stream, payload) as sink:
            write_archive(sink, entries)
    return stream.getvalue()


def read(data: bytes) -> list[CpioMember]:
    return list(read_archive(io.BytesIO(data)))


@pytest.mark.parametrize("payload", Payload)
def test_what_is_packed_is_read(payload: Payload) -> None:
    found = read(packed(payload, FIRST, SECOND))
    assert [(m.name, m.mode, m.data) for m in found] == [(e.name, e.mode, e.data) for e in (*FIRST, *SECOND)]
    assert [m.archive for m in found] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("payload", COMPRESSED)
def test_it_is_smaller(payload: Payload) -> None:
    assert len(packed(payload, SECOND)) < len(LARGE) * 0.6


@pytest.mark.parametrize("payload", Payload)
def test_a_part_ends_where_another_one_can_begin(payload: Payload) -> None:
    """By zeros that no LZ4 block can be taken for, and on a border, whatever was there before."""
    stream = io.BytesIO(bytes(512))
    stream.seek(512)
    with packing(stream, payload) as sink:
        write_archive(sink, FIRST)
    assert len(stream.getvalue()) % 512 == 0
    assert stream.getvalue().endswith(bytes(4))
    both = read(stream.getvalue() + packed(Payload.CPIO, SECOND))
    assert [m.archive for m in both] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in Payload for b in Payload if a != b])
def test_parts_of_two_kinds(first: Payload, second: Payload) -> None:
    whole = packed(first, FIRST) + packed(second, FIRST)
    assert [(m.name, m.archive) for m in read(whole)] == [(e.name, n) for n in (0, 1) for e in FIRST]


def test_lz4_has_no_short_match() -> None:
    source = random.Random(5)
    word = source.randbytes(7)
    data = b"".join(word + source.randbytes(9) for _ in range(2_000))
    stream = io.BytesIO()
    with packing(stream, Payload.LZ4) as sink:
        sink.write(data)
    # Without its short matches nothing of it can be packed.
    assert len(stream.getvalue()) > len(data)


class Trickle:
    """A stream that gives one byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, count: int, /) -> bytes:
        return self._stream.read(min(count, 1))


@pytest.mark.parametrize("payload", Payload)
def test_a_stream_that_comes_in_pieces(payload: Payload) -> None:
    whole = packed(payload, FIRST, FIRST)
    assert list(read_archive(Trickle(whole))) == read(whole)


@pytest.mark.parametrize("payload", COMPRESSED)
def test_a_cut_is_named(payload: Payload) -> None:
    whole = packed(payload, FIRST, SECOND)
    begin = len(packed(payload, FIRST))
    for end in (begin + 5, begin + 40, len(whole) // 2, len(whole) - 600):
        with pytest.raises(ArtefactError) as caught:
            read(whole[:end])
        assert caught.value.exit_code == 2
        assert f"the {payload.value} stream at offset {begin} is damaged" in caught.value.message


@pytest.mark.parametrize("payload", Payload)
def test_the_same_entries_make_the_same_bytes(payload: Payload) -> None:
    assert packed.__wrapped__(payload, FIRST, SECOND) == packed(payload, FIRST, SECOND)


def test_lz4_of_several_blocks_and_cut_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the stream says that a block is lacking; the archive in it does."""
    monkeypatch.setattr(payloads, "_LZ4_BLOCK_BYTES", 1 << 16)
    whole = packed.__wrapped__(Payload.LZ4, SECOND)
    assert [(m.name, m.data) for m in read(whole)] == [(e.name, e.data) for e in SECOND]
    (length,) = struct.unpack_from("<I", whole, 4)
    with pytest.raises(ArtefactError, match="data of 'large': the file ends after"):
        read(whole[: 8 + length])


@pytest.mark.parametrize("payload", COMPRESSED)
@given(st.data())
def test_a_flipped_byte_is_an_error_or_other_content(payload: Payload, data: st.DataObject) -> None:
    """Never a crash of another kind; what is no longer the same is found by the list of digests."""
    whole = bytearray(packed(payload, FIRST))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        read(bytes(whole))
    except ArtefactError as error:
        assert error.hint


def test_a_block_that_no_lz4_has() -> None:
    with pytest.raises(ArtefactError, match="a block of 4294967295 bytes"):
        read(struct.pack("<II", 0x184C2102, 0xFFFFFFFF) + bytes(64))


@pytest.mark.parametrize("payload", COMPRESSED)
def test_no_more_is_unpacked_than_may_come_of_it(payload: Payload) -> None:
    """Of all streams together: a second one does not begin at nothing."""
    whole = packed(payload, (regular("zeros", bytes(1 << 20), 0o644),))
    limits = Limits(unpacked_bytes=(1 << 20) + 4096)
    assert len(list(read_archive(io.BytesIO(whole), limits))) == 1
    with pytest.raises(ArtefactError, match=f"more than {limits.unpacked_bytes} bytes come of it"):
        list(read_archive(io.BytesIO(whole + whole), limits))


# ---------------------------------------------------------------- the kernel


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    (tmp_path / "boot").mkdir()
    return ImageRoot(tmp_path)


def test_the_kernel_says_what_it_unpacks(root: ImageRoot) -> None:
    config = "CONFIG_RD_GZIP=y\n# CONFIG_RD_LZ4 is not set\nCONFIG_RD_ZSTD=y\n"
    root.host(PurePosixPath("/boot/config-6.1")).write_text(config)
    for payload in (Payload.CPIO, Payload.GZIP, Payload.ZSTD):
        check_kernel(root, "6.1", payload)
    with pytest.raises(BadInputError, match=r"/boot/config-6\.1 has no CONFIG_RD_LZ4=y") as caught:
        check_kernel(root, "6.1", Payload.LZ4)
    assert "payload lz4" in caught.value.message
    assert "--payload cpio" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_an_image_takes_a_file_system_its_compressor_and_a_loop_device(root: ImageRoot) -> None:
    whole = "CONFIG_BLK_DEV_LOOP=m\nCONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_LZ4=y\n"
    config = root.host(PurePosixPath("/boot/config-6.1"))
    config.write_text(whole)
    check_kernel(root, "6.1", Payload.SQUASHFS)
    for option in ("CONFIG_BLK_DEV_LOOP", "CONFIG_SQUASHFS", "CONFIG_SQUASHFS_LZ4"):
        config.write_text(re.sub(f"{option}=.", f"# {option} is not set", whole))
        with pytest.raises(BadInputError, match=f"has no {option}=y"):
            check_kernel(root, "6.1", Payload.SQUASHFS)


def test_a_kernel_that_does_not_say(root: ImageRoot) -> None:
    check_kernel(root, "6.1", Payload.CPIO)
    with pytest.raises(BadInputError, match=r"the image has no /boot/config-6\.1"):
        check_kernel(root, "6.1", Payload.ZSTD)


def test_the_bench_has_the_same_words() -> None:
    assert tuple(each.value for each in Payload) == PAYLOADS
