"""Malicious archives and directories for `build --rootfs` are refused, or copied without harm."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.host.files import remove_tree
from quickstart.host.progress import Quiet
from quickstart.inspect.foreign.home import NotHome
from quickstart.inspect.foreign.members import DeviceNode
from quickstart.model import MIB
from quickstart.profile import load_profile
from quickstart.reference.guest import forget_build
from quickstart.reference.rootfs import check_devices, copy_directory, examine, reference_of, unpack
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.test_hostile_disk import listing

DISK = 16 * MIB
Fill = Callable[[tarfile.TarFile, Path], None]


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def link(archive: tarfile.TarFile, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
    add(archive, name, type=kind, linkname=target)


def made(path: Path, fill: Fill, outside: Path, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        fill(archive, outside)
    return path


def way_out(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "way", str(outside))
    add(archive, "way/new", b"evil")


def way_out_in_two_steps(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "a", ".")
    link(archive, "a/b", "../outside")
    add(archive, "b/new", b"evil")


def directory_becomes_link(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "d", type=tarfile.DIRTYPE, mode=0o755)
    link(archive, "d", str(outside))
    add(archive, "d/new", b"evil")


def mode_through_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    """A directory of that name later gives its mode and owner to what the link leads to."""
    link(archive, "d", str(outside))
    add(archive, "d", type=tarfile.DIRTYPE, mode=0o777, uid=1234)
    add(archive, "d/new", b"evil")


def hard_out(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "h", str(outside / "victim"), tarfile.LNKTYPE)
    add(archive, "h", b"evil")


def hard_through_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, "way", str(outside))
    link(archive, "h", "way/victim", tarfile.LNKTYPE)


def many(archive: tarfile.TarFile, outside: Path) -> None:
    for number in range(DISK // 4096 + 1):
        add(archive, str(number))


def deep(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "/".join(["d" * 100] * 60) + "/file")


def sparse(archive: tarfile.TarFile, outside: Path) -> None:
    """8 TiB of holes (GNU's sparse format 0.1)."""
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": str(8 << 40),
    }
    add(archive, "holes", b"x", pax_headers=headers)


def overlapping(archive: tarfile.TarFile, outside: Path) -> None:
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "4,4,0,4",
        "GNU.sparse.size": "8",
    }
    add(archive, "holes", b"12345678", pax_headers=headers)


