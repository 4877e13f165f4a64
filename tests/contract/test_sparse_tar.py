"""The reader of archives against sparse files as GNU tar writes them."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from quickstart.inspect.foreign.members import Kind
from quickstart.inspect.foreign.tar import read_archive
from quickstart.model import MIB


@pytest.mark.parametrize(
    "options", [["gnu"], *(["posix", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0"))]
)
def test_a_sparse_file_of_tar_is_read(tmp_path: Path, options: list[str]) -> None:
    """With many pieces, so that its map takes several blocks."""
    with (tmp_path / "holes").open("wb") as holes:
        for number in range(200):
            holes.seek(number * 8192)
            holes.write(b"x" * 1000)
        holes.truncate(2 * MIB)
    form = f"--format={options[0]}"
    words = ["tar", "-C", str(tmp_path), "--sparse", form, *options[1:], "-c", "holes", "holes"]
    packed = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    content = (tmp_path / "holes").read_bytes()
    assert len(packed) < len(content)
    for member, data in read_archive(io.BytesIO(packed)):
        if member.kind is Kind.FILE:
            copy, stored = bytearray(member.size_bytes), io.BytesIO(b"".join(data))
            for at, length in member.segments:
                copy[at : at + length] = stored.read(length)
            assert copy == content
