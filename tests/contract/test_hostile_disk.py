"""Disks with bytes written by hand: each is refused with one clear line, and nothing is written outside the store."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quickstart.artefact.useddisk import examine_disk, reference_of_disk
from quickstart.errors import BadInputError, QuickStartError
from quickstart.host.progress import Quiet
from quickstart.image.ext4 import write_disk
from quickstart.model import MIB
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.contract.hostile_disk import UUID, Disk, machine_tree, made

ROOT = 2
_ESCAPE = "../../../../../ESCAPED"


def listing(directory: Path) -> list[tuple[str, int, int]]:
    """All that is below, with sizes and times; the store is not part of it."""
    found = []
    for base, directories, files in os.walk(directory):
        if Path(base) == directory:
            directories[:] = [name for name in directories if name != "store"]
        for name in (*directories, *files):
            status = os.lstat(f"{base}/{name}")
            found.append((f"{base}/{name}", status.st_size, status.st_mtime_ns))
    return sorted(found)


def taken(disk: Path, tmp_path: Path) -> Path:
    """The root that `rebuild` takes from it."""
    with Store(tmp_path / "store") as store:
        used = examine_disk(disk)
        return reference_of_disk(used, "root", 32 * MIB, Context(store, Quiet())).tree


def checked(disk: Disk) -> Path:
    """The image, in which e2fsck finds no wrong checksum: debugfs would read it."""
    path = disk.write()
    said = subprocess.run(
        ["/sbin/e2fsck", "-fn", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert "checksum" not in said.stdout.lower(), said.stdout
    return path


def test_our_checksums_are_those_of_ext4(tmp_path: Path) -> None:
    """Written anew with nothing changed, the image is the same; so a wrong one is not why the others are refused."""
    disk = made(tmp_path)
    before = bytes(disk.data)
    assert disk.write().read_bytes() == before
    assert (taken(disk.path, tmp_path) / "sub/file").read_text() == "sub/file"


@pytest.mark.parametrize("directory", ["/", "sub"])
def test_a_name_that_leads_out_writes_no_file_of_the_host(tmp_path: Path, directory: str) -> None:
    """debugfs(8) copied such a file to wherever its name led."""
    name = "A" * len(_ESCAPE)
    disk = made(tmp_path, (f"{directory}/{name}".lstrip("/"),))
    inode = ROOT if directory == "/" else disk.inode_of(ROOT, b"sub")
    disk.rename(inode, name.encode(), _ESCAPE.encode())
    path, before = checked(disk), listing(tmp_path)
    with pytest.raises(BadInputError, match="a name that no file can have") as caught:
        taken(path, tmp_path)
    assert "\n" not in caught.value.message
    assert listing(tmp_path) == before
    assert not [each for each in (tmp_path, *tmp_path.parents) if (each / "ESCAPED").exists()]
    assert not list(tmp_path.glob("store/reference/*/root"))


@pytest.mark.parametrize(
    ("gone", "what"),
    [("vmlinuz-6.1.0-1", "no kernel in /boot"), ("initrd.img-6.1.0-1", r"no /boot/initrd\.img-6\.1\.0-1")],
)
def test_a_disk_without_a_kernel_is_not_kept(tmp_path: Path, gone: str, what: str) -> None:
    tree = machine_tree(tmp_path / "made")
    (tree / "boot" / gone).unlink()
    write_disk(tree, tmp_path / "disk.raw", 32, UUID, "root")
    with pytest.raises(BadInputError, match=what) as caught:
        taken(tmp_path / "disk.raw", tmp_path)
    assert caught.value.message.startswith(str(tmp_path / "disk.raw"))
    assert [each for each in (tmp_path / "store/reference").iterdir() if each.is_dir()] == []


def renamed(new: bytes) -> Callable[[Disk], None]:
    return lambda disk: disk.rename(ROOT, b"A" * len(new), new)


def linked_directory(disk: Disk) -> None:
    """sub/below becomes a second name of sub: a walk would never end."""
    sub = disk.inode_of(ROOT, b"sub")
    struct.pack_into("<I", disk.data, disk.entry_at(sub, b"below"), sub)


def root_in_itself(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, disk.entry_at(ROOT, b"sub"), ROOT)


def journal_as_file(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, disk.entry_at(ROOT, b"A"), 8)


def far_inode(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, disk.entry_at(ROOT, b"A"), 0xFFFFFFFF)


def extent(disk: Disk, *, depth: int = 0, entries: int = 1, length: int = 1, block: int = 0xFFFFFFFF) -> None:
    at = disk.inode_at(disk.inode_of(ROOT, b"A")) + 0x28
    struct.pack_into("<4H", disk.data, at, 0xF30A, entries, 4, depth)
    struct.pack_into("<IHHI", disk.data, at + 12, 0, length, 0, block)


def extents_in_a_circle(disk: Disk) -> None:
    """A block of the tree that leads to itself."""
    inode = disk.inode_of(ROOT, b"A")
    block = disk.first_block_at(inode) // disk.block_bytes
    at = disk.inode_at(inode)
    struct.pack_into("<Q", disk.data, at + 4, 4096)
    struct.pack_into("<4HI", disk.data, at + 0x28, 0xF30A, 1, 4, 5, 0)
    struct.pack_into("<IIHH", disk.data, at + 0x28 + 12, 0, block, 0, 0)
    for depth_at in (block * disk.block_bytes,):
        struct.pack_into("<4HI", disk.data, depth_at, 0xF30A, 1, 340, 4, 0)
        struct.pack_into("<IIHH", disk.data, depth_at + 12, 0, block, 0, 0)


def names_of_two_directories(disk: Disk) -> None:
    """A block of names belongs to sub and to sub/below: 25 directories with such blocks had half a million names."""
    block, sub = 3000, disk.inode_of(ROOT, b"sub")
    entry = struct.pack("<IHBB", disk.inode_of(ROOT, b"A"), disk.block_bytes, 1, 1) + b"z"
    disk.data[block * disk.block_bytes : block * disk.block_bytes + len(entry)] = entry
    for inode in (sub, disk.inode_of(sub, b"below")):
        at = disk.inode_at(inode)
        struct.pack_into("<I", disk.data, at + 4, 2 * disk.block_bytes)
        struct.pack_into("<H", disk.data, at + 0x28 + 2, 2)
        struct.pack_into("<IHHI", disk.data, at + 0x28 + 24, 1, 1, 0, block)


def huge_directory(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, disk.inode_at(disk.inode_of(ROOT, b"sub")) + 0x6C, 0xFFFF)


def short_entry(disk: Disk) -> None:
    struct.pack_into("<H", disk.data, disk.entry_at(ROOT, b"A") + 4, 0)


def long_entry(disk: Disk) -> None:
    struct.pack_into("<H", disk.data, disk.entry_at(ROOT, b"A") + 4, 0xFFFC)


def no_kind(disk: Disk) -> None:
    struct.pack_into("<H", disk.data, disk.inode_at(disk.inode_of(ROOT, b"A")), 0o30644)


def nul_in_a_link(disk: Disk) -> None:
    at = disk.inode_at(disk.inode_of(ROOT, b"A"))
    struct.pack_into("<H", disk.data, at, 0o120777)
    struct.pack_into("<I", disk.data, at + 4, 20)
    struct.pack_into("<I", disk.data, at + 0x20, 0)
    disk.data[at + 0x28 : at + 0x28 + 20] = b"a\0" * 10


def inline_data(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, 1024 + 0x60, disk.u32(1024 + 0x60) | 0x8000)


def no_groups(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, 1024 + 0x28, 0)


def huge_blocks(disk: Disk) -> None:
    struct.pack_into("<I", disk.data, 1024 + 0x18, 4_000_000_000)


@pytest.mark.parametrize(
    "spoil",
    [
        *(renamed(name) for name in (b".", b"..", b"\0" * 4, b"boot", b"/etc", b"sub/file", b"a\0b")),
        *(linked_directory, root_in_itself, journal_as_file, far_inode, extents_in_a_circle, huge_directory),
        names_of_two_directories,
        *(short_entry, long_entry, no_kind, nul_in_a_link, inline_data, no_groups, huge_blocks, extent),
        lambda disk: extent(disk, entries=65535),
        lambda disk: extent(disk, depth=65535),
        lambda disk: extent(disk, length=32768, block=1),
    ],
)
def test_a_disk_made_by_hand_is_refused(tmp_path: Path, spoil: Callable[[Disk], None]) -> None:
    names = {len(name): "A" * len(name) for name in (".", "..", "boot", "/etc", "sub/file", "a\0b")}
    disk = made(tmp_path, tuple(names.values()))
    spoil(disk)
    path = disk.write()
    before = listing(tmp_path)
    with pytest.raises(QuickStartError) as caught:
        taken(path, tmp_path)
    assert isinstance(caught.value, BadInputError), caught.value
    assert "\n" not in caught.value.message
    assert listing(tmp_path) == before


@pytest.fixture
def twice(tmp_path: Path) -> Iterator[Disk]:
    """All files have the same blocks: each copy of them is another MiB."""
    disk = made(tmp_path, tuple(f"f{number}" for number in range(40)))
    big = disk.inode_at(disk.inode_of(ROOT, b"f0"))
    struct.pack_into("<I", disk.data, big + 4, 16 << 20)
    struct.pack_into("<IHHI", disk.data, big + 0x28 + 12, 0, 4096, 0, 1000)
    for number in range(1, 40):
        other = disk.inode_at(disk.inode_of(ROOT, f"f{number}".encode()))
        disk.data[other + 4 : other + 8] = disk.data[big + 4 : big + 8]
        disk.data[other + 0x28 : other + 0x64] = disk.data[big + 0x28 : big + 0x64]
    yield disk


@pytest.mark.parametrize("size_bytes", [32 * MIB, 1024 * MIB])
def test_blocks_that_many_files_share_do_not_fill_the_store(
    tmp_path: Path, twice: Disk, size_bytes: int
) -> None:
    """Nor when the file says that it is larger: what is behind its file system is a hole."""
    path = twice.write()
    os.truncate(path, size_bytes)
    with pytest.raises(BadInputError, match="does not fit"):
        taken(path, tmp_path)
