"""Read the facts that the loader (ld.so) uses from one ELF file.

elf(5) describes the format of ELF files. systemd's ELF_DLOPEN_METADATA describes the note `.note.dlopen`, which lists
the libraries that a program may load by dlopen(3).
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from quickstart.errors import StartSetError

MAGIC = b"\x7fELF"

_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 10, 14, 15, 29
_DLOPEN_NOTE = (b"FDO\0", 0x407C0C0A)
# These limits are above what any loader accepts: Linux for the program headers (load_elf_phdrs), and limits.h for a
# path. For the other numbers, no real file has a hundredth of the limit. With these limits, a file with false sizes
# costs little time and memory.
_MAX_TABLE_BYTES = 1 << 16
_MAX_PATH_BYTES = 4096
_MAX_TEXT_BYTES = 1 << 20
# Every needed name is searched for in every directory.
_MAX_NEEDED = 1024
_MAX_SEARCHED = 64


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """The facts that the loader uses from an ELF file.

    ``interpreter_offset`` is the position of the PT_INTERP segment in the file, in bytes. ``interpreter_capacity`` is
    the size of this segment with its final NUL, in bytes. The two numbers are 0 for a file without PT_INTERP.
    ``rpath`` and ``runpath`` are directories, in which $ORIGIN and other variables are not expanded. ``dlopen_notes``
    has one tuple for each optional feature that a `.note.dlopen` names. The tuple has sonames of libraries, the best
    library first. The feature needs one of these libraries. ``elf_class`` is 32 or 64, and ``machine`` is the name of
    the ``e_machine`` value, such as ``EM_X86_64``.
    """

    interpreter: str | None
    interpreter_offset: int
    interpreter_capacity: int
    needed: tuple[str, ...]
    soname: str | None
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    elf_class: int
    machine: str
    dlopen_notes: tuple[tuple[str, ...], ...]
    is_dynamic: bool


def read_elf(path: Path) -> ElfFacts | None:
    """The facts of an ELF file. Like the loader, this function reads the facts from the program headers. The result is
    None when the file is not an ELF file.

    Raises StartSetError with the file's name when the file does not exist, or when the file begins as an ELF file but
    is truncated or damaged.
    """
    try:
        if not S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            return _Reader(file).facts()
    except (OSError, ELFError, struct.error, ValueError, OverflowError, RecursionError) as error:
        raise StartSetError(
            f"{path} cannot be read as an ELF file, it may be truncated: {error}",
            hint="install its package again, or exclude the file by a rule of the profile",
        ) from error


class _Reader:
    """One open ELF file. A fault in the file raises ValueError or another exception that ``read_elf`` catches."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._elf = ELFFile(file)
        self._size = file.seek(0, 2)
        self._order = "<" if self._elf.little_endian else ">"
        sections_end = self._elf["e_shoff"] + self._elf["e_shnum"] * self._elf["e_shentsize"]
        if self._elf["e_shoff"] and sections_end > self._size:
            raise ValueError(f"its section headers end at {sections_end}, the file at {self._size}")
        self._text_bytes = 0
        self._check_program_headers()
        self._segments = [self._segment(number) for number in range(self._elf["e_phnum"])]

    def _check_program_headers(self) -> None:
        count, size = self._elf["e_phnum"], self._elf["e_phentsize"]
        end = self._elf["e_phoff"] + count * size
        if count and size != self._elf.structs.Elf_Phdr.sizeof():
            raise ValueError(f"its program headers have {size} bytes each")
        if count * size > _MAX_TABLE_BYTES:
            raise ValueError(f"it claims {count} program headers")
        if count and end > self._size:
            raise ValueError(f"its program headers end at {end}, the file at {self._size}")

    def facts(self) -> ElfFacts:
        interpreter = next(self._of_type("PT_INTERP"), None)
        dynamic = next(self._of_type("PT_DYNAMIC"), None)
        strings = self._dynamic_strings(dynamic) if dynamic else {}
        return ElfFacts(
            interpreter=_string(self._content(interpreter, _MAX_PATH_BYTES), 0) if interpreter else None,
            interpreter_offset=interpreter["p_offset"] if interpreter else 0,
            interpreter_capacity=interpreter["p_filesz"] if interpreter else 0,
            needed=tuple(strings.get(_DT_NEEDED, [])),
            soname=next(iter(strings.get(_DT_SONAME, [])), None),
            rpath=self._directories(strings.get(_DT_RPATH, [])),
            runpath=self._directories(strings.get(_DT_RUNPATH, [])),
            elf_class=self._elf.elfclass,
            machine=str(self._elf["e_machine"]),
            dlopen_notes=tuple(self._dlopen_notes()),
            is_dynamic=dynamic is not None,
        )

    def _segment(self, number: int) -> Mapping[str, Any]:
        at = self._elf["e_phoff"] + number * self._elf["e_phentsize"]
        segment: Mapping[str, Any] = struct_parse(self._elf.structs.Elf_Phdr, self._file, stream_pos=at)
        end = segment["p_offset"] + segment["p_filesz"]
        if segment["p_filesz"] and end > self._size:
            raise ValueError(f"its segment {number} ends at {end}, the file at {self._size}")
        return segment

    def _of_type(self, name: str) -> Iterator[Mapping[str, Any]]:
        return (segment for segment in self._segments if segment["p_type"] == name and segment["p_filesz"])

    def _content(self, segment: Mapping[str, Any], limit_bytes: int) -> bytes:
        if segment["p_filesz"] > limit_bytes:
            raise ValueError(f"its {segment['p_type']} has {segment['p_filesz']} bytes")
        self._file.seek(segment["p_offset"])
        return self._file.read(segment["p_filesz"])

    def _count_text(self, size: int) -> None:
        """Add ``size`` to the number of bytes of names and notes read from the file. Raises ValueError when this
        number exceeds the limit. Segments and strings may overlap, so a small file could make us read much more
        than the file's size.
        """
        self._text_bytes += size
        if self._text_bytes > _MAX_TEXT_BYTES:
            raise ValueError(f"its names and notes are more than {_MAX_TEXT_BYTES} bytes")

    def _dynamic_strings(self, dynamic: Mapping[str, Any]) -> dict[int, list[str]]:
        """The strings of the segment PT_DYNAMIC, by tag. The strings of each tag are in the order of the file."""
        entry = struct.Struct(self._order + ("iI" if self._elf.elfclass == 32 else "qQ"))
        content = self._content(dynamic, _MAX_TABLE_BYTES)
        pairs = entry.iter_unpack(content[: len(content) // entry.size * entry.size])
        entries = list(itertools.takewhile(lambda pair: pair[0] != _DT_NULL, pairs))
        values = dict(entries)
        size = values.get(_DT_STRSZ, 0) if _DT_STRTAB in values else 0
        start = self._strings_offset(values[_DT_STRTAB], size) if _DT_STRTAB in values else 0
        found: dict[int, list[str]] = {}
        for tag, value in entries:
            if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH):
                found.setdefault(tag, []).append(self._dynamic_string(start, size, value))
        if (count := len(found.get(_DT_NEEDED, ()))) > _MAX_NEEDED:
            raise ValueError(f"it needs {count} libraries")
        return found

    def _dynamic_string(self, start: int, size: int, at: int) -> str:
        self._file.seek(start + at)
        # The table may have any size, so only as many bytes are read as a string may have.
        text = self._file.read(max(0, min(size - at, _MAX_TABLE_BYTES)))
        end = text.find(b"\0")
        if end < 0:
            raise ValueError(f"its string at {at} of {size} bytes has no end")
        self._count_text(end)
        return text[:end].decode("utf-8", "surrogateescape")

    def _directories(self, paths: Iterable[str]) -> tuple[str, ...]:
        found = tuple(directory for path in paths for directory in path.split(":") if directory)
        if len(found) > _MAX_SEARCHED:
            raise ValueError(f"it names {len(found)} directories to search")
        return found

    def _strings_offset(self, address: int, size: int) -> int:
        for offset in self._elf.address_offsets(address, size):
            return int(offset)
        raise ValueError(f"its string table at {address:#x} with {size} bytes is in no segment")

    def _dlopen_notes(self) -> Iterator[tuple[str, ...]]:
        head = struct.Struct(self._order + "III")
        for segment in self._of_type("PT_NOTE"):
            content = self._content(segment, _MAX_TEXT_BYTES)
            self._count_text(len(content))
            alignment = 8 if segment["p_align"] == 8 else 4
            at = 0
            while at + head.size <= len(content):
                name_bytes, data_bytes, kind = head.unpack_from(content, at)
                name_at = at + head.size
                data_at = name_at + name_bytes + -(name_at + name_bytes) % alignment
                end = data_at + data_bytes
                if end > len(content):
                    raise ValueError(f"its note at {segment['p_offset'] + at} is longer than its segment")
                if (content[name_at : name_at + name_bytes], kind) == _DLOPEN_NOTE:
                    yield from _dlopen_sonames(content[data_at:end])
                at = end + -end % alignment


def _string(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if end < 0:
        raise ValueError(f"its string at {at} of {len(table)} bytes has no end")
    return table[at:end].decode("utf-8", "surrogateescape")


def _dlopen_sonames(note: bytes) -> Iterator[tuple[str, ...]]:
    features = json.loads(note.rstrip(b"\0"))
    for feature in features if isinstance(features, list) else [None]:
        sonames = feature.get("soname") if isinstance(feature, dict) else None
        if not isinstance(sonames, list) or not all(isinstance(soname, str) for soname in sonames):
            raise ValueError("its .note.dlopen is not a list of features that have sonames")
        yield tuple(sonames)
