"""Read the header and the tables of a qcow2 image (docs/interop/qcow2.txt of QEMU), and find whether the image
depends on another file of the host, and how much data it has.
"""

from __future__ import annotations

import array
import os
import struct
import sys

_MAGIC = b"QFI\xfb"
# Magic, version, place and length of the backing file's name, cluster bits, size, way of encryption; incompatible features of
# version 3 at 72, length of the header at 100.
_HEADER = struct.Struct(">4sIQIIQI")
_INCOMPATIBLE = struct.Struct(">Q")
_INCOMPATIBLE_AT = 72
_LENGTH = struct.Struct(">I")
_LENGTH_AT = 100
_HEADER_BYTES = {2: 72, 3: 104}
_EXTERNAL_DATA = 0x4
_EXTENSION = struct.Struct(">II")
_END = 0
# Of header extensions: what they name is another file, or a key.
_REFUSED = {
    0xE2792ACA: "it names the format of a backing file",
    0x44415441: "it names an external data file",
    0x0537BE77: "it is encrypted",
}
_CLUSTER_BITS = range(9, 22)
# Entries of the first table, and its place.
_TABLES = struct.Struct(">IQ")
_TABLES_AT = 36
_EXTENDED_ENTRIES = 0x10
_ENTRY_BYTES, _EXTENDED_BYTES = 8, 16
# 64 TiB with clusters of 64 KiB, which is what `build` makes. Each takes a read of a cluster.
_MOST_TABLES = 1 << 17
_MOST_CLUSTERS = 1 << 30
# Of an entry of either table: the place in the file; of the second: compressed, and (from version 3) all zeros.
_PLACE = ((1 << 56) - 1) & ~0x1FF
_COMPRESSED, _ZEROS = 1 << 62, 1


def virtual_bytes(fd: int) -> int:
    """The size in bytes of the disk in the qcow2 image that is open as ``fd``. Raises ValueError when QEMU
    would need another file or a key to open the image.

    QEMU itself refuses features that it does not know.
    """
    head = os.pread(fd, 1 << _CLUSTER_BITS[-1], 0)
    if len(head) < _HEADER_BYTES[2] or not head.startswith(_MAGIC):
        raise ValueError("it is no qcow2 image")
    _, version, backing_at, backing_bytes, cluster_bits, size_bytes, encryption = _HEADER.unpack_from(head)
    if len(head) < _HEADER_BYTES.get(version, len(head) + 1) or cluster_bits not in _CLUSTER_BITS:
        raise ValueError(f"it is no qcow2 image of version 2 or 3 (version {version})")
    header_bytes = _HEADER_BYTES[2]
    if version == 3:
        (incompatible,) = _INCOMPATIBLE.unpack_from(head, _INCOMPATIBLE_AT)
        if incompatible & _EXTERNAL_DATA:
            raise ValueError("it rests on another file (an external data file)")
        (header_bytes,) = _LENGTH.unpack_from(head, _LENGTH_AT)
    if backing_at or backing_bytes:
        raise ValueError("it rests on another file (a backing file)")
    if encryption:
        raise ValueError("it is encrypted")
    _check_extensions(head[: 1 << cluster_bits], header_bytes)
    return int(size_bytes)


def data_bytes(fd: int, most_bytes: int) -> int:
    """At most how many bytes of the disk in the image that is open as ``fd`` are not a hole, that is, how much
    is written when the image is converted. `virtual_bytes` must have accepted the image. The count ends above
    ``most_bytes``.

    Raises ValueError when two parts of the disk have the same place in the file. No sound image is like that,
    and otherwise a file of some KiB could stand for terabytes of data.
    """
    head = os.pread(fd, _HEADER_BYTES[3], 0)
    _, version, _, _, cluster_bits, size_bytes, _ = _HEADER.unpack_from(head)
    (features,) = _INCOMPATIBLE.unpack_from(head, _INCOMPATIBLE_AT) if version == 3 else (0,)
    entry_bytes = _EXTENDED_BYTES if features & _EXTENDED_ENTRIES else _ENTRY_BYTES
    cluster_bytes = 1 << cluster_bits
    tables = -(-size_bytes // (cluster_bytes // entry_bytes * cluster_bytes))
    if tables > _MOST_TABLES:
        raise ValueError(f"it has {tables} tables; at most {_MOST_TABLES} are read")
    count, place = _TABLES.unpack_from(head, _TABLES_AT)
    taken = _Taken(os.fstat(fd).st_size, cluster_bits)
    clusters = 0
    for table in _entries(os.pread(fd, min(count, tables) * _ENTRY_BYTES, place)):
        if table & _PLACE:
            taken.add(table & _PLACE)
            clusters += _clusters(os.pread(fd, cluster_bytes, table & _PLACE), entry_bytes, taken)
        if clusters * cluster_bytes > most_bytes:
            break
    return int(clusters * cluster_bytes)


class _Taken:
    """The clusters of the file that were met, one bit for each."""

    def __init__(self, file_bytes: int, cluster_bits: int) -> None:
        self._count, self._cluster_bits = file_bytes >> cluster_bits, cluster_bits
        if self._count > _MOST_CLUSTERS:
            raise ValueError(f"its file has {self._count} clusters; at most {_MOST_CLUSTERS} are read")
        self._bits = bytearray(self._count // 8 + 1)

    def add(self, place: int) -> None:
        """Note the cluster at ``place``. Raises ValueError for one that was noted before."""
        number = place >> self._cluster_bits
        # What is behind the end of the file has no data.
        if number < self._count:
            if self._bits[number >> 3] >> (number & 7) & 1:
                raise ValueError("its tables are damaged: two parts of the disk are in one place of the file")
            self._bits[number >> 3] |= 1 << (number & 7)


def _clusters(table: bytes, entry_bytes: int, taken: _Taken) -> int:
    """The number of clusters with data that a second table names."""
    if not table.strip(b"\0"):
        return 0
    zeros = _ZEROS if entry_bytes == _ENTRY_BYTES else 0
    count = 0
    for entry in _entries(table)[:: entry_bytes // _ENTRY_BYTES]:
        if entry & _COMPRESSED:
            count += 1
        elif entry & _PLACE and not entry & zeros:
            taken.add(entry & _PLACE)
            count += 1
    return count


def _entries(table: bytes) -> array.array[int]:
    """The entries of a table. What is behind the end of the file is not in it."""
    found = array.array("Q", table[: len(table) // _ENTRY_BYTES * _ENTRY_BYTES])
    if sys.byteorder == "little":
        found.byteswap()
    return found


def _check_extensions(cluster: bytes, at: int) -> None:
    """Raise ValueError for a header extension that names another file or a key. All extensions are in the
    first cluster. Each has a kind and a length, and is padded to a multiple of 8 bytes.
    """
    while at + _EXTENSION.size <= len(cluster):
        kind, length = _EXTENSION.unpack_from(cluster, at)
        if kind == _END:
            return
        if kind in _REFUSED:
            raise ValueError(f"it rests on another file ({_REFUSED[kind]})")
        at += _EXTENSION.size + (length + 7) // 8 * 8
    if at > len(cluster):
        raise ValueError("its header is damaged: an extension is longer than its cluster")
