"""Read unified kernel images: programs for EFI with a kernel, an initramfs and a command line in sections of their own
(systemd-stub(7), "Unified Kernel Image" of the UAPI group; Microsoft's "PE Format" for the table of sections).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError

KERNEL, INITRAMFS = ".linux", ".initrd"
_HEAD_BYTES, _PIECE_BYTES = 1 << 20, 1 << 20
_DOS_MAGIC, _PE_MAGIC = b"MZ", b"PE\0\0"
_X86_64 = 0x8664
# Where the DOS header says where the PE header is.
_PE_OFFSET_AT = 0x3C
# The PE header: magic, machine, number of sections, 12 bytes that do not matter here, size of the optional header, flags.
_HEADER = struct.Struct("<4sHH12xHH")
# Name, virtual size, virtual address, size in the file, offset in the file.
_SECTION = struct.Struct("<8sIIII16x")
# systemd's stub has eight, and a unified kernel image of it has four more.
_MOST_SECTIONS = 96
_QUOTES = "\"'"


@dataclass(frozen=True)
class Section:
    """A section of a program: its place in the file."""

    offset: int
    size: int

    def of(self, data: bytes) -> bytes | None:
        """The section's content, or None when ``data``, the beginning of the file, does not have all of it."""
        end = self.offset + self.size
        return data[self.offset : end] if end <= len(data) else None


def sections(head: bytes) -> Mapping[str, Section]:
    """The sections of a program for x86-64, of which ``head`` is the beginning. When a name occurs twice, the first
    section counts, as it does for systemd-boot. Raises ValueError when ``head`` is not the beginning of such a program.
    """
    if len(head) < _PE_OFFSET_AT + 4 or not head.startswith(_DOS_MAGIC):
        raise ValueError("it is no program for EFI")
    (at,) = struct.unpack_from("<I", head, _PE_OFFSET_AT)
    if at + _HEADER.size > len(head):
        raise ValueError("its header is not at its beginning")
    magic, machine, count, optional_bytes, _ = _HEADER.unpack_from(head, at)
    if magic != _PE_MAGIC or machine != _X86_64:
        raise ValueError("it is no program for x86-64")
    table = at + _HEADER.size + optional_bytes
    if count > _MOST_SECTIONS or table + count * _SECTION.size > len(head):
        raise ValueError("its table of sections is not at its beginning")
    found: dict[str, Section] = {}
    for number in range(count):
        name, memory_bytes, _, file_bytes, offset = _SECTION.unpack_from(head, table + number * _SECTION.size)
        # In the file, a section may be filled up to the next multiple of the alignment.
        size = min(memory_bytes, file_bytes) if memory_bytes else file_bytes
        found.setdefault(name.rstrip(b"\0").decode("latin-1"), Section(offset, size))
    return found


def divide(image: Path, kernel: Path, initramfs: Path) -> None:
    """Write the kernel and the initramfs in the unified kernel image ``image`` to two new files. Raises BadInputError when
    the image does not have both.
    """
    with image.open("rb") as file:
        try:
            found = sections(file.read(_HEAD_BYTES))
        except ValueError as error:
            raise BadInputError(
                f"the unified kernel image of the default entry cannot be read: {error}"
            ) from error
        for name, target in ((KERNEL, kernel), (INITRAMFS, initramfs)):
            section = found.get(name)
            if section is None or section.offset + section.size > image.stat().st_size:
                raise BadInputError(
                    f"the unified kernel image of the default entry has no whole section {name}"
                )
            file.seek(section.offset)
            left = section.size
            with target.open("xb") as out:
                while left and (piece := file.read(min(left, _PIECE_BYTES))):
                    left -= out.write(piece)


def command_line(section: bytes) -> str:
    """The kernel's command line in the section ``.cmdline``."""
    text = section.partition(b"\0")[0].decode(errors="replace")
    return " ".join(text.split())


def release(section: bytes) -> Mapping[str, str]:
    """The fields of os-release(5) in the section ``.osrel``, as systemd-boot reads them: without the rules of a shell,
    and with one pair of quotation marks removed.
    """
    found: dict[str, str] = {}
    for line in section.partition(b"\0")[0].decode(errors="replace").splitlines():
        key, is_field, value = line.strip().partition("=")
        if is_field and not key.startswith("#"):
            is_quoted = len(value) >= 2 and value[0] in _QUOTES and value[-1] == value[0]
            found[key.strip()] = value[1:-1] if is_quoted else value
    return found