def acl_for_nobody(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", pax_headers={"SCHILY.acl.access": "user::rwx,user:no such user:rwx"})


def no_acl(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", pax_headers={"SCHILY.acl.access": "x" * 100_000})


def long_name(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "n" * 256)


def root_is_a_link(archive: tarfile.TarFile, outside: Path) -> None:
    link(archive, ".", str(outside))


def unknown_kind(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "f", type=b"Z")


def up(archive: tarfile.TarFile, outside: Path) -> None:
    add(archive, "x/../../outside/new", b"evil")


@pytest.mark.parametrize(
    "fill",
    [
        *(way_out, way_out_in_two_steps, directory_becomes_link, hard_out),
        *(hard_through_a_link, many, deep, sparse, overlapping, acl_for_nobody, no_acl, long_name),
        *(root_is_a_link, unknown_kind, up),
    ],
)
def test_an_archive_that_means_harm_is_refused(tmp_path: Path, fill: Fill) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim").write_text("good")
    archive = made(tmp_path / "archive.tar", fill, tmp_path / "outside")
    before = listing(tmp_path)
    with (
        Store(tmp_path / "store") as store,
        pytest.raises(BadInputError) as caught,
    ):
        profile = load_profile("nginx")
        small = type(profile)(**{**profile.__dict__, "disk_mib": DISK // MIB})
        reference_of(small, examine(archive), Context(store, Quiet()))
    assert "\n" not in caught.value.message, caught.value.message
    assert listing(tmp_path) == before
    assert list(tmp_path.glob("store/reference/*.partial")) == []


def test_a_directory_in_the_place_of_a_link_gives_its_mode_to_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o700)
    unpack(made(tmp_path / "archive", mode_through_a_link, tmp_path / "outside"), tmp_path / "tree", DISK)
    status = (tmp_path / "outside").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o700, os.geteuid())
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "tree/d/new").read_bytes() == b"evil"
    assert not (tmp_path / "tree/d").is_symlink()


def test_what_unpacks_to_more_than_the_disk_is_refused_before_it_fills_the_store(tmp_path: Path) -> None:
    """A bomb: 1 GiB of zeros in one MiB."""
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("zeros")
        info.size = 1 << 30
        file.write(info.tobuf())
        for _ in range(1024):
            file.write(bytes(MIB))
        file.write(bytes(1024))
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        unpack(tmp_path / "bomb.tar.gz", tmp_path / "tree", DISK)
    assert sum(path.stat().st_blocks for path in (tmp_path / "tree").iterdir()) == 0


def test_a_header_that_wants_gigabytes(tmp_path: Path) -> None:
    """A pax header that is 8 GiB long, of zeros that compress to nothing: the reader has one GiB of memory, and no more."""
    with gzip.open(tmp_path / "big.tar.gz", "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("pax")
        info.size, info.type = 8 << 30, tarfile.XHDTYPE
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(1100):
            file.write(bytes(MIB))
    with pytest.raises(BadInputError, match=r"in a GiB of memory|cannot be unpacked whole"):
        unpack(tmp_path / "big.tar.gz", tmp_path / "tree", DISK)


def test_devices_and_sockets_are_never_made_on_the_host(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile, outside: Path) -> None:
        for name, kind in (("dev/sda", tarfile.BLKTYPE), ("opt/null", tarfile.CHRTYPE)):
            add(archive, name, type=kind, devmajor=8, devminor=1, mode=0o640)
        add(archive, "pipe", type=tarfile.FIFOTYPE, mode=0o640)

    archive = made(tmp_path / "archive", fill, tmp_path)
    found = unpack(archive, tmp_path / "tree", DISK)
    assert [(each.path, each.mode, each.major, each.minor) for each in found.devices] == [
        ("dev/sda", 0o060640, 8, 1),
        ("opt/null", 0o020640, 8, 1),
    ]
    left = [path for path in (tmp_path / "tree").rglob("*") if not path.is_dir()]
    assert [path.name for path in left] == ["pipe"]
    given = tmp_path / "given"
    given.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(given / "socket"))
        found = copy_directory(examine(given), tmp_path / "copy", Store(tmp_path / "store"), DISK)
    assert found == NotHome(sockets=("socket",))


@pytest.mark.parametrize(("count", "name"), [(4097, "n{}"), (1, "a\nb"), (1, "a\rb"), (1, "a/" * 512 + "n")])
def test_nodes_that_are_too_many_or_cannot_be_named(count: int, name: str) -> None:
    node = DeviceNode(path="", mode=0o20666, uid=0, gid=0, major=1, minor=3, mtime_s=0)
    nodes = tuple(replace(node, path=name.format(number)) for number in range(count))
    with pytest.raises(BadInputError, match="device node"):
        check_devices(nodes, Path("given"))


def test_a_directory_deeper_than_mke2fs_can_be_given(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    way = os.open(given, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=way)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=way)
        os.close(way)
        way = below
    os.close(way)
    try:
        with pytest.raises(BadInputError, match="a path of more than 1000 bytes") as caught:
            copy_directory(examine(given), tmp_path / "copy", Store(tmp_path / "store"), DISK)
        assert "\n" not in caught.value.message
    finally:
        # pytest's own way to remove it does not go that deep.
        remove_tree(given)
        remove_tree(tmp_path / "copy")


def test_a_directory_that_is_larger_than_the_disk(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/big").write_bytes(b"x" * (DISK + 1))
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        copy_directory(examine(tmp_path / "given"), tmp_path / "copy", Store(tmp_path / "store"), DISK)
    assert (tmp_path / "copy").is_dir()
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_stamp_that_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / ".quickstart").mkdir()
    with pytest.raises(BadInputError, match="is a directory"):
        forget_build(tmp_path)
