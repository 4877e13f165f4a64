"""Read unified kernel images, and append to the initramfs of one. These images are programs for EFI with a kernel, an
initramfs and a command line in sections of their own (systemd-stub(7), "Unified Kernel Image" of the UAPI group;
Microsoft's "PE Format" for the table of sections).
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError

KERNEL, INITRAMFS = ".linux", ".initrd"
_HEAD_BYTES, _PIECE_BYTES = 1 << 20, 1 << 20
_DOS_MAGIC, _PE_MAGIC = b"MZ", b"PE\0\0"
_X86_64, _PE32_PLUS = 0x8664, 0x20B
# In the PE header: where the table of symbols is, and how many it has.
_SYMBOLS_AT = 12
# In the optional header of PE32+: the alignments in memory and in the file, the size in memory, and that of the signatures.
_OPTIONAL = struct.Struct("<H30xII")
_SIZE_IN_MEMORY_AT, _SIGNATURE_BYTES_AT = 56, 148
# Where the DOS header says where the PE header is.
_PE_OFFSET_AT = 0x3C
# The PE header: magic, machine, number of sections, 12 bytes that do not matter here, size of the optional header, flags.
_HEADER = struct.Struct("<4sHH12xHH")
# Name, virtual size, virtual address, size in the file, offset in the file.
_SECTION = struct.Struct("<8sIIII16x")
_MEMORY_BYTES_AT, _FILE_BYTES_AT = 8, 16
# systemd's stub has eight, and a unified kernel image of it has four more.
_MOST_SECTIONS = 96
# An archive in an initramfs begins at a multiple of 4 bytes (Documentation/driver-api/early-userspace/buffer-format.rst).
# cpio(1) fills an archive up to a block of 512 bytes.
_ARCHIVE_ALIGNMENT = 512
# PE Format: "a power of 2 between 512 and 64 K, inclusive".
_FILE_ALIGNMENTS = frozenset(1 << bits for bits in range(9, 17))
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
    found: dict[str, Section] = {}
    for _, name, (memory_bytes, _, file_bytes, offset) in _table(head):
        # In the file, a section may be filled up to the next multiple of the alignment.
        size = min(memory_bytes, file_bytes) if memory_bytes else file_bytes
        found.setdefault(name, Section(offset, size))
    return found


def _table(head: bytes) -> Iterator[tuple[int, str, tuple[int, int, int, int]]]:
    """Each entry of the table of sections: its place, the section's name, and the section's size and address in memory, its
    size in the file and its offset.
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
    for place in range(table, table + count * _SECTION.size, _SECTION.size):
        name, *numbers = _SECTION.unpack_from(head, place)
        memory_bytes, address, file_bytes, offset = numbers
        yield place, name.rstrip(b"\0").decode("latin-1"), (memory_bytes, address, file_bytes, offset)


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


def append_archive(image: Path, archive: bytes, target: Path) -> None:
    """Write a copy of the unified kernel image ``image``, whose initramfs has ``archive`` at its end, to the new file
    ``target``. Raises BadInputError when the image is signed, or when the initramfs is not the last section. Debian's
    objcopy(1) writes it there.
    """
    with image.open("rb") as file:
        head = bytearray(file.read(_HEAD_BYTES))
    try:
        at_bytes, padded_bytes, count = _lengthened(head, len(archive), image.stat().st_size)
    except (ValueError, struct.error) as error:
        reason = "its header is cut off" if isinstance(error, struct.error) else error
        raise BadInputError(
            f"the launch agent cannot be added to the unified kernel image of the default entry: {reason}",
            hint="make the image with objcopy or ukify, with its initramfs as the last section and without a signature",
        ) from error
    shutil.copyfile(image, target)
    with target.open("r+b") as file:
        file.write(head)
        file.seek(at_bytes)
        file.write(archive.rjust(count, b"\0").ljust(padded_bytes, b"\0"))
        file.truncate()


def _lengthened(head: bytearray, archive_bytes: int, file_size: int) -> tuple[int, int, int]:
    """Change ``head``, the beginning of a unified kernel image, so that the image has ``archive_bytes`` more of
    initramfs. The result is where the new part begins in the file, its size there, and how much of it is initramfs: the
    archive with zeros before it. Raises ValueError when the initramfs cannot grow.
    """
    table = list(_table(bytes(head)))
    found = [(place, numbers) for place, name, numbers in table if name == INITRAMFS]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} sections {INITRAMFS}")
    ((place, (old_bytes, address, old_file_bytes, offset)),) = found
    (at,) = struct.unpack_from("<I", head, _PE_OFFSET_AT)
    optional = at + _HEADER.size
    magic, memory_alignment, file_alignment = _OPTIONAL.unpack_from(head, optional)
    if magic != _PE32_PLUS or not memory_alignment or file_alignment not in _FILE_ALIGNMENTS:
        raise ValueError("its optional header is not that of PE32+")
    if struct.unpack_from("<I", head, optional + _SIGNATURE_BYTES_AT) != (0,):
        raise ValueError("it is signed")
    # objcopy(1) leaves the table of symbols of systemd's stub behind the last section. Nobody reads it.
    symbols, symbol_count = struct.unpack_from("<II", head, at + _SYMBOLS_AT)
    end = offset + old_file_bytes
    is_last = all(other <= address and begin <= offset for _, _, (_, other, _, begin) in table)
    if not is_last or not (end == file_size or (symbol_count and end == symbols)):
        raise ValueError("its initramfs is not its last section")
    if not 0 < old_bytes <= old_file_bytes:
        raise ValueError("the size of its initramfs in memory is not that in the file")
    new_bytes = old_bytes + -old_bytes % _ARCHIVE_ALIGNMENT + archive_bytes
    padded_bytes = _aligned(new_bytes, file_alignment)
    struct.pack_into("<II", head, at + _SYMBOLS_AT, 0, 0)
    struct.pack_into("<I", head, place + _MEMORY_BYTES_AT, new_bytes)
    struct.pack_into("<I", head, place + _FILE_BYTES_AT, padded_bytes)
    memory_bytes = _aligned(address + new_bytes, memory_alignment)
    struct.pack_into("<I", head, optional + _SIZE_IN_MEMORY_AT, memory_bytes)
    return offset + old_bytes, padded_bytes - old_bytes, new_bytes - old_bytes


def _aligned(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


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
