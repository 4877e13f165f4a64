"""squashfs-tools keep the names, modes, links and contents of what we pack, and give the same bytes each time."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import struct
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.artefact import difference, inside
from quickstart.errors import ArtefactError
from quickstart.host import door
from quickstart.initramfs import squashfs, squashfs_reader
from quickstart.initramfs.layout import IMAGE, image_part_b
from quickstart.initramfs.newc import CpioEntry, directory, hard_link, regular, symlink
from quickstart.initramfs.newc_reader import Limits
from quickstart.initramfs.squashfs import write_image
from quickstart.initramfs.squashfs_reader import walk_image
from quickstart.model import MIB
from quickstart.parse import bounded
from tests.contract.test_hostile import ODD
from tests.unit.test_inside import PART_A, PART_B, artefact

FIRST = CpioEntry(name="usr/first", mode=0o100640, data=b"two names", names=2)
ENTRIES = (
    directory("quickstart"),
    directory("usr", 0o711),
    regular("usr/large", bytes(range(256)) * 5000, 0o755),
    regular("usr/empty", b"", 0o600),
    FIRST,
    hard_link("usr/second", FIRST),
    symlink("bin", "usr/bin"),
    symlink("new line", "with space\nand more"),
    *(regular(f"usr/{os.fsdecode(name)}", b"odd", 0o444) for name in ODD),
)


@functools.cache
def small() -> bytes:
    return write_image(ENTRIES[:1] + ENTRIES[3:8])


def read(image: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content, or a link's target, of each file."""
    found = walk_image(lambda at, count: image[at : at + count], len(image))
    return {file.name: (file.mode, b"".join(pieces) or os.fsencode(file.target)) for file, pieces in found}


def test_what_is_packed_is_read() -> None:
    image = write_image(ENTRIES)
    found = read(image)
    wanted = {each.name: (each.mode, each.data) for each in ENTRIES}
    wanted["usr/second"] = (0o100640, b"two names")
    assert found == wanted
    assert len(image) < 1 << 20


MANY = (
    directory("d"),
    *(regular(f"d/{number:05}{'x' * (number % 90)}", b"%d" % number, 0o644) for number in range(3000)),
    symlink("d/zz", "over/there"),
    directory("e"),
)


@functools.cache
def plain() -> bytes:
    """An image of many entries, whose tables are not compressed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squashfs, "_OPTIONS", (*squashfs._OPTIONS, "-noI"))
        return write_image(MANY)


def entry_of(image: bytes, name: bytes) -> int:
    """Where the entry of ``name`` begins in the list of its directory: offset, number, type, length, name."""
    (table,) = struct.unpack_from("<Q", image, 72)
    return image.index(struct.pack("<H", len(name) - 1) + name, table) - 6


def changed(at: int, form: str, *values: int) -> bytes:
    image = bytearray(plain())
    struct.pack_into(form, image, at, *values)
    return bytes(image)


def test_a_directory_of_many_entries_is_read() -> None:
    """Its list goes through many blocks, and it has an index."""
    wanted = {each.name: (each.mode, each.data) for each in MANY}
    assert read(write_image(MANY)) == wanted and read(plain()) == wanted


def test_the_index_of_a_directory_is_that_of_its_list() -> None:
    """The kernel begins there, and would find other entries than we list."""
    inodes, table = struct.unpack_from("<QQ", plain(), 64)
    first = next(at for at in range(inodes, table) if plain()[at : at + 5].isdigit() and plain()[at - 1] == 0)
    position, block, excess = struct.unpack_from("<3I", plain(), first - 12)
    assert 0 < position < 8192 and block == 0 and plain()[first : first + excess + 1].rstrip(b"x").isdigit()
    for change in (
        changed(first - 12, "<I", position + 1),
        changed(first - 12, "<I", position - 1),
        changed(first - 12, "<I", 1 << 30),
        changed(first - 8, "<I", 8194),
        changed(first, "<B", ord("1")),
    ):
        with pytest.raises(ArtefactError, match="the index of a directory"):
            read(change)


def test_numbers_of_inodes_are_those_of_the_entries() -> None:
    """The kernel takes the inode that it has read under this number before."""
    entry = entry_of(plain(), b"00007xxxxxxx")
    (delta,) = struct.unpack_from("<h", plain(), entry + 2)
    with pytest.raises(ArtefactError, match="another number or type"):
        read(changed(entry + 2, "<h", delta - 3))
    with pytest.raises(ArtefactError, match="another number or type"):
        read(changed(entry + 4, "<H", 1))
    # The inode itself as well.
    offset, _ = struct.unpack_from("<Hh", plain(), entry)
    (inodes,) = struct.unpack_from("<Q", plain(), 64)
    inode = inodes + 2 + offset
    (number,) = struct.unpack_from("<I", plain(), inode + 12)
    image = bytearray(changed(entry + 2, "<h", delta - 3))
    struct.pack_into("<I", image, inode + 12, number - 3)
    with pytest.raises(ArtefactError, match=f"two files have the inode {number - 3}"):
        read(bytes(image))
    # A type beside that of the inode, as the kernel adds both.
    with pytest.raises(ArtefactError, match="the mode 120644"):
        read(changed(inode + 2, "<H", 0o120644))


def test_a_directory_has_one_name() -> None:
    """Two empty ones, the second of which is the first again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squashfs, "_OPTIONS", (*squashfs._OPTIONS, "-noI"))
        image = bytearray(write_image([directory("dd1"), directory("dd2")]))
    first, second = entry_of(bytes(image), b"dd1"), entry_of(bytes(image), b"dd2")
    image[second : second + 4] = image[first : first + 4]
    with pytest.raises(ArtefactError, match="two files have the inode"):
        read(bytes(image))


