"""`build --image` of disks that somebody has made with harm in mind: an error, and nothing of the host is touched."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from quickstart.cli.output import Display, Plain
from quickstart.host.holes import copy_range
from quickstart.model import MIB
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.images.layouts import Layout
from tests.images.lookalike import ROOT_MIB, look_alike, root_at_mib
from tests.vm.conftest import BUILD_S, host, quickstart
from tests.vm.imaging import PROFILE
from tests.vm.test_inspect import digest
from tests.vm.test_rebuild import lead_out

pytestmark = pytest.mark.full

SECTOR_BYTES = 512
EXTENDED, LINUX = 0x05, 0x83


def entry(kind: int, begin: int, sectors: int) -> bytes:
    """An entry of an MBR or of an extended partition's table, in sectors."""
    return struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", kind, b"\xfe\xff\xff", begin, sectors)


def table(*entries: bytes) -> bytes:
    return bytes(446) + b"".join(entries).ljust(64, b"\0") + b"\x55\xaa"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    place = tmp_path / "profile"
    place.mkdir()
    (place / "profile.toml").write_text(PROFILE)
    return place


def refused(disk: Path, profile: Path, out: Path) -> str:
    """What `build --image` says. The disk is as it was, and there is no OUT."""
    before, beside = digest(disk), sorted(out.parent.iterdir())
    called = quickstart("build", "--profile", profile, "--image", disk, "-o", out, timeout_s=BUILD_S)
    assert called.status in (1, 2), called.err
    assert "Traceback" not in called.err
    assert digest(disk) == before
    assert sorted(out.parent.iterdir()) == beside
    return called.err


def test_partitions_in_a_circle(profile: Path, tmp_path: Path) -> None:
    """The table of the first logical partition names itself as the next one."""
    disk = tmp_path / "disk.raw"
    with disk.open("xb") as file:
        file.truncate(64 * MIB)
        os.pwrite(file.fileno(), table(entry(EXTENDED, 2048, 100_000)), 0)
        circle = table(entry(LINUX, 63, 1000), entry(EXTENDED, 0, 100_000))
        os.pwrite(file.fileno(), circle, 2048 * SECTOR_BYTES)
    assert "no partition has a system with systemd" in refused(disk, profile, tmp_path / "out")


@pytest.fixture
def copied(store: Store, tmp_path: Path) -> Iterator[Path]:
    """A copy of a look-alike, whose root file system is in a file of its own beside it."""
    source = look_alike(Context(store, Display(Plain(stderr=True)))).disk
    disk, root = tmp_path / "disk.raw", tmp_path / "root.raw"
    host("cp", "--sparse=always", source, disk)
    with disk.open("rb") as whole, root.open("xb") as part:
        copy_range(whole.fileno(), root_at_mib(Layout.CLOUD) * MIB, ROOT_MIB * MIB, part.fileno())
    yield disk
    host("rm", disk)


def put_back(disk: Path) -> None:
    root = disk.with_name("root.raw")
    host("dd", f"if={root}", f"of={disk}", "bs=1M", f"seek={root_at_mib(Layout.CLOUD)}", "conv=notrunc")
    root.unlink()


def test_a_name_that_leads_out_of_the_root(copied: Path, profile: Path, tmp_path: Path) -> None:
    root, name = copied.with_name("root.raw"), "A" * 64
    (tmp_path / "evil").write_text("evil\n")
    commands = tmp_path / "commands"
    commands.write_text(f"mkdir /srv/x\ncd /srv/x\nwrite {tmp_path}/evil {name}\n")
    host("debugfs", "-w", "-f", commands, root)
    new = lead_out(root, "/srv/x", name.encode())
    assert new.count(b"../") == 19
    put_back(copied)
    said = refused(copied, profile, tmp_path / "out")
    assert "a name that no file can have" in said
    assert not [each for each in (tmp_path, *tmp_path.parents) if (each / "ESCAPED").exists()]
    assert not Path("/ESCAPED").exists()


def test_a_file_system_with_errors(copied: Path, profile: Path, tmp_path: Path) -> None:
    host("debugfs", "-w", "-R", "set_super_value state 3", copied.with_name("root.raw"))
    put_back(copied)
    assert "was not shut down in order" in refused(copied, profile, tmp_path / "out")
