"""Read the header of a qcow2 image (docs/interop/qcow2.txt of QEMU), and find whether the image depends on
another file of the host.
"""

from __future__ import annotations

import os
import struct

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
