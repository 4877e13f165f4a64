"""The files of an initramfs, of our writer and of a distribution's tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.initramfs.contents import file_sizes

PACKERS = {"plain": ["cat"], "gzip": ["gzip", "-c"], "xz": ["xz", "-c"], "zstd": ["zstd", "-qc"]}


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
    path.write_bytes(run(PACKERS[packer], archive, tmp_path)[:-600])
    assert file_sizes(path) is None


def test_what_is_no_archive_and_what_is_compressed_behind_a_plain_one(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "initrd.img"
    path.write_bytes(b"\x02\x21\x4c\x18" + archive)
    assert file_sizes(path) is None
    path.write_bytes(archive + run(PACKERS["gzip"], archive, tmp_path))
    assert file_sizes(path) is None
