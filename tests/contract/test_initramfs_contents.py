"""The files of an initramfs, of our writer and of a distribution's tools."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.initramfs.contents import file_sizes
from quickstart.initramfs.newc import regular, write_archive

PACKERS = {"plain": ["cat"], "gzip": ["gzip", "-c"], "zstd": ["zstd", "-qc"]}


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    tree = tmp_path / "tree"
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "init").write_bytes(b"x" * 900)
    (tree / "usr/lib/big.so").write_bytes(bytes(70_000))
    (tree / "lib").symlink_to("usr/lib")
    names = "\n".join(str(each.relative_to(tree)) for each in sorted(tree.rglob("*")))
    return run(["cpio", "-o", "-H", "newc", "--quiet"], names.encode(), tree)


def run(argv: list[str], given: bytes, directory: Path) -> bytes:
    return subprocess.run(
        argv, input=given, stdout=subprocess.PIPE, cwd=directory, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("packer", PACKERS)
def test_regular_files_and_their_bytes(archive: bytes, tmp_path: Path, packer: str) -> None:
    path = tmp_path / "initrd.img"
    path.write_bytes(run(PACKERS[packer], archive, tmp_path))
    assert file_sizes(path) == {"init": 900, "usr/lib/big.so": 70_000}


@pytest.mark.parametrize("packer", PACKERS)
def test_an_archive_that_is_cut_has_no_contents(archive: bytes, tmp_path: Path, packer: str) -> None:
    path = tmp_path / "initrd.img"
    packed = run(PACKERS[packer], archive, tmp_path)
    path.write_bytes(packed[: len(packed) * 2 // 3])
    assert file_sizes(path) is None


def test_a_stranger_s_names_are_made_printable_and_not_all_are_listed(tmp_path: Path) -> None:
    tree = tmp_path / "names"
    tree.mkdir()
    (tree / "a\n\x1b[2J").touch()
    os.close(os.open(os.fsencode(tree) + b"/caf\xe9", os.O_CREAT | os.O_WRONLY))
    path = tmp_path / "initrd.img"
    path.write_bytes(run(["sh", "-c", "find . -type f -print0 | cpio -o -H newc -0 --quiet"], b"", tree))
    found = file_sizes(path)
    assert found is not None
    assert all(name.isprintable() and name.encode() for name in found)
    assert len(found) == 2


@pytest.mark.parametrize(
    "names",
    [map(str, range(20_001)), (f"{n}" + "\x01" * 230 for n in range(2000)), ("," * n for n in range(1, 120))],
)
def test_a_stranger_s_names_take_little_room(tmp_path: Path, names: Iterator[str]) -> None:
    """Each of them is in results.json, where a comma counts as a value."""
    stream = io.BytesIO()
    write_archive(stream, (regular(name, b"", 0o644) for name in sorted(names)))
    path = tmp_path / "initrd.img"
    path.write_bytes(stream.getvalue())
    assert file_sizes(path) is None


def test_a_stream_behind_another_counts_and_what_is_no_archive_has_no_contents(
    archive: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "initrd.img"
    path.write_bytes(archive + run(PACKERS["gzip"], archive, tmp_path))
    assert file_sizes(path) == {"init": 900, "usr/lib/big.so": 70_000}
    path.write_bytes(run(["xz", "-c"], archive, tmp_path))
    assert file_sizes(path) is None
