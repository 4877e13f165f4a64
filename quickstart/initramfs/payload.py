"""Read and write the payload, the form in which the two parts of the initramfs are stored (docs/internals/payload.md).
In the initramfs file, each of these two parts consists of newc archives or is one compressed stream.

Part B may also be a file system image in one file (``initramfs.squashfs``). The kernel unpacks one stream after the
other, and recognises the form of a stream by the stream's first bytes
(Documentation/driver-api/early-userspace/buffer-format.rst, init/initramfs.c).

For LZ4, the kernel reads the legacy frame format (lib/decompress_unlz4.c, lz4's lz4_Frame_format.md). An LZ4 stream
begins with a magic number. Then come blocks of at most 8 MiB, each with its length before it. Four zero bytes end the
stream when another stream follows.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol

import lz4
import lz4.block
import zstandard

from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs.lz4block import without_short_matches
from quickstart.initramfs.newc import ARCHIVE_ALIGNMENT, Sink
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model.words import Payload

_LENGTH = struct.Struct("<I")
_LZ4_MAGIC = 0x184C2102
_LZ4_BLOCK_BYTES = 8 << 20
# LZ4_COMPRESSBOUND of lz4.h.
_LZ4_BOUND_BYTES = _LZ4_BLOCK_BYTES + _LZ4_BLOCK_BYTES // 255 + 16
_LZ4_LEVEL = 9
# docs/internals/payload.md says why.
_LZ4_SHORTEST_MATCH_BYTES = 12
_GZIP_LEVEL = 9
_ZSTD_LEVEL = 19
# The guest needs memory for the window at boot. 8 MiB is what level 19 uses by itself, and the most that the format
# recommends.
_ZSTD_WINDOW_LOG = 23
_GZIP = 16 + zlib.MAX_WBITS
# Only this much is read at once, so that the unpacked data always fit into memory. They are at most 4 MiB for gzip,
# 16 MiB for Zstandard, whose blocks of 128 KiB may take 4 bytes each, and a block and a MiB for LZ4.
_READ_BYTES = 4096
_ZSTD_READ_BYTES = 512


_MAGICS = {
    Payload.GZIP: b"\x1f\x8b",
    Payload.LZ4: _LENGTH.pack(_LZ4_MAGIC),
    Payload.ZSTD: b"\x28\xb5\x2f\xfd",
}
MAGIC_BYTES = 4
# The header that GzipFile writes. It has no optional fields, which the kernel and zlib skip in different ways (RFC
# 1952, lib/decompress_inflate.c).
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
HEADER_MOST_BYTES = len(_GZIP_HEADER)
# The kernel options that a payload needs, where this is not the option of the payload's name.
_OPTIONS = {
    Payload.SQUASHFS: ("CONFIG_BLK_DEV_LOOP=y", "CONFIG_SQUASHFS=y", "CONFIG_SQUASHFS_LZ4=y"),
}


def compressors() -> str:
    """The names and versions of the compression libraries. Another version may produce other bytes."""
    zstd = ".".join(str(number) for number in zstandard.ZSTD_VERSION)
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}, lz4 {lz4.library_version_string()}, zstd {zstd}"


def check_kernel(root: ImageRoot, version: str, payload: Payload) -> None:
    """Raise BadInputError unless the image's kernel can unpack this payload. The kernel's configuration
    /boot/config-VERSION says which compressions the kernel can unpack.
    """
    if payload is Payload.CPIO:
        return
    place, options = (
        PurePosixPath(f"/boot/config-{version}"),
        _OPTIONS.get(payload, (f"CONFIG_RD_{payload.name}=y",)),
    )
    found = root.resolve(place).canonical
    if found is None:
        raise BadInputError(
            f"payload {payload.value}: whether the kernel unpacks it is not known, the image has no {place}",
            hint="--payload cpio, which every kernel takes",
        )
    lines = root.read_text(found).splitlines()
    for option in options:
        if option not in lines and option.replace("=y", "=m") not in lines:
            raise BadInputError(
                f"payload {payload.value}: the kernel {version} cannot unpack it, {place} has no {option}",
                hint="--payload cpio, which every kernel takes",
            )


def can_unpack(root: ImageRoot, version: str, payload: Payload) -> bool:
    """Whether the image's kernel can unpack this payload, as far as its configuration says."""
    with contextlib.suppress(BadInputError):
        check_kernel(root, version, payload)
        return True
    return False


