"""The newc writer and reader, tested on each other and on damaged archives."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs import newc
from quickstart.initramfs.newc import (
    CpioEntry,
    directory,
    hard_link,
    regular,
    symlink,
    write_archive,
)
from quickstart.initramfs.newc_reader import Limits, read_archive, walk_archive
from tests.unit.newcdata import FIRST, SAMPLE, entry_lists, pack, unpack


def test_round_trip() -> None:
    archive = pack(*SAMPLE)
    assert len(archive) % 512 == 0
    members = unpack(archive)
    assert [(m.name, m.mode, m.data) for m in members] == [(e.name, e.mode, e.data) for e in SAMPLE]
    assert [m.inode for m in members] == [1, 2, 3, 4, 5, 6]
    assert [m.nlink for m in members] == [2, 1, 1, 1, 2, 1]
    assert {(m.uid, m.gid, m.mtime) for m in members} == {(0, 0, 0)}
    assert (members[-1].rdev_major, members[-1].rdev_minor) == (5, 1)
    assert stat.S_ISCHR(members[-1].mode) and stat.S_ISLNK(members[3].mode)
    assert all(archive[m.offset : m.offset + m.size] == m.data for m in members)


def test_bytes_of_the_header() -> None:
    archive = pack(CpioEntry(name="a", mode=stat.S_IFREG | 0o644, data=b"xyz", uid=10, gid=11, mtime=255))
    fields = "00000001 000081A4 0000000A 0000000B 00000001 000000FF 00000003 " + "00000000 " * 4
    assert archive[:110].decode() == "070701" + fields.replace(" ", "") + "00000002" + "00000000"
    assert archive[110:116] == b"a\0xyz\0"


def test_same_entries_same_bytes() -> None:
    assert pack(*SAMPLE) == pack(*SAMPLE)


def test_no_entries() -> None:
    assert unpack(pack()) == []
    assert len(pack()) == 512


def test_host_file_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newc, "CHUNK_BYTES", 7)
    content = bytes(range(256))
    (tmp_path / "f").write_bytes(content)
    assert pack(regular("f", tmp_path / "f", 0o755)) == pack(regular("f", content, 0o755))


def test_names_that_are_not_utf8_survive() -> None:
    raw = b"caf\xe9"
    name = raw.decode("utf-8", "surrogateescape")
    archive = pack(regular(name, b"", 0o644), symlink("l", name))
    assert raw + b"\0" in archive
    members = unpack(archive)
    assert [member.name for member in members] == [name, "l"]
    assert members[1].data == raw


@given(st.lists(entry_lists(), max_size=3))
def test_round_trip_of_anything(archives: list[list[CpioEntry]]) -> None:
    members = unpack(b"".join(pack(*entries) for entries in archives))
    assert [
        CpioEntry(
            name=m.name,
            mode=m.mode,
            data=m.data,
            uid=m.uid,
            gid=m.gid,
            mtime=m.mtime,
            rdev_major=m.rdev_major,
            rdev_minor=m.rdev_minor,
        )
        for m in members
    ] == [entry for entries in archives for entry in entries]


def test_names_of_one_file_share_its_inode_and_the_first_has_the_content() -> None:
    members = unpack(pack(regular("x", b"", 0o644), FIRST, hard_link("b", FIRST), hard_link("c", FIRST)))
    assert [(m.name, m.inode, m.nlink, m.data) for m in members] == [
        ("x", 1, 1, b""),
        ("a", 2, 3, b"content"),
        ("b", 2, 3, b""),
        ("c", 2, 3, b""),
    ]
    assert {m.mode for m in members[1:]} == {0o100755}


def test_members_say_which_archive_they_are_of() -> None:
    archive = pack(FIRST, hard_link("b", FIRST))
    assert [(m.name, m.archive) for m in unpack(archive * 2)] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    "entries",
    [
        [hard_link("b", FIRST)],
        [regular("a", b"content", 0o755), hard_link("b", FIRST)],
        [FIRST, replace(hard_link("b", FIRST), mode=0o100644)],
        [FIRST, replace(hard_link("b", FIRST), data=b"other")],
        [FIRST, hard_link("b", FIRST), replace(hard_link("c", FIRST), link_to="b")],
    ],
)
def test_a_hard_link_to_no_earlier_file_like_it(entries: list[CpioEntry]) -> None:
    with pytest.raises(BadInputError, match="is a hard link to"):
        pack(*entries)


def test_only_regular_files_have_other_names() -> None:
    with pytest.raises(BadInputError, match="no regular file"):
        pack(replace(symlink("l", "x"), names=2))


# ---------------------------------------------------------------- entries that are refused


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([regular("/etc", b"", 0o644)], "absolute"),
        ([regular("", b"", 0o644)], "cannot hold"),
        ([regular(".", b"", 0o644)], "cannot hold"),
        ([directory("a"), regular("a/../b", b"", 0o644)], "cannot hold"),
        ([directory("a"), regular("a//b", b"", 0o644)], "cannot hold"),
        ([directory("a/")], "cannot hold"),
        ([regular("a\0b", b"", 0o644)], "cannot hold"),
        ([regular("TRAILER!!!", b"", 0o644)], "cannot hold"),
        ([regular("x" * 4096, b"", 0o644)], "longer than 4095"),
        ([regular("\ud800", b"", 0o644)], "no file name"),
        ([directory("a"), directory("a")], "twice"),
        ([regular("a/b", b"", 0o644)], "not been written"),
        ([directory("a"), regular("a/b/c", b"", 0o644)], "not been written"),
        ([regular("a", b"", 0o644), regular("a/b", b"", 0o644)], "not a directory"),
        ([symlink("a", "."), regular("a/b", b"", 0o644)], "not a directory"),
        ([CpioEntry(name="a", mode=0o644)], "no file type"),
        ([CpioEntry(name="a", mode=1 << 20 | stat.S_IFREG)], "no file type"),
        ([CpioEntry(name="a", mode=stat.S_IFREG, uid=-1)], "uid -1"),
        ([CpioEntry(name="a", mode=stat.S_IFREG, mtime=1 << 32)], "mtime 4294967296"),
        ([CpioEntry(name="a", mode=stat.S_IFDIR, data=b"x")], "has data"),
        ([CpioEntry(name="a", mode=stat.S_IFCHR, data=Path("/x"))], "has data"),
        ([symlink("a", "")], "target"),
        ([symlink("a", "b\0c")], "target"),
        ([symlink("a", "x" * 4096)], "target"),
        ([CpioEntry(name="a", mode=stat.S_IFLNK, data=Path("/x"))], "target"),
    ],
)
def test_refused_entries(entries: list[CpioEntry], word: str) -> None:
    with pytest.raises(BadInputError, match=word) as caught:
        write_archive(io.BytesIO(), entries)
    assert caught.value.hint


def test_symlink_target_that_is_no_text() -> None:
    with pytest.raises(BadInputError, match="no file name"):
        symlink("a", "\ud800")


def test_trailer_name_is_fine_below_a_directory() -> None:
    assert unpack(pack(directory("a"), regular("a/TRAILER!!!", b"1", 0o644)))[1].data == b"1"


def test_four_gib_are_refused(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.touch()
    os.truncate(big, 1 << 32)
    with pytest.raises(BadInputError, match="less than 4 GiB"):
        write_archive(io.BytesIO(), [regular("big", big, 0o644)])


class Meddler(io.BytesIO):
    """Changes the host file as soon as the member's header is written."""

    def __init__(self, victim: Path, size: int) -> None:
        super().__init__()
        self.victim = victim
        self.size = size

    def write(self, data: object) -> int:
        os.truncate(self.victim, self.size)
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 99_999, 100_001, 200_000])
def test_host_file_that_changes(tmp_path: Path, size: int) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(100_000))
    with pytest.raises(ArtefactError, match=r"victim.*changed its size"):
        write_archive(Meddler(victim, size), [regular("v", victim, 0o644)])