@pytest.mark.parametrize("name", [b"00001wx", b"00004xx"])
def test_names_are_in_order(name: bytes) -> None:
    """The kernel looks no further than the first name behind the one that it looks for."""
    image, entry = bytearray(plain()), entry_of(plain(), b"00002xx")
    image[entry + 8 : entry + 15] = name
    with pytest.raises(ArtefactError, match="twice or out of order"):
        read(bytes(image))


@pytest.mark.parametrize(("length", "target"), [(10, b"over\0there"), (0, b"over/there")])
def test_a_link_leads_where_the_kernel_goes(length: int, target: bytes) -> None:
    at = plain().index(b"over/there") - 4
    image = bytearray(changed(at, "<I", length))
    image[at + 4 : at + 14] = target
    with pytest.raises(ArtefactError, match="a link to a name"):
        read(bytes(image))


def blocks_of(image: bytearray) -> int:
    """Where the first fragment's entry is, in an image whose tables are not compressed."""
    (index,) = struct.unpack_from("<Q", image, 80)
    return int(struct.unpack_from("<Q", image, index)[0]) + 2


def test_a_block_has_one_size_and_one_place() -> None:
    """The kernel keeps blocks by their place: of two sizes the first that is read would count for both."""
    entries = [
        directory("d"),
        *(regular(f"d/{name}", random.Random(name).randbytes(90_000), 0o644) for name in "abc"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squashfs, "_OPTIONS", (*squashfs._OPTIONS, "-noI", "-noF"))
        image = bytearray(write_image(entries))
    assert len(read(bytes(image))) == 4
    first = blocks_of(image)
    begin, size = struct.unpack_from("<QI", image, first)
    other, other_size = struct.unpack_from("<QI", image, first + 16)
    struct.pack_into("<QI", image, first + 16, begin, size ^ 1)
    with pytest.raises(ArtefactError, match="two sizes"):
        read(bytes(image))
    struct.pack_into("<QI", image, first + 16, other - 100, other_size)
    with pytest.raises(ArtefactError, match="overlaps"):
        read(bytes(image))


def test_extended_attributes_are_refused() -> None:
    """A capability gives as much as a set-user-ID bit, and `audit` would not see it."""
    assert plain()[56:64] == b"\xff" * 8
    with pytest.raises(ArtefactError, match="extended attributes"):
        read(changed(56, "<Q", len(plain()) - 8))


def test_other_owners_than_root_are_refused() -> None:
    """The table of user and group IDs: one, which is 0."""
    image = plain()
    assert image[26:28] == b"\1\0"
    with pytest.raises(ArtefactError, match="other owners than root"):
        read(changed(26, "<H", 2))
    (table,) = struct.unpack_from("<Q", image, struct.unpack_from("<Q", image, 48)[0])
    with pytest.raises(ArtefactError, match="other owners than root"):
        read(changed(table + 2, "<I", 33))


def test_the_same_entries_make_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_image(ENTRIES)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    umask = os.umask(0o077)
    try:
        assert write_image(ENTRIES) == first
    finally:
        os.umask(umask)


def test_the_root_is_everybodys_to_enter_and_roots_own(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(write_image(ENTRIES))
    listed = subprocess.run(
        ["/usr/bin/unsquashfs", "-lln", tmp_path / "image"], capture_output=True, check=True, timeout=60
    ).stdout.decode(errors="replace")
    modes = {line.split()[-1]: line.split()[:2] for line in listed.splitlines() if line.startswith("d")}
    assert modes["squashfs-root"] == ["drwxr-xr-x", "0/0"]
    assert modes["squashfs-root/usr"] == ["drwx--x--x", "0/0"]


def test_a_host_file_is_packed(tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"\x7fELF")
    found = read(write_image([regular("tool", tmp_path / "tool", 0o751)]))
    assert found == {"tool": (0o100751, b"\x7fELF")}


def test_inside_an_artefact_it_is_as_if_it_were_unpacked(tmp_path: Path) -> None:
    plain = artefact(tmp_path / "plain")
    packed = artefact(tmp_path / "image", image_part_b(PART_B))
    assert b"".join(inside.content(packed, inside.find(packed, "/lib/libz.so"))) == b"library"
    assert [each.part for each in inside.members(packed)] == [
        *("A" for _ in PART_A),
        *("B", "B", "B"),
        *("image" for _ in range(7)),
        "B",
    ]
    assert difference.diff(plain, packed) == (difference.Difference(IMAGE, "added"),)
    assert difference.diff(packed, packed) == ()


def test_nothing_is_hidden_by_an_image(tmp_path: Path) -> None:
    """The image is mounted over /fast, and part A's own files over that: what lies below is a decoy."""
    beside = artefact(tmp_path / "beside", (*image_part_b(PART_B), regular("fast/decoy", b"good", 0o755)))
    with pytest.raises(ArtefactError, match="has /fast/decoy, which is hidden by the image of part B"):
        inside.members(beside)
    below = regular("fast/quickstart/starter", b"good", 0o755)
    with pytest.raises(ArtefactError, match="has /fast/quickstart/starter, which is hidden by part A"):
        inside.members(artefact(tmp_path / "below", image_part_b((*PART_B, below))))


@pytest.mark.parametrize("keep", [0, 90, 4000])
def test_a_cut_image_is_named(keep: int) -> None:
    with pytest.raises(ArtefactError, match="the image of part B cannot be read") as caught:
        read(write_image(ENTRIES)[:keep])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(unpacked_bytes=1000), "a file of 1280000 bytes, where no more than"),
        (Limits(members=5), "too many files"),
        (Limits(names_bytes=50), "names that are too long"),
    ],
)
def test_an_image_over_a_limit_is_refused(limits: Limits, what: str) -> None:
    image = write_image(ENTRIES)
    with pytest.raises(ArtefactError, match=what):
        list(walk_image(lambda at, count: image[at : at + count], len(image), limits))


