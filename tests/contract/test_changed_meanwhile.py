"""What was hashed is what is read, though somebody changes it meanwhile: directories, archives and disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quickstart.artefact.useddisk import examine_disk, reference_of_disk, with_times_of
from quickstart.errors import BadInputError
from quickstart.host.progress import Quiet
from quickstart.image.ext4 import write_disk
from quickstart.inspect.foreign.directory import read_directory
from quickstart.inspect.foreign.home import Members
from quickstart.model import MIB, StartSet
from quickstart.reference import rootfs
from quickstart.reference.rootfs import copy_directory, examine, unpack
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.test_rootfs import DISK, packed

UUID = "11111111-2222-3333-4444-555555555555"


def test_a_directory_that_is_another_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as before when the copy is done: who hashed the source again would see nothing."""
    (given := tmp_path / "given").mkdir()
    (given / "program").write_text("good")
    os.utime(given / "program", (1, 1))
    found = examine(given)

    def meanwhile(directory: Path, mounted_mtime_ns: int) -> Members:
        (given / "program").write_text("evil")
        os.utime(given / "program", (1, 1))
        yield from read_directory(directory, mounted_mtime_ns)
        (given / "program").write_text("good")
        os.utime(given / "program", (1, 1))

    monkeypatch.setattr(rootfs, "read_directory", meanwhile)
    with pytest.raises(BadInputError, match="changed while it was copied"):
        copy_directory(found, tmp_path / "copy", Store(tmp_path / "store"), DISK)


@pytest.mark.parametrize("option", ["--no-auto-compress", "--gzip"])
def test_an_archive_that_was_swapped_after_it_was_hashed(tmp_path: Path, option: str) -> None:
    archives = []
    for name in ("good", "evil"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program").write_text(name)
        archives.append(packed(tmp_path / name, tmp_path / f"{name}.tar", option))
    good, evil = archives
    found = examine(good)
    unpack(found.path, tmp_path / "copy", DISK, found.digest)
    assert (tmp_path / "copy/program").read_text() == "good"
    evil.rename(good)
    with pytest.raises(BadInputError, match="changed while it was read"):
        unpack(found.path, tmp_path / "other copy", DISK, found.digest)


def test_a_disk_that_was_written_to_after_it_was_hashed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they keep owners in a disk")
    tree, disk = tmp_path / "tree", tmp_path / "root.raw"
    (tree / "boot").mkdir(parents=True)
    for name in ("vmlinuz-6.1.0-1", "initrd.img-6.1.0-1"):
        (tree / "boot" / name).write_text(name)
    write_disk(tree, disk, 16, UUID, "root")
    used = examine_disk(disk)
    # The same bytes, but who knows: somebody has it open.
    os.utime(disk, (1, 1))
    with Store(tmp_path / "store") as store:
        with pytest.raises(BadInputError, match="changed while it was read"):
            reference_of_disk(used, "root", 32 * MIB, Context(store, Quiet()))
        assert store.entries() == ()
    with pytest.raises(BadInputError, match="changed while it was read"):
        with_times_of(StartSet((), ()), used)
