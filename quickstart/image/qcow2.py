"""Read the header and the tables of a qcow2 image (docs/interop/qcow2.txt of QEMU), and find how much data the image
has.

The image may come from somebody else. Several features of the format (dirty bitmaps, snapshots) cost QEMU memory or
time before QEMU reads the first byte of data, and a compressed cluster costs the time of a cluster for each part of the
disk that names it. So the disk of an artefact is accepted only in the form that `build` makes (``Form.BUILT``). An image
stays in this form when a machine runs from it, and when `qemu-img resize` changes its size. A disk that somebody gives to
`inspect` or `build --image` may have the forms of cloud vendors' images, too (``Form.GIVEN``).
"""

from __future__ import annotations

import array
import errno
import os
import struct
import sys
from dataclasses import dataclass
from enum import Enum

from quickstart.host.holes import data_size

_MAGIC = b"QFI\xfb"
_VERSION, _OLD_VERSION = 3, 2
# Magic, version, place and length of the backing file's name, cluster bits, size, way of encryption; entries of the first table
# and its place, the table of reference counts, its clusters; number of snapshots, and their place; incompatible, compatible
# and autoclear features, bits of a reference count, length of the header.
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
# Version 2 ends before the features. Its reference counts have 2^4 bits.
_OLD_HEADER_BYTES = 72
# QEMU before 5.1 has no field for the kind of compression. Newer headers have a field of one byte, and
# seven bytes that are 0.
_HEADER_LENGTHS = {_HEADER.size: b"", _HEADER.size + 8: bytes(8)}
# Incompatible, compatible and autoclear features.
_DIRTY, _EXTERNAL_DATA, _OTHER_COMPRESSION = 0x1, 0x4, 0x8
_LAZY_COUNTS = 0x1
_BITMAPS = 0x1
# deflate and zstd, in the field for the kind of compression.
_COMPRESSIONS = (b"\0", b"\1")
_EXTENSION = struct.Struct(">II")
_END, _FEATURE_NAMES, _BITMAPS_EXTENSION = 0, 0x6803F857, 0x23852875
# The extensions that we refuse name another file or a key. For all other extensions, the message gives the
# number.
_REFUSED = {
    0xE2792ACA: "it rests on another file (it names the format of a backing file)",
    0x44415441: "it rests on another file (it names an external data file)",
    0x0537BE77: "it is encrypted",
    _BITMAPS_EXTENSION: "it has dirty bitmaps, and build makes none (qemu-img info lists them)",
}
_CLUSTER_BITS, _COUNT_BITS = 16, 4
_CLUSTER_BYTES = 1 << _CLUSTER_BITS
_GIVEN_CLUSTER_BITS = range(9, 22)
_ENTRY_BYTES = 8
_SECTOR_BYTES = 512
# File systems give a file whole blocks.
_BLOCK_BYTES = 4096
# deflate makes data at most this many times smaller (RFC 1951: 258 bytes for two bits).
_MOST_COMPRESSED = 1032
# This many tables, of this many bytes, describe a disk of 64 TiB with clusters of 64 KiB. Each table takes a read of one
# cluster.
_MOST_TABLES = 1 << 17
_MOST_TABLE_BYTES = _MOST_TABLES * _CLUSTER_BYTES
_MOST_CLUSTERS = 1 << 30
# Bits of a table's entry. In both tables, an entry has the place in the file. In the second table, it also
# says whether the cluster is compressed or all zeros.
_PLACE = ((1 << 56) - 1) & ~0x1FF
_COMPRESSED, _ZEROS = 1 << 62, 1


