"""What `quickstart record` reads, out of an initramfs (quickstart/initramfs/recorded.py)."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from quickstart.initramfs.layout import OURS
from quickstart.initramfs.newc import CpioEntry, directory, regular, write_archive
from quickstart.initramfs.recorded import NAMES, record_files

SCRIPT = resources.files("quickstart.reference.guestpkg").joinpath("scripts/quickstart").read_text()


def written(path: Path, *archives: list[CpioEntry]) -> Path:
    with path.open("wb") as stream:
        for entries in archives:
            write_archive(stream, [directory("fast"), directory(OURS), *entries])
    return path


def named(*names: str) -> list[CpioEntry]:
    return [regular(f"{OURS}/{name}", f"content of {name}".encode(), 0o600) for name in names]


def test_the_names_are_those_that_the_guests_script_reads() -> None:
    assert set(re.findall(r'"\$from/([\w.-]+)"', SCRIPT)) == set(NAMES)


def test_the_files_of_both_parts_are_taken_and_no_others(tmp_path: Path) -> None:
    first, *rest = NAMES
    initramfs = written(tmp_path / "initramfs", named(*rest, "config", "packed.parents"), named(first))
    assert record_files(initramfs) == {name: f"content of {name}".encode() for name in NAMES}


@pytest.mark.parametrize("missing", NAMES)
def test_an_initramfs_without_one_of_them_is_none_of_ours(tmp_path: Path, missing: str) -> None:
    initramfs = written(tmp_path / "initramfs", named(*(name for name in NAMES if name != missing)))
    with pytest.raises(AssertionError, match=missing):
        record_files(initramfs)