# ---------------------------------------------------------------- writing


@contextlib.contextmanager
def packing(file: BinaryIO, payload: Payload) -> Iterator[Sink]:
    """A stream that compresses its data into ``file`` in the form ``payload``. Two calls with equal data write the same
    bytes if the versions of the compression libraries (`compressors`) are the same.

    A compressed stream is followed by at least four zero bytes. The length of the stream with the zero bytes is a
    multiple of 512 bytes.
    """
    if not payload.compresses:
        yield file
        return
    begin = file.tell()
    with _compressor(file, payload) as sink:
        yield sink
    file.write(bytes(_LENGTH.size))
    file.write(bytes((begin - file.tell()) % ARCHIVE_ALIGNMENT))


def _compressor(file: BinaryIO, payload: Payload) -> AbstractContextManager[Sink]:
    if payload is Payload.LZ4:
        return _Lz4Writer(file)
    if payload is Payload.GZIP:
        return gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)
    # Part A has the digests of part B, so another checksum is not needed.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _ZSTD_LEVEL, window_log=_ZSTD_WINDOW_LOG, write_checksum=False, write_content_size=False
    )
    return zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file, closefd=False)


class _Lz4Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held = bytearray()

    def __enter__(self) -> _Lz4Writer:
        self._file.write(_LENGTH.pack(_LZ4_MAGIC))
        return self

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._write_block(bytes(self._held))

    def write(self, data: bytes, /) -> int:
        self._held += data
        while len(self._held) >= _LZ4_BLOCK_BYTES:
            self._write_block(bytes(self._held[:_LZ4_BLOCK_BYTES]))
            del self._held[:_LZ4_BLOCK_BYTES]
        return len(data)

    def _write_block(self, data: bytes) -> None:
        block = lz4.block.compress(data, mode="high_compression", compression=_LZ4_LEVEL, store_size=False)
        block = without_short_matches(block, data, _LZ4_SHORTEST_MATCH_BYTES)
        self._file.write(_LENGTH.pack(len(block)) + block)


# ---------------------------------------------------------------- reading


class _Unpacker(Protocol):
    """A decompressor with the interface of the objects that zlib's and zstandard's decompressobj return. When ``eof``
    is true, ``unused_data`` has the bytes after the compressed stream.
    """

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Packed(Protocol):
    """The source of the bytes of a compressed stream. The decompressor can give unused bytes back to the source.
    ``offset`` is the present position in the source, in bytes.
    """

    offset: int

    def read(self, count: int, /) -> bytes: ...

    def give_back(self, data: bytes, /) -> None: ...


def form_of(first: bytes) -> Payload:
    """The form of a stream that begins with the bytes ``first``. The result is CPIO for uncompressed archives and for
    unknown forms.
    """
    return next((each for each, magic in _MAGICS.items() if first.startswith(magic)), Payload.CPIO)


def has_our_header(payload: Payload, first: bytes) -> bool:
    """Whether a stream of the form ``payload`` has the header that our function `packing` writes when it compresses a
    stream. ``first`` has the first ``HEADER_MOST_BYTES`` bytes of the stream. The function checks only a gzip header,
    because the kernel and zlib skip the optional fields of a gzip header in different ways. For any other form, the
    result is true.
    """
    return payload is not Payload.GZIP or first == _GZIP_HEADER


