"""An empty FAT of ours, as libblkid sees it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quickstart.errors import CommandError
from quickstart.image.fat import write_fat


def test_an_empty_fat(tmp_path: Path) -> None:
    for name in ("esp", "again"):
        write_fat(tmp_path / name, 64, "ESP", "0A1B-2C3D")
    words = ("blkid", "-p", "-o", "export", str(tmp_path / "esp"))
    found = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert {"TYPE=vfat", "VERSION=FAT32", "LABEL=ESP", "UUID=0A1B-2C3D"} <= set(found)
    assert (tmp_path / "esp").stat().st_size == 64 << 20
    assert (tmp_path / "esp").read_bytes() == (tmp_path / "again").read_bytes()


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "esp").write_text("mine")
    with pytest.raises(CommandError):
        write_fat(tmp_path / "esp", 64, "ESP", "0A1B-2C3D")
    assert (tmp_path / "esp").read_text() == "mine"
