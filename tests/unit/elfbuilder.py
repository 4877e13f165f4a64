"""Crafts small ELF files, so that tests need no compiler."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
DT_NULL, DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29
X86_64, I386, AARCH64 = 62, 3, 183
BASE = 0x400000
LD_SO = "/lib64/ld-linux-x86-64.so.2"
MULTIARCH = "/usr/lib/x86_64-linux-gnu"


def note(owner: bytes, kind: int, data: bytes, align: int = 4) -> bytes:
    head = struct.pack("<III", len(owner), len(data), kind) + owner
    head += bytes(-len(head) % align)
    return head + data + bytes(-len(data) % align)


def dlopen_note(*features: Sequence[str]) -> bytes:
    text = json.dumps([{"feature": "f", "soname": list(sonames)} for sonames in features])
    return note(b"FDO\0", 0x407C0C0A, text.encode() + b"\0")


def elf(
    needed: Sequence[str] = (),
    *,
    interpreter: str | None = None,
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    notes: bytes = b"",
    note_align: int = 4,
    machine: int = X86_64,
    bits: int = 64,
    dynamic: bool = True,
    strtab: bool = True,
) -> bytes:
    """A file with one PT_LOAD over all of it and no section headers."""
    strings = bytearray(b"\0")

    def add(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text.encode()) - 1

    tags = [(DT_NEEDED, add(name)) for name in needed]
    for tag, text in ((DT_SONAME, soname), (DT_RPATH, rpath), (DT_RUNPATH, runpath)):
        if text is not None:
            tags.append((tag, add(text)))
    header_size, segment_size, pair = (64, 56, "<qQ") if bits == 64 else (52, 32, "<iI")
    parts: list[tuple[int, bytes, int]] = []
    if interpreter is not None:
        parts.append((PT_INTERP, interpreter.encode() + b"\0", 1))
    if notes:
        parts.append((PT_NOTE, notes, note_align))
    at = header_size + segment_size * (len(parts) + 1 + dynamic)
    segments, body = [], b""
    for kind, content, align in parts:
        segments.append((kind, at + len(body), len(content), align))
        body += content
    if dynamic:
        strings_at = at + len(body)
        body += bytes(strings)
        if strtab:
            tags += [(DT_STRTAB, BASE + strings_at), (DT_STRSZ, len(strings))]
        table = b"".join(struct.pack(pair, *entry) for entry in [*tags, (DT_NULL, 0)])
        segments.append((PT_DYNAMIC, at + len(body), len(table), 8))
        body += table
    segments.insert(0, (PT_LOAD, 0, at + len(body), 4096))
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    layout = "<HHIQQQIHHHHHH" if bits == 64 else "<HHIIIIIHHHHHH"
    header = ident + struct.pack(
        layout, 3, machine, 1, 0, header_size, 0, 0, header_size, segment_size, len(segments), 0, 0, 0
    )
    table = b"".join(segment(bits, *each) for each in segments)
    return header + table + body


def segment(bits: int, kind: int, offset: int, size: int, align: int) -> bytes:
    if bits == 64:
        return struct.pack("<IIQQQQQQ", kind, 4, offset, BASE + offset, 0, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, BASE + offset, 0, size, size, 4, align)


def replaced(path: Path, content: bytes) -> Path:
    """``path`` with that content, as a new file: ext4 writes one that is truncated and closed to the disk at once."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path