@given(st.data())
def test_any_change_of_an_image_is_an_error_or_another_content(data: st.DataObject) -> None:
    image = bytearray(small())
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(image))
    except ArtefactError as error:
        assert error.hint


def test_fragments_to_and_fro_have_a_limit(tmp_path: Path) -> None:
    """Each file lies in another fragment than the file before it, so each is decompressed for every one of its files."""
    tree, order = tmp_path / "tree", tmp_path / "order"
    tree.mkdir()
    names = [f"{number:04}" for number in range(800)]
    for name in names:
        (tree / name).write_bytes(name.encode() * 3200)
    order.write_text("".join(f"{name} {int(name) % 40}\n" for name in names))
    options = ("-comp", "lz4", "-no-duplicates", "-sort", order, "-quiet", "-no-progress")
    door.run(["mksquashfs", tree, tmp_path / "image", *options], timeout_s=60, cwd=tree)
    image = (tmp_path / "image").read_bytes()

    def read_all(limits: Limits) -> int:
        found = walk_image(lambda at, count: image[at : at + count], len(image), limits)
        return sum(len(piece) for _, pieces in found for piece in pieces)

    assert read_all(Limits(unpacked_bytes=128 * MIB)) == 800 * 12800
    with pytest.raises(ArtefactError, match="fragments to and fro"):
        read_all(Limits(unpacked_bytes=32 * MIB))


def test_equal_content_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(1).randbytes(300_000)
    names = [f"fast/usr/{number}" for number in range(20)]
    more = (regular("fast/usr/other", data[:-1], 0o644), *(regular(name, data, 0o644) for name in names))
    made = artefact(tmp_path, image_part_b((*PART_B[:-1], *more, PART_B[-1])))
    looked: list[int] = []

    def counted(pieces: Iterable[bytes], least_bytes: int) -> Iterator[bytes]:
        for piece in bounded.joined(pieces, least_bytes):
            looked.append(len(piece))
            yield piece

    monkeypatch.setattr(inside, "joined", counted)
    found = {each.name: each for each in inside.members(made) if each.part == "image"}
    digest = hashlib.sha256(data).digest()
    assert all(found[name].sha256 == digest and found[name].crc == zlib.crc32(data) for name in names)
    assert found["fast/usr/other"].sha256 == hashlib.sha256(data[:-1]).digest()
    # The archive's members, among them the image itself.
    assert sum(looked) < 5 * len(data)
    # Each has a place of its own.
    assert len({each.place for each in found.values()}) == len(found)


def test_different_contents_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that share some of their blocks may be larger together than what is stored of them."""
    data = random.Random(1).randbytes(300_000)
    image = write_image((directory("usr"), *(regular(f"usr/{number}", data, 0o644) for number in range(9))))
    monkeypatch.setattr(squashfs_reader, "_MOST_LZ4_RATIO", 0)
    monkeypatch.setattr(squashfs_reader, "_MOST_SHARED_BYTES", len(data))
    # Equal content counts once.
    assert len(read(image)) == 10
    monkeypatch.setattr(squashfs_reader, "_MOST_SHARED_BYTES", len(data) - 1)
    with pytest.raises(ArtefactError, match="share some of their blocks"):
        read(image)
    # What is not stored does not count.
    monkeypatch.setattr(squashfs_reader, "_MOST_SHARED_BYTES", 0)
    assert len(read(write_image((regular("hole", bytes(1 << 18), 0o644),)))) == 1
