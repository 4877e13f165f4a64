"""Unified kernel images, section by section, as objcopy(1) and ukify(1) write them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

_HEADER_AT, _ALIGNMENT = 0x80, 512
# IMAGE_SCN_CNT_INITIALIZED_DATA and IMAGE_SCN_MEM_READ.
_FLAGS = 0x40000040


def unified_image(sections: Mapping[str, bytes], machine: int = 0x8664, optional_bytes: int = 240) -> bytes:
    """A program for EFI whose code is of no use."""
    names = list(sections)
    table = _HEADER_AT + 24 + optional_bytes
    at = -(-(table + 40 * len(names)) // _ALIGNMENT) * _ALIGNMENT
    head = bytearray(at)
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 0x3C, _HEADER_AT)
    struct.pack_into("<4sHH12xHH", head, _HEADER_AT, b"PE\0\0", machine, len(names), optional_bytes, 0x22)
    # The optional header of PE32+: alignments, and the size in memory.
    if optional_bytes >= 240:
        struct.pack_into("<H30xII", head, _HEADER_AT + 24, 0x20B, 4096, _ALIGNMENT)
        struct.pack_into("<I", head, _HEADER_AT + 24 + 56, 0x20000 + 4096 * len(names))
    body = b""
    for number, name in enumerate(names):
        content = sections[name]
        padded = content.ljust(-(-len(content) // _ALIGNMENT) * _ALIGNMENT, b"\0")
        place = at + len(body)
        address = 0x20000 + 4096 * number
        record = struct.pack("<8sIIII12xI", name.encode(), len(content), address, len(padded), place, _FLAGS)
        head[table + 40 * number : table + 40 * (number + 1)] = record
        body += padded
    return bytes(head) + body


RELEASE = (
    b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nVERSION="12 (bookworm)"\nID=debian\n'
)
SECTIONS = {
    ".text": b"\xcc",
    ".osrel": RELEASE,
    ".cmdline": b"root=UUID=1 ro  console=ttyS0\n",
    ".linux": b"kernel",
    ".initrd": b"initramfs",
}
