"""Malicious ELF files: each is read correctly or ends in an error of ours that names it, without a hang or much memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import StartSetError
from quickstart.inspect.elf import closure
from quickstart.inspect.elf_file import ElfFacts, read_elf
from quickstart.inspect.imageroot import ImageRoot
from tests.unit.elfbuilder import (
    BASE,
    DT_NEEDED,
    DT_STRSZ,
    DT_STRTAB,
    LD_SO,
    dlopen_note,
    elf,
    replaced,
    segment,
)
from tests.unit.hostile import ANY_FIXTURE, GIB, little_memory

PROGRAM = elf(
    ["liba.so.1", "libb.so"],
    interpreter=LD_SO,
    soname="app",
    runpath="/opt/a:/opt/b",
    notes=dlopen_note(["libc.so"]),
)


def facts_or_error(path: Path, content: bytes) -> ElfFacts | None:
    """None also for the error, which names the file."""
    try:
        return read_elf(replaced(path, content))
    except StartSetError as error:
        assert str(path) in error.message
        return None


def test_a_program_cut_anywhere(tmp_path: Path) -> None:
    """Every border is among these: the headers', the program headers', the dynamic section's and the strings'."""
    for size in range(4, len(PROGRAM)):
        assert facts_or_error(tmp_path / "app", PROGRAM[:size]) is None, size
    assert facts_or_error(tmp_path / "app", PROGRAM) is not None


@given(st.lists(st.tuples(st.integers(0, len(PROGRAM) - 1), st.binary(min_size=1, max_size=8)), max_size=6))
@ANY_FIXTURE
def test_a_program_with_any_bytes_changed(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(PROGRAM)
    for at, new in changes:
        content[at : at + len(new)] = new
    facts_or_error(tmp_path / "app", bytes(content))


@given(st.binary(max_size=300))
@ANY_FIXTURE
def test_magic_and_noise(tmp_path: Path, noise: bytes) -> None:
    facts_or_error(tmp_path / "app", b"\x7fELF\x02\x01\x01" + noise)


def header(
    count: int, size: int = 56, offset: int = 64, sections: tuple[int, int, int, int] = (0, 0, 0, 0)
) -> bytes:
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    start, section_size, section_count, names = sections
    rest = (3, 62, 1, 0, offset, start, 0, 64, size, count, section_size, section_count, names)
    return ident + struct.pack("<HHIQQQIHHHHHH", *rest)


HUGE = 1 << 60


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (header(65535), "65535 program headers"),
        (header(65535, size=0), "0 bytes each"),
        (header(2, size=55) + bytes(200), "55 bytes each"),
        (header(3), "program headers end at"),
        (header(1, offset=HUGE), "program headers end at"),
        (header(0, sections=(64, 64, 65535, 0)), "section headers end at"),
        (header(0, sections=(HUGE, 64, 1, 0)), "section headers end at"),
        (header(1) + segment(64, 1, 0, HUGE, 1), "segment 0 ends at"),
        (header(1) + segment(64, 3, HUGE, HUGE, 1), "segment 0 ends at"),
        (header(1) + segment(64, 2, (1 << 64) - 1 - BASE, 1, 1), "segment 0 ends at"),
    ],
)
def test_absurd_numbers_in_a_small_file(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "app"
    path.write_bytes(content)
    with little_memory(), pytest.raises(StartSetError, match=what) as caught:
        read_elf(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(("kind", "what"), [(2, "PT_DYNAMIC"), (3, "PT_INTERP"), (4, "PT_NOTE")])
def test_a_segment_over_a_huge_sparse_file(tmp_path: Path, kind: int, what: str) -> None:
    path = tmp_path / "app"
    with path.open("wb") as file:
        file.write(header(1) + segment(64, kind, 0, 5 * GIB, 1))
        file.truncate(5 * GIB)
    with little_memory(), pytest.raises(StartSetError, match=f"its {what} has 5368709120 bytes"):
        read_elf(path)


def test_strings_that_overlap_and_a_string_table_over_a_huge_file(tmp_path: Path) -> None:
    count = 4000
    entries = [(DT_NEEDED, at) for at in range(count)] + [(DT_STRTAB, BASE + (1 << 20)), (DT_STRSZ, 4 * GIB)]
    dynamic = b"".join(struct.pack("<qQ", *each) for each in [*entries, (0, 0)])
    path = tmp_path / "app"
    with path.open("wb") as file:
        file.write(
            header(2) + segment(64, 1, 0, 5 * GIB, 1) + segment(64, 2, 64 + 112, len(dynamic), 8) + dynamic
        )
        file.seek(1 << 20)
        file.write(b"x" * 60000)
        file.truncate(5 * GIB)
    with little_memory(), pytest.raises(StartSetError, match="more than 1048576 bytes"):
        read_elf(path)


def test_notes_that_overlap(tmp_path: Path) -> None:
    notes = segment(64, 4, 57000, 3000, 4) * 400
    (tmp_path / "app").write_bytes((header(400) + notes).ljust(60000, b"\0"))
    with little_memory(), pytest.raises(StartSetError, match="more than 1048576 bytes"):
        read_elf(tmp_path / "app")


def test_a_library_that_is_a_directory_a_fifo_or_a_loop(tmp_path: Path) -> None:
    root = ImageRoot(tmp_path)
    for name in ("bin", "lib", "usr/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/app").write_bytes(elf(["liba.so"]))
    (tmp_path / "lib/liba.so").mkdir()
    os.mkfifo(tmp_path / "usr/lib/liba.so")
    with pytest.raises(StartSetError, match=r"/bin/app needs library liba\.so"):
        closure(root, [PurePosixPath("/bin/app")])
    (tmp_path / "lib/liba.so").rmdir()
    (tmp_path / "lib/liba.so").symlink_to("liba.so")
    with pytest.raises(StartSetError, match=r"/lib/liba\.so meets more than 40 symbolic links"):
        closure(root, [PurePosixPath("/bin/app")])