def test_host_file_that_is_none(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path / "missing", tmp_path, fifo):
        with pytest.raises(ArtefactError, match="not a regular file"):
            write_archive(io.BytesIO(), [regular("v", path, 0o644)])


def test_host_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "f").touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ArtefactError, match="cannot be read: Permission denied"):
        write_archive(io.BytesIO(), [regular("v", tmp_path / "f", 0o644)])


def test_failure_of_the_output_is_not_the_files(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    (tmp_path / "f").touch()
    with pytest.raises(OSError, match="No space left"):
        write_archive(Full(), [regular("v", tmp_path / "f", 0o644)])


# ---------------------------------------------------------------- reading


def test_concatenated_archives_with_zeros_between() -> None:
    one, two = pack(regular("a", b"1", 0o644)), pack(regular("a", b"22", 0o644))
    members = unpack(bytes(4) + one + bytes(8192) + two + bytes(3))
    assert [member.data for member in members] == [b"1", b"22"]
    assert members[1].offset == 4 + len(one) + 8192 + 112


def test_nothing_but_zeros_holds_nothing() -> None:
    assert unpack(b"") == [] == unpack(bytes(777))


def test_lower_case_digits() -> None:
    archive = pack(*SAMPLE)
    assert unpack(archive.replace(b"000081A0", b"000081a0")) == unpack(archive)


def test_short_reads() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 3))

    archive = pack(*SAMPLE)
    assert list(read_archive(Trickle(archive * 2))) == unpack(archive * 2)


