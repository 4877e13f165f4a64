"""The owner of each block of a real ext4 is compared with e2fsprogs: icheck and ncheck of debugfs, and the
free blocks of dumpe2fs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.blockmap import BlockMap, Kind, read_block_map

MIB = 1024 * 1024
# What -O gives, and with which block size: today's default, that of small volumes, and files without extents.
VARIANTS = {
    "default": ("-b", "4096"),
    "small-blocks": ("-b", "1024"),
    "block-lists": ("-b", "1024", "-O", "^extents,^64bit,^flex_bg"),
    "wide-groups": ("-b", "1024", "-g", "4096", "-O", "^metadata_csum"),
    "sparse-super2": ("-b", "1024", "-O", "sparse_super2,^resize_inode"),
}


def tool(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120, check=True)
    return done.stdout.decode(errors="surrogateescape")


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    tree = place / "tree"
    (tree / "etc/deep/er").mkdir(parents=True)
    (tree / "etc/hostname").write_text("guest\n")
    (tree / "etc/deep/er/öd d").write_bytes(b"x" * 5000)
    (tree / "var").mkdir()
    # A long link has a block of its own, a short one none.
    (tree / "etc/link").symlink_to("x" * 100)
    (tree / "etc/short").symlink_to("hostname")
    os.link(tree / "etc/hostname", tree / "etc/other-name")
    os.setxattr(tree / "etc/hostname", "user.large", b"v" * 700)
    # More extents, and more blocks, than an inode has room for.
    with (tree / "var/holes").open("wb") as file:
        for number in range(60):
            file.seek(number * 128 * 1024)
            file.write(b"data" * 2048)
    (tree / "var/large").write_bytes(os.urandom(3 * MIB))
    many = tree / "many"
    many.mkdir()
    for number in range(900):
        (many / f"a-name-of-some-length-{number:04}").write_bytes(b"")
    path = place / "root.raw"
    tool("mkfs.ext4", "-q", "-F", *VARIANTS[request.param], "-d", tree, path, "64M")
    return path


@pytest.fixture(scope="module")
def blocks(image: Path) -> BlockMap:
    return read_block_map(image)


def free_blocks(image: Path) -> set[int]:
    found: set[int] = set()
    for line in re.findall(r"^  Free blocks: (.*)$", tool("dumpe2fs", image), re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", line):
            found.update(range(int(first), int(last or first) + 1))
    return found


def all_owners(blocks: BlockMap, image: Path) -> Iterator[tuple[int, Kind, PurePosixPath | None]]:
    for owner in blocks.owners(0, image.stat().st_size):
        for block in range(owner.first_block, owner.first_block + owner.blocks):
            yield block, owner.kind, owner.path


def test_every_block_has_one_owner_or_is_free(image: Path, blocks: BlockMap) -> None:
    ours = list(all_owners(blocks, image))
    assert [block for block, _, _ in ours] == list(range(image.stat().st_size // blocks.block_bytes))
    free = free_blocks(image)
    # The boot block of a volume with small blocks lies before the first group.
    first = {0} if blocks.block_bytes == 1024 else set()
    assert {block for block, kind, _ in ours if kind is Kind.FREE} - first == free
    assert len(free) > 1000


def test_every_block_with_a_path_is_what_debugfs_says(image: Path, blocks: BlockMap) -> None:
    named = {block: path for block, _, path in all_owners(blocks, image) if path is not None}
    said = tool("debugfs", "-R", f"icheck {' '.join(map(str, named))}", image)
    inodes = {int(block): int(inode) for block, inode in re.findall(r"^(\d+)\t(\d+)$", said, re.MULTILINE)}
    assert inodes.keys() == named.keys()
    said = tool("debugfs", "-R", f"ncheck {' '.join(map(str, sorted(set(inodes.values()))))}", image)
    names: dict[int, set[PurePosixPath]] = {2: {PurePosixPath("/")}}
    for inode, name in re.findall(r"^(\d+)\t(.*)$", said, re.MULTILINE):
        names.setdefault(int(inode), set()).add(PurePosixPath("/", name.lstrip("/")))
    wrong = {block: path for block, path in named.items() if path not in names[inodes[block]]}
    assert wrong == {}


def test_kinds(image: Path, blocks: BlockMap) -> None:
    kinds = {(kind, path) for _, kind, path in all_owners(blocks, image)}
    assert {
        (Kind.FILE, PurePosixPath("/etc/deep/er/öd d")),
        (Kind.FILE, PurePosixPath("/var/large")),
        (Kind.DIRECTORY, PurePosixPath("/many")),
        (Kind.DIRECTORY, PurePosixPath("/")),
        (Kind.LINK, PurePosixPath("/etc/link")),
        (Kind.EXTENTS, PurePosixPath("/var/holes")),
        (Kind.ATTRIBUTES, PurePosixPath("/etc/hostname")),
        (Kind.JOURNAL, None),
        (Kind.BLOCK_BITMAP, None),
        (Kind.INODE_BITMAP, None),
        (Kind.INODE_TABLE, None),
        (Kind.DESCRIPTORS, None),
    } <= kinds
    assert not any(path == PurePosixPath("/etc/short") for _, path in kinds)
    assert blocks.owners(1024, 1024)[0].kind is Kind.SUPERBLOCK


def test_where_an_inode_is(image: Path, blocks: BlockMap) -> None:
    said = tool("debugfs", "-R", "imap /many/a-name-of-some-length-0500", image)
    found = re.search(r"located at block (\d+)", said)
    assert found
    block = int(found[1])
    wanted = PurePosixPath("/many/a-name-of-some-length-0500")
    (owner,) = blocks.owners(block * blocks.block_bytes, blocks.block_bytes)
    assert owner.kind is Kind.INODE_TABLE
    assert wanted in owner.inodes
    assert len(owner.inodes) <= blocks.block_bytes // blocks.inode_bytes


def test_the_place_in_the_file(image: Path, blocks: BlockMap) -> None:
    data = (image.parent / "tree/var/large").read_bytes()
    volume = image.read_bytes()
    pieces = [
        owner
        for owner in blocks.owners(0, image.stat().st_size)
        if owner.kind is Kind.FILE and owner.path == PurePosixPath("/var/large")
    ]
    rebuilt = bytearray(len(data))
    for piece in pieces:
        at, length = piece.first_block * blocks.block_bytes, piece.blocks * blocks.block_bytes
        rebuilt[piece.offset_bytes : piece.offset_bytes + length] = volume[at : at + length]
    assert bytes(rebuilt) == data


def test_a_damaged_one_is_named(image: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.raw"
    cut.write_bytes(image.read_bytes()[: 2 * MIB])
    with pytest.raises(ArtefactError, match="damaged"):
        read_block_map(cut)
    none = tmp_path / "none.raw"
    none.write_bytes(bytes(MIB))
    with pytest.raises(ArtefactError, match="no ext4 superblock"):
        read_block_map(none)