class Allowance:
    """The number of unpacked bytes that the compressed streams of a file may still give. The method ``take`` deducts
    bytes from this number before the reader gets the bytes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.left_bytes = limit_bytes

    def take(self, count: int) -> bool:
        """Deduct ``count`` bytes. Return False if fewer than ``count`` bytes were left."""
        self.left_bytes -= count
        return self.left_bytes >= 0


class Unpacked:
    """The content of a compressed stream, read from front to back.

    Raises ArtefactError, with the stream's position, when the stream is cut off or damaged, or when ``allowance`` is
    used up. An LZ4 block does not say whether another block follows, so this class does not detect a stream that is
    cut off between two blocks. The code that reads the unpacked archive detects such a stream.
    """

    def __init__(self, source: Packed, payload: Payload, allowance: Allowance) -> None:
        self._source, self._payload, self._begin = source, payload, source.offset
        self._unpacker = _unpacker(payload)
        self._read_bytes = _ZSTD_READ_BYTES if payload is Payload.ZSTD else _READ_BYTES
        self._allowance = allowance
        self._ready, self._at = b"", 0
        self._ended = False

    def read(self, count: int, /) -> bytes:
        """At most the next ``count`` bytes of the unpacked content. The result is empty at the end."""
        while self._at == len(self._ready) and not self._ended:
            self._ready, self._at = b"", 0
            self._advance()
        found = self._ready[self._at : self._at + count]
        self._at += len(found)
        return found

    def _advance(self) -> None:
        packed = self._source.read(self._read_bytes)
        if not packed:
            if self._payload is not Payload.LZ4 or not self._between_blocks():
                raise self._damaged("the file ends in the middle of it")
            self._ended = True
            return
        try:
            self._ready = self._unpacker.decompress(packed)
        except (zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
            raise self._damaged(str(error)) from error
        if not self._allowance.take(len(self._ready)):
            raise self._damaged(f"more than {self._allowance.limit_bytes} bytes come of it")
        if self._unpacker.eof:
            self._source.give_back(self._unpacker.unused_data)
            self._ended = True

    def _between_blocks(self) -> bool:
        return isinstance(self._unpacker, _Lz4Unpacker) and not self._unpacker.unused_data

    def _damaged(self, what: str) -> ArtefactError:
        return ArtefactError(
            f"the {self._payload.value} stream at offset {self._begin} is damaged: {what}",
            hint="build the artefact again",
        )


def _unpacker(payload: Payload) -> _Unpacker:
    if payload is Payload.LZ4:
        return _Lz4Unpacker()
    if payload is Payload.GZIP:
        return zlib.decompressobj(_GZIP)
    return zstandard.ZstdDecompressor(max_window_size=1 << _ZSTD_WINDOW_LOG).decompressobj()


class _Lz4Unpacker:
    """The decompressor for LZ4. Before the end of the stream, ``unused_data`` has the bytes of a block that has not
    arrived completely.
    """

    def __init__(self) -> None:
        self.eof = False
        self._held = bytearray()

    @property
    def unused_data(self) -> bytes:
        return bytes(self._held)

    def decompress(self, data: bytes, /) -> bytes:
        self._held += data
        at, found = 0, []
        while len(self._held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held, at)
            if not length:
                self.eof = True
                break
            if length == _LZ4_MAGIC:
                at += _LENGTH.size
                continue
            if length > _LZ4_BOUND_BYTES:
                raise lz4.block.LZ4BlockError(f"a block of {length} bytes")
            if len(self._held) - at < _LENGTH.size + length:
                break
            at += _LENGTH.size
            block = bytes(self._held[at : at + length])
            # n bytes unpack to at most 255 n bytes. Only this much memory is reserved, and not always 8 MiB.
            found.append(lz4.block.decompress(block, uncompressed_size=min(255 * length, _LZ4_BLOCK_BYTES)))
            at += length
        del self._held[:at]
        return b"".join(found)
