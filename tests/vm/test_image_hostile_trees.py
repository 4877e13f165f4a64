"""Roots of XFS and btrfs that somebody has made with harm in mind. The appliance writes their files as an archive, or says that it
cannot: it neither hangs nor fills the host.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from quickstart.cli.output import Display, Plain
from quickstart.engines.launching import launcher_for
from quickstart.errors import BadInputError, GuestError
from quickstart.image.gpt import ROOT_X86_64, GptPartition, gpt
from quickstart.launch.appliance.appliance import appliance, look, started, tree
from quickstart.model import MIB
from quickstart.store.context import Context
from quickstart.store.store import Store
from tests.vm.conftest import host

pytestmark = pytest.mark.full

DISK = uuid.UUID("5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0c03")
VOLUME_BYTES = 320 * MIB
MOST_BYTES = 8 * MIB
EXBIBYTE = 1 << 60
# btrfs(5): each node is headed by its checksum (32 bytes), the file system's UUID, its own place and flags. Its tree is at 88.
NODE_BYTES, UUID_AT, OWNER_AT, FILES_TREE = 16384, 32, 88, 5
SUPERBLOCK_UUID_AT = 65536 + 32
# mkfs.xfs(8), "-p": a/b/c/f below the root.
PROTOTYPE = (
    "/dev/null\n0 0\nd--755 0 0\na d--755 0 0\nb d--755 0 0\nc d--755 0 0\nf ---644 0 0 {file}\n$\n$\n$\n$\n"
)


def archive_of(volume: Path, store: Store) -> Path:
    """The archive of the files of ``volume``, on a disk of one partition."""
    disk, archive = volume.with_name("disk.raw"), volume.with_name("root.tar")
    root = GptPartition(
        number=1,
        begin_bytes=MIB,
        size_bytes=VOLUME_BYTES,
        type_id=ROOT_X86_64,
        identifier=DISK,
        name="root",
    )
    table = gpt((root,), VOLUME_BYTES + 2 * MIB, DISK)
    with disk.open("xb") as file:
        file.truncate(VOLUME_BYTES + 2 * MIB)
        file.write(table.first)
        file.seek(-len(table.last), os.SEEK_END)
        file.write(table.last)
    host("dd", f"if={volume}", f"of={disk}", "bs=1M", "seek=1", "conv=notrunc,sparse")
    context = Context(store, Display(Plain(stderr=True)))
    ours = appliance(context)
    with started(ours, disk, launcher_for(ours.kernel, context)) as guest:
        (partition,) = look(guest).facts.partitions
        with archive.open("xb") as out:
            tree(guest, partition, out, MOST_BYTES)
    return archive


@pytest.fixture
def xfs(tmp_path: Path) -> Path:
    volume, file, prototype = tmp_path / "volume", tmp_path / "file", tmp_path / "prototype"
    with volume.open("xb") as stream:
        stream.truncate(VOLUME_BYTES)
    file.write_text("a file\n")
    prototype.write_text(PROTOTYPE.format(file=file))
    host("mkfs.xfs", "-q", "-p", prototype, volume)
    return volume


def edit(volume: Path, path: str, *commands: str) -> str:
    """Let xfs_db change the inode of ``path``. xfs_db also writes the right checksum, unless ``write -c`` forbids it."""
    words = [word for command in (f"path {path}", *commands) for word in ("-c", command)]
    return str(host("xfs_db", "-x", *words, volume))


def test_an_ordinary_one(xfs: Path, store: Store) -> None:
    assert "./a/b/c/f" in host("tar", "-tf", archive_of(xfs, store)).split()


def test_a_directory_that_has_itself(xfs: Path, store: Store) -> None:
    """c is another name of a, two levels above."""
    number = edit(xfs, "/a", "inode").split()[-1]
    edit(xfs, "/a/b", f"write u3.sfdir3.list[0].inumber.i4 {number}")
    with pytest.raises(GuestError, match="cannot be read"):
        archive_of(xfs, store)


def test_a_file_larger_than_any_disk(xfs: Path, store: Store) -> None:
    """It has no data behind its first block, so the archive has none. The host's reader has its own limit."""
    edit(xfs, "/a/b/c/f", f"write core.size {EXBIBYTE}")
    assert archive_of(xfs, store).stat().st_size < MIB


def test_an_inode_with_a_false_checksum(xfs: Path, store: Store) -> None:
    edit(xfs, "/a/b", "write -c v3.crc 1")
    with pytest.raises(GuestError, match="cannot be read"):
        archive_of(xfs, store)


def btrfs(place: Path, source: Path) -> Path:
    volume = place / "volume"
    with volume.open("xb") as stream:
        stream.truncate(VOLUME_BYTES)
    host("mkfs.btrfs", "-q", "--rootdir", source, volume)
    return volume


def test_more_data_than_the_limit(tmp_path: Path, store: Store) -> None:
    """A build's limit follows from the size of the partition. This test's limit is small."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(MOST_BYTES + 1))
    with pytest.raises(BadInputError, match="bytes together"):
        archive_of(btrfs(tmp_path, source), store)


def test_a_tree_of_btrfs_with_false_checksums(tmp_path: Path, store: Store) -> None:
    """Both copies of each node of the tree of files."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(1000):
        (source / f"{number:0200}").touch()
    volume = btrfs(tmp_path, source)
    content, spoilt = bytearray(volume.read_bytes()), 0
    identifier = content[SUPERBLOCK_UUID_AT : SUPERBLOCK_UUID_AT + 16]
    for begin in range(2 * MIB, len(content), NODE_BYTES):
        owner = int.from_bytes(content[begin + OWNER_AT : begin + OWNER_AT + 8], "little")
        is_node = content[begin + UUID_AT : begin + UUID_AT + 16] == identifier
        if is_node and owner == FILES_TREE:
            content[begin + NODE_BYTES - 1] ^= 1
            spoilt += 1
    assert spoilt > 2
    volume.write_bytes(content)
    with pytest.raises(GuestError, match="cannot be read"):
        archive_of(volume, store)
