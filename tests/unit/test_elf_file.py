"""read_elf gives the facts of an ELF file, or an error that names the file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quickstart.errors import StartSetError
from quickstart.inspect.elf_file import ElfFacts, read_elf
from tests.unit.elfbuilder import (
    DT_NEEDED,
    DT_STRSZ,
    DT_STRTAB,
    I386,
    LD_SO,
    dlopen_note,
    elf,
    note,
    replaced,
)


def facts_of(tmp_path: Path, content: bytes) -> ElfFacts | None:
    return read_elf(replaced(tmp_path / "file", content))


FULL = elf(
    ["liba.so.1", "libb.so.2"],
    interpreter=LD_SO,
    soname="libself.so.3",
    rpath="/r1:$ORIGIN/r2",
    runpath="/u1::/u2",
    notes=note(b"GNU\0", 3, b"\1\2\3") + dlopen_note(["libz.so.2", "libz.so.1"], ["libq.so"]),
)


def test_facts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, FULL)
    assert facts is not None
    at = facts.interpreter_offset
    assert FULL[at : at + facts.interpreter_capacity] == LD_SO.encode() + b"\0"
    assert facts == ElfFacts(
        interpreter=LD_SO,
        interpreter_offset=at,
        interpreter_capacity=len(LD_SO) + 1,
        needed=("liba.so.1", "libb.so.2"),
        soname="libself.so.3",
        rpath=("/r1", "$ORIGIN/r2"),
        runpath=("/u1", "/u2"),
        elf_class=64,
        machine="EM_X86_64",
        dlopen_notes=(("libz.so.2", "libz.so.1"), ("libq.so",)),
        is_dynamic=True,
    )


def test_facts_of_32_bits(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, elf(["liba.so"], bits=32, machine=I386, soname="s"))
    assert facts is not None
    assert (facts.elf_class, facts.machine, facts.needed, facts.soname) == (32, "EM_386", ("liba.so",), "s")


def test_static_file(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, elf(dynamic=False))
    assert facts is not None
    assert not facts.is_dynamic
    assert (facts.interpreter, facts.interpreter_offset, facts.interpreter_capacity) == (None, 0, 0)


def test_notes_aligned_to_8(tmp_path: Path) -> None:
    text = b'[{"soname":["libx.so"]}]'
    notes = note(b"GNU\0", 5, b"1234", 8) + note(b"FDO\0", 0x407C0C0A, text, 8)
    facts = facts_of(tmp_path, elf(notes=notes, note_align=8))
    assert facts is not None
    assert facts.dlopen_notes == (("libx.so",),)


def test_what_is_no_elf_file(tmp_path: Path) -> None:
    for content in (b"", b"\x7fEL", b"#!/bin/sh\n", b"\x7fELG" + FULL[4:]):
        assert facts_of(tmp_path, content) is None
    assert read_elf(tmp_path) is None


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StartSetError, match="none cannot be read as an ELF file"):
        read_elf(tmp_path / "none")


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    for size in range(len(FULL)):
        if size < 4:
            assert facts_of(tmp_path, FULL[:size]) is None
            continue
        with pytest.raises(StartSetError, match="file cannot be read as an ELF file") as caught:
            facts_of(tmp_path, FULL[:size])
        assert caught.value.hint


def test_section_headers_that_are_cut_off(tmp_path: Path) -> None:
    content = bytearray(elf())
    struct.pack_into("<Q", content, 40, len(content) - 64)
    struct.pack_into("<HH", content, 58, 64, 2)
    with pytest.raises(StartSetError, match="section headers end at"):
        facts_of(tmp_path, bytes(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (elf(["liba.so"], strtab=False), "string at .* has no end"),
        (elf(["liba.so"]).replace(struct.pack("<qQ", DT_NEEDED, 1), struct.pack("<qQ", 1, 99)), "has no end"),
        (elf(["x"]).replace(struct.pack("<q", DT_STRSZ), struct.pack("<q", 77)), "has no end"),
        (elf(["x"], interpreter="/ld").replace(b"/ld\0", b"/ldx"), "has no end"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b"{}")), "not a list of features"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b"[1]")), "not a list of features"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b'[{"soname":"x"}]')), "not a list of features"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b'[{"soname":[1]}]')), "not a list of features"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b"\xff")), "cannot be read"),
        (elf(notes=note(b"FDO\0", 0x407C0C0A, b"[" * 100_000)), "cannot be read"),
        (elf(notes=struct.pack("<III", 4, 99, 1) + b"GNU\0"), "longer than its segment"),
    ],
)
def test_damaged(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(StartSetError, match=message):
        facts_of(tmp_path, content)


def test_string_table_outside_of_all_segments(tmp_path: Path) -> None:
    content = elf(["x"])
    at = content.index(struct.pack("<q", DT_STRTAB)) + 8
    with pytest.raises(StartSetError, match="string table at 0x1 "):
        facts_of(tmp_path, content[:at] + struct.pack("<Q", 1) + content[at + 8 :])


@settings(max_examples=600)
@given(st.integers(4, len(FULL) - 1), st.binary(min_size=1, max_size=16))
def test_garbled_anywhere(tmp_path_factory: pytest.TempPathFactory, at: int, garbage: bytes) -> None:
    content = FULL[:at] + garbage + FULL[at + len(garbage) :]
    path = replaced(tmp_path_factory.getbasetemp() / "garbled", content)
    try:
        assert read_elf(path) is not None
    except StartSetError as error:
        assert str(path) in error.message


@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_each_header_byte_garbled(tmp_path: Path, value: int) -> None:
    for at in range(4, 64 + 56 * 4):
        try:
            facts_of(tmp_path, FULL[:at] + bytes([value]) + FULL[at + 1 :])
        except StartSetError as error:
            assert error.hint