def test_truncation_at_every_byte() -> None:
    """Only ends behind a complete trailer, and the empty file, cannot be told from a whole archive."""
    one = pack(directory("d"), regular("d/f", b"12345", 0o644))
    two = pack(symlink("l", "d"))
    both = one + two
    first_end = one.index(b"TRAILER!!!") + 14
    second_end = len(one) + two.index(b"TRAILER!!!") + 14
    everything = unpack(both)
    for cut in range(len(both)):
        if cut == 0:
            assert unpack(both[:cut]) == []
        elif first_end <= cut <= len(one):
            assert unpack(both[:cut]) == everything[:2]
        elif cut >= second_end:
            assert unpack(both[:cut]) == everything
        else:
            with pytest.raises(ArtefactError, match=r"damaged at offset \d+: .* the file ends after"):
                unpack(both[:cut])


def damage(archive: bytes, at: int, new: bytes) -> bytes:
    return archive[:at] + new + archive[at + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, b"070702", "offset 0: magic b'070702'"),
        (0, b"\xfd7zXZ\x00", r"offset 0: magic b'\\xfd7zXZ"),
        (6, b"+0000001", "offset 0: .*hexadecimal"),
        (14, b"0000_1A4", "offset 0: .*hexadecimal"),
        (54, b"00000004", "offset 116: magic"),
        (54, b"7FFFFFFF", "offset 112: data of 'a': the file ends after 400 of 2147483647"),
        (54, b"FFFFFFFF", "offset 112: data of 'a': 4294967295 bytes, where no more than 4294967184"),
        (94, b"00000000", "offset 0: a name of 0 bytes"),
        (94, b"00000001", "offset 0: a name of 1 bytes"),
        (94, b"00001001", "offset 0: a name of 4097 bytes"),
        (94, b"00000003", "offset 0: name b'a.*first NUL"),
        (111, b"b", "offset 0: name b'ab'"),
        (117, b"x", "offset 117: padding"),
        (120, b"X", "offset 120: magic"),
        (510, b"070701", "offset 510: a header that does not begin at a multiple of 4"),
    ],
)
def test_damage(at: int, new: bytes, message: str) -> None:
    with pytest.raises(ArtefactError, match=message) as caught:
        unpack(damage(pack(regular("a", b"12345", 0o644)), at, new))
    assert caught.value.hint


@given(st.binary(max_size=400), st.integers(0, 511))
def test_garbage_gives_members_or_our_error(garbage: bytes, at: int) -> None:
    try:
        unpack(damage(pack(*SAMPLE[:2]), at, garbage))
    except ArtefactError as error:
        assert "offset" in error.message


# ---------------------------------------------------------------- within limits


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(unpacked_bytes=700), "no more than"),
        (Limits(members=2), "more than 2 members"),
        (Limits(names_bytes=5), "names of more than 5 bytes"),
        (Limits(archives=1), "more than 1 archives"),
    ],
)
def test_what_is_over_a_limit_is_refused(limits: Limits, what: str) -> None:
    with pytest.raises(ArtefactError, match=what):
        list(read_archive(io.BytesIO(pack(*SAMPLE) * 2), limits))


def test_a_link_that_the_kernel_would_not_take(tmp_path: Path) -> None:
    archive = bytearray(pack(regular("a", b"x" * 5000, 0o644)))
    archive[14:22] = b"0000A1FF"
    with pytest.raises(ArtefactError, match="a link to a name of 5000 bytes"):
        unpack(bytes(archive))


def test_a_member_may_be_passed_by() -> None:
    found = [member.name for member, _ in walk_archive(io.BytesIO(pack(*SAMPLE)))]
    assert found == [member.name for member in unpack(pack(*SAMPLE))]