class Form(Enum):
    """The images that are accepted. ``BUILT``: what `build` makes. ``GIVEN``: also older versions, compressed clusters
    and clusters of another size, as cloud vendors' images have them. Neither depends on another file or on a key.
    """

    BUILT = "built"
    GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The fields of a header that describe the disk and its tables."""

    size_bytes: int
    cluster_bits: int
    table_entries: int
    table_at: int

    @property
    def cluster_bytes(self) -> int:
        return 1 << self.cluster_bits

    @property
    def tables(self) -> int:
        """The number of second tables that describe the whole disk."""
        return -(-self.size_bytes // (self.cluster_bytes // _ENTRY_BYTES * self.cluster_bytes))


def is_qcow2(fd: int) -> bool:
    """Whether the file that is open as ``fd`` begins with the magic bytes of a qcow2 image. A guest can write these
    bytes to a raw disk, so the caller must also call ``virtual_bytes``, which checks the header.
    """
    return os.pread(fd, len(_MAGIC), 0) == _MAGIC


def virtual_bytes(fd: int, form: Form = Form.BUILT) -> int:
    """The size in bytes of the disk in the qcow2 image that is open as ``fd``. Raises ValueError when QEMU would need
    another file or a key to open the image. Also raises ValueError when the header has anything that ``form`` does not
    have.
    """
    return _read_header(fd, form).size_bytes


def _read_header(fd: int, form: Form) -> _Header:
    head = os.pread(fd, 1 << _GIVEN_CLUSTER_BITS[-1], 0)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ValueError("it is no qcow2 image")
    (_, version, backing_at, backing_bytes, cluster_bits, size_bytes, encryption, entries, at, *_) = (
        _HEADER.unpack_from(head)
    )
    _check_version(version, cluster_bits, form)
    if backing_at or backing_bytes:
        raise ValueError("it rests on another file (a backing file)")
    if encryption:
        raise ValueError("it is encrypted")
    if size_bytes % _SECTOR_BYTES:
        raise ValueError(f"its {size_bytes} bytes are no multiple of {_SECTOR_BYTES}")
    _check_snapshots(head)
    header_bytes = _OLD_HEADER_BYTES if version == _OLD_VERSION else _checked_length(head, form)
    _check_extensions(head[: 1 << cluster_bits], header_bytes)
    return _Header(size_bytes=size_bytes, cluster_bits=cluster_bits, table_entries=entries, table_at=at)


def _check_version(version: int, cluster_bits: int, form: Form) -> None:
    if form is Form.BUILT and (version != _VERSION or cluster_bits != _CLUSTER_BITS):
        raise ValueError(
            f"it is no qcow2 image of version {_VERSION} with clusters of 64 KiB, as build makes them "
            f"(version {version}, clusters of 2^{cluster_bits} bytes)"
        )
    if version not in (_OLD_VERSION, _VERSION) or cluster_bits not in _GIVEN_CLUSTER_BITS:
        raise ValueError(
            f"QEMU does not know such a qcow2 image (version {version}, clusters of 2^{cluster_bits} bytes)"
        )


def _check_snapshots(head: bytes) -> None:
    snapshots, snapshots_at = _HEADER.unpack_from(head)[11:13]
    if snapshots or snapshots_at:
        raise ValueError("it has snapshots, and build makes none (qemu-img snapshot -l lists them)")


def _checked_length(head: bytes, form: Form) -> int:
    """The length in bytes of the header of version 3 in ``head``. Raises ValueError for a header that has neither of
    the two lengths that QEMU writes, and for an image with features that ``form`` does not have. `build` uses no
    features, and QEMU does not add any by itself.
    """
    incompatible, compatible, autoclear, count_bits, header_bytes = _HEADER.unpack_from(head)[13:]
    if incompatible & _EXTERNAL_DATA:
        raise ValueError("it rests on another file (an external data file)")
    if autoclear & _BITMAPS:
        raise ValueError(_REFUSED[_BITMAPS_EXTENSION])
    if form is Form.GIVEN:
        # A reader needs no reference counts.
        incompatible &= ~(_DIRTY | _OTHER_COMPRESSION)
        compatible &= ~_LAZY_COUNTS
        count_bits = _COUNT_BITS
    if incompatible or compatible or autoclear or count_bits != _COUNT_BITS:
        raise ValueError(
            f"it has features that build does not use ({incompatible:#x}, {compatible:#x}, {autoclear:#x}, "
            f"reference counts of 2^{count_bits} bits)"
        )
    rest = head[_HEADER.size : header_bytes]
    if form is Form.GIVEN and rest[:1] in _COMPRESSIONS:
        rest = bytes(1) + rest[1:]
    if rest != _HEADER_LENGTHS.get(header_bytes):
        raise ValueError(f"its header is damaged, or says a way of compression (length {header_bytes})")
    return int(header_bytes)


def data_bytes(fd: int, most_bytes: int, form: Form = Form.BUILT) -> int:
    """The size of all clusters with data in the image that is open as ``fd``, in whole blocks of a file system. A
    conversion to a raw image takes at most this number of bytes. `virtual_bytes` must have accepted the image. Counting
    stops as soon as the result is more than ``most_bytes``.

    Raises ValueError when two parts of the disk are at the same place in the file, and when a part is beyond the end of
    the file. Also raises ValueError when the disk or the file is too large for this check. In the form ``BUILT``, no
    part may be compressed. In the form ``GIVEN``, the parts may have at most 1032 times as many bytes as the file takes up.

    These errors do not occur for an image that `build` makes. Without this check, a file of a few KiB could stand for
    terabytes of data.
    """
    header = _read_header(fd, form)
    most_tables = min(_MOST_TABLES, _MOST_TABLE_BYTES // header.cluster_bytes)
    if header.tables > most_tables:
        raise ValueError(f"it has {header.tables} tables; at most {most_tables} are read")
    status = os.fstat(fd)
    if header.table_at > status.st_size:
        raise ValueError("its header is damaged: its first table is behind the end of the file")
    # Holes cost nothing, so they do not count.
    most_given = data_size(fd, status.st_size) * _MOST_COMPRESSED if form is Form.GIVEN else 0
    taken = _Taken(status.st_size, header.cluster_bits)
    part_bytes, found_bytes = max(header.cluster_bytes, _BLOCK_BYTES), 0
    first = os.pread(fd, min(header.table_entries, header.tables) * _ENTRY_BYTES, header.table_at)
    for table in _entries(first):
        if table & _PLACE:
            taken.add(table & _PLACE)
            if _has_data(fd, table & _PLACE, header.cluster_bytes):
                second = os.pread(fd, header.cluster_bytes, table & _PLACE)
                found_bytes += _clusters(second, taken, form) * part_bytes
        if found_bytes > most_bytes:
            break
        if form is Form.GIVEN and found_bytes > most_given:
            raise ValueError(
                f"its tables are damaged: its data would be more than {_MOST_COMPRESSED} times its file"
            )
    return min(found_bytes, header.size_bytes)


def _has_data(fd: int, at: int, length: int) -> bool:
    """Whether not all of the ``length`` bytes at ``at`` are in a hole of the file."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA) < at + length
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise


class _Taken:
    """The clusters of the file that the tables have named so far, with one bit for each cluster of the file."""

    def __init__(self, file_bytes: int, cluster_bits: int) -> None:
        self._cluster_bits = cluster_bits
        # The last cluster of the file may be shorter.
        self._count = -(-file_bytes >> cluster_bits)
        if self._count > _MOST_CLUSTERS:
            raise ValueError(f"its file has {self._count} clusters; at most {_MOST_CLUSTERS} are read")
        self._bits = bytearray(self._count // 8 + 1)

    def add(self, place: int) -> None:
        """Record the cluster at the offset ``place`` of the file, in bytes. Raises ValueError for a cluster that was
        recorded before, and for a cluster beyond the end of the file. QEMU would read a cluster beyond the end as
        zeros, and the tables could name any number of such clusters.
        """
        number = self._number(place)
        if self._bits[number >> 3] >> (number & 7) & 1:
            raise ValueError("its tables are damaged: two parts of the disk are in one place of the file")
        self._bits[number >> 3] |= 1 << (number & 7)

    def check_compressed(self, entry: int) -> None:
        """Raise ValueError for the entry of a compressed cluster whose place is beyond the end of the file. Several
        compressed clusters may begin in one cluster of the file. The entry has the place in the bits below
        62 - (cluster bits - 8).
        """
        self._number(entry & ((1 << (62 - (self._cluster_bits - 8))) - 1))

    def _number(self, place: int) -> int:
        number = place >> self._cluster_bits
        if number >= self._count:
            raise ValueError("its tables are damaged: a part of the disk is behind the end of the file")
        return number


def _clusters(table: bytes, taken: _Taken, form: Form) -> int:
    """The number of clusters with data that a second table (QEMU's "L2 table") names. Raises ValueError for a
    cluster that ``taken`` does not accept, and in the form ``BUILT`` for a compressed cluster.
    """
    if not table.strip(b"\0"):
        return 0
    count = 0
    for entry in _entries(table):
        if entry & _COMPRESSED:
            if form is Form.BUILT:
                # Thousands of compressed clusters may be in one place, and unpacking each takes the time of a
                # cluster.
                raise ValueError("it has compressed data, and neither build nor a machine compresses any")
            taken.check_compressed(entry)
            count += 1
        elif entry & _PLACE and not entry & _ZEROS:
            taken.add(entry & _PLACE)
            count += 1
    return count


def _entries(table: bytes) -> array.array[int]:
    """The entries of a table as numbers. When the file ends within the table, ``table`` has only the bytes that
    the file has, and the result has only the complete entries.
    """
    found = array.array("Q", table[: len(table) // _ENTRY_BYTES * _ENTRY_BYTES])
    if sys.byteorder == "little":
        found.byteswap()
    return found


def _check_extensions(cluster: bytes, at: int) -> None:
    """Raise ValueError for a header extension other than the feature name table, and for an extension that does
    not fit into ``cluster``, the first cluster of the file. The first extension begins at ``at``. Each extension
    has a kind and a length, and is padded to a multiple of 8 bytes.
    """
    while at + _EXTENSION.size <= len(cluster):
        kind, length = _EXTENSION.unpack_from(cluster, at)
        if kind == _END:
            return
        if kind != _FEATURE_NAMES:
            raise ValueError(
                _REFUSED.get(kind, f"its header has an extension that build never writes ({kind:#x})")
            )
        at += _EXTENSION.size + (length + 7) // 8 * 8
    if at > len(cluster):
        raise ValueError("its header is damaged: an extension is longer than its cluster")
