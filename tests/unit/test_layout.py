"""The archive's layout: links stay inside /fast, programs name our loader, and init's texts are correct with any character."""

from __future__ import annotations

import posixpath
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import StartSetError
from quickstart.initramfs.layout import LOADER, part_b, with_interpreter
from quickstart.initramfs.newc import write_archive
from quickstart.inspect.elf_file import read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import StartFile, StartSet
from tests.unit.elfbuilder import LD_SO, elf
from tests.unit.layouts import CONFIG, PROGRAM, START_SET, P, by_name, directory, link

# ---------------------------------------------------------------- part B


def test_the_last_file_says_that_part_b_is_whole(root: ImageRoot) -> None:
    entries = list(part_b(CONFIG, START_SET, root))
    assert entries[-1].name == "fast/quickstart/part-b"
    assert entries[-1].data == b"0123456789abcdef\n"
    assert {f"fast{file.path}" for file in START_SET.files} <= {entry.name for entry in entries}


def test_part_b_is_an_archive_that_can_be_written(root: ImageRoot, tmp_path: Path) -> None:
    with (tmp_path / "archive").open("wb") as stream:
        assert write_archive(stream, part_b(CONFIG, START_SET, root)) > 0


def test_owner_and_time_are_none_of_the_hosts(root: ImageRoot) -> None:
    assert {(e.uid, e.gid, e.mtime) for e in part_b(CONFIG, START_SET, root)} == {(0, 0, 0)}


def test_modes_are_the_images(root: ImageRoot) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    assert entries["fast/etc/app.conf"].mode == 0o100640
    assert entries["fast/usr/bin/app"].mode == 0o100755
    assert entries["fast/usr/bin"].mode == 0o040755


def test_links_stay_inside_fast(root: ImageRoot) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    assert entries["fast/etc/localtime"].data == b"../usr/share/zone"
    assert entries["fast/etc/relative"].data == b"../usr/share/zone"
    assert entries["fast/lib64"].data == b"usr/lib64"
    for name, entry in entries.items():
        if stat.S_ISLNK(entry.mode) and isinstance(entry.data, bytes):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.data.decode()))
            assert place.startswith("fast/"), name
            assert place in entries, name


@pytest.mark.parametrize(
    ("lib64", "place", "target"),
    [
        (link("/lib64", "usr/lib64"), "fast/usr/lib64/ld.so", b"ld-linux-x86-64.so.2"),
        (link("/lib64", "/usr/lib64"), "fast/usr/lib64/ld.so", b"ld-linux-x86-64.so.2"),
        (directory("/lib64"), "fast/lib64/ld.so", b"../usr/lib64/ld-linux-x86-64.so.2"),
    ],
)
def test_the_loader_has_our_name(root: ImageRoot, lib64: StartFile, place: str, target: bytes) -> None:
    files = tuple(lib64 if file.path == P("/lib64") else file for file in START_SET.files)
    entries = by_name(part_b(CONFIG, StartSet(files, ()), root))
    assert entries[place].data == target
    assert LOADER == "/fast/lib64/ld.so"


def test_programs_without_lib64(root: ImageRoot) -> None:
    files = tuple(file for file in START_SET.files if file.path != P("/lib64"))
    with pytest.raises(StartSetError, match="no /lib64"):
        list(part_b(CONFIG, StartSet(files, ()), root))


def test_only_programs_get_our_loader(root: ImageRoot, tmp_path: Path) -> None:
    entries = by_name(part_b(CONFIG, START_SET, root))
    program = entries["fast/usr/bin/app"].data
    assert isinstance(program, bytes)
    (tmp_path / "patched").write_bytes(program)
    facts = read_elf(tmp_path / "patched")
    assert facts is not None
    assert facts.interpreter == LOADER
    # Not executable, so nothing starts it: it stays as it is.
    assert entries["fast/usr/lib64/liba.so.1"].data == tmp_path / "usr/lib64/liba.so.1"


def test_a_program_with_two_names_is_packed_once_with_our_loader(root: ImageRoot, tmp_path: Path) -> None:
    program = next(file for file in START_SET.files if file.path == P("/usr/bin/app"))
    other = replace(program, path=P("/usr/bin/app1.0"), hard_link_to=program.path)
    files = tuple(sorted((*START_SET.files, other), key=lambda file: file.path))
    entries = by_name(part_b(CONFIG, StartSet(files, ()), root))
    first, second = entries["fast/usr/bin/app"], entries["fast/usr/bin/app1.0"]
    assert isinstance(first.data, bytes)
    assert LOADER.encode() in first.data
    assert (first.names, second.data, second.link_to) == (2, b"", "fast/usr/bin/app")
    with (tmp_path / "archive").open("wb") as stream:
        write_archive(stream, part_b(CONFIG, StartSet(files, ()), root))
    assert (tmp_path / "archive").read_bytes().count(LOADER.encode()) == 1


# ---------------------------------------------------------------- PT_INTERP


def test_the_rest_of_the_interpreter_is_zeroed(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_bytes(PROGRAM)
    patched = with_interpreter(path, "/x")
    at = PROGRAM.index(LD_SO.encode())
    assert len(patched) == len(PROGRAM)
    assert patched[at : at + len(LD_SO) + 1] == b"/x" + bytes(len(LD_SO) - 1)
    assert (patched[:at], patched[at + len(LD_SO) :]) == (PROGRAM[:at], PROGRAM[at + len(LD_SO) :])


def test_an_interpreter_that_just_fits_and_one_that_does_not(tmp_path: Path) -> None:
    path = tmp_path / "app"
    path.write_bytes(PROGRAM)
    same_length = "/" + "x" * (len(LD_SO) - 1)
    assert same_length.encode() + b"\0" in with_interpreter(path, same_length)
    with pytest.raises(StartSetError, match=r"does not fit into the 28 bytes of PT_INTERP in .*/app"):
        with_interpreter(path, same_length + "x")


def test_a_file_without_interpreter(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(elf())
    (tmp_path / "text").write_text("text")
    for name in ("lib", "text"):
        with pytest.raises(StartSetError, match="has no PT_INTERP"):
            with_interpreter(tmp_path / name, LOADER)
