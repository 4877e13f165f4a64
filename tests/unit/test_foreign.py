"""Strangers' archives and disks, the part without system calls: archives and streams of any bytes, ACLs, names of copied files."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import BadInputError
from quickstart.inspect.foreign import tar
from quickstart.inspect.foreign.attributes import acl_attribute, attributes_in
from quickstart.inspect.foreign.home import Limits, NotHome, bring_home
from quickstart.inspect.foreign.members import Kind, Member, read_members, write_end, write_member
from quickstart.inspect.foreign.reader import tell
from quickstart.inspect.foreign.tar import read_archive
from quickstart.model import MIB
from tests.contract.test_ext4 import ACL
from tests.unit.hostile import bounded, little_memory

BLOCK = 4096
ROOM = Limits(data_bytes=10 * BLOCK, members=10, file_bytes=20 * BLOCK)


def mine(path: str, kind: Kind, **fields: Any) -> Member:
    """A member that whoever runs the tests may make."""
    return Member(path=path, kind=kind, **{"uid": os.getuid(), "gid": os.getgid(), "mode": 0o755, **fields})


def stream_of(*members: tuple[Member, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    for member, data in members:
        write_member(out, member, iter([data]))
    write_end(out)
    out.seek(0)
    return out


def file(path: str, data: bytes = b"x") -> tuple[Member, bytes]:
    whole = ((0, len(data)),)
    return mine(path, Kind.FILE, size_bytes=len(data), segments=whole), data


def pieces(count: int) -> tuple[Member, bytes]:
    """A sparse file with so many pieces of one byte, each in a block of its own."""
    segments = tuple((number * BLOCK, 1) for number in range(count))
    return mine("holes", Kind.FILE, size_bytes=count * BLOCK, segments=segments), b"x" * count


def home(tree: Path, *members: tuple[Member, bytes], limits: Limits = ROOM) -> NotHome:
    return bring_home(read_members(stream_of(*members), "it"), tree, limits, "it")


def test_a_member_comes_through_the_stream_as_it_was() -> None:
    member = Member(
        path="a\udcff/\n",
        kind=Kind.FILE,
        size_bytes=10,
        segments=((0, 2), (5, 3)),
        xattrs={"user.x": b"\0\xff"},
        acls={"access": "user::r--"},
    )
    ((found, data),) = (
        (found, b"".join(data)) for found, data in read_members(stream_of((member, b"abcde")), "it")
    )
    assert (found, data) == (member, b"abcde")


def test_a_stream_that_is_cut_anywhere_is_bad_input() -> None:
    whole = stream_of(file("a", b"12345")).getvalue()
    for length in range(len(whole)):
        with pytest.raises(BadInputError):
            for _, data in read_members(io.BytesIO(whole[:length]), "it"):
                list(data)


@given(st.binary(max_size=300))
def test_a_stream_of_any_bytes_is_bad_input(noise: bytes) -> None:
    with pytest.raises(BadInputError):
        for _, data in read_members(io.BytesIO(noise), "it"):
            list(data)


@given(st.binary(max_size=3000), st.integers(0, 1535), st.binary(max_size=30))
def test_an_archive_of_any_bytes_ends_with_a_word(noise: bytes, at: int, other: bytes) -> None:
    """The reader's stream is whole whatever the archive is: noise, or a sound one with some bytes changed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("name\xe9" * 40)
        info.pax_headers = {"SCHILY.xattr.user.x": "1"}
        archive.addfile(info)
    sound = packed.getvalue()
    for data in (noise, sound[:at] + other + sound[at + len(other) :]):
        out = io.BytesIO()
        tell(read_archive(io.BytesIO(data)), out)
        out.seek(0)
        try:
            for _, content in read_members(out, "it"):
                list(content)
        except BadInputError as error:
            assert "what reads it ended" not in error.message


@pytest.mark.parametrize(
    "headers", [{f"a{number}": "x" for number in range(30_000)}, {"SCHILY.xattr.user.x": "v" * 60_000}]
)
def test_global_headers_are_not_copied_for_each_member(headers: dict[str, str]) -> None:
    """tarfile does so: 400 KB of tar.gz took three minutes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        for number in range(2000):
            archive.addfile(tarfile.TarInfo(str(number)))
    with bounded(), pytest.raises(BadInputError, match="its global pax headers have"):
        list(read_archive(io.BytesIO(packed.getvalue())))


def test_global_headers_have_no_attributes() -> None:
    """tarfile gives them to each member: 250 KB of archive took 34 s."""
    packed = io.BytesIO()
    headers = {"SCHILY.xattr.user.x": "v"}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(BadInputError, match="its global pax headers have attributes"):
        list(read_archive(io.BytesIO(packed.getvalue())))


def headed(kind: bytes, data: bytes) -> bytes:
    """A header of the type ``kind`` with ``data``."""
    info = tarfile.TarInfo("of")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        # 200 of them, which are 305 KB of tar.gz, took half a minute.
        (headed(b"x", b"5 a=\n" * 200_000) * 20, "all have more than 2048 for each member"),
        (headed(b"x", b"5 a=\n" * 300_000), "a header has more than 1048576 bytes"),
        (headed(b"L", b"n" * 3 * 1024 * 1024), "a header has more than 1048576 bytes"),
        # tarfile took three seconds for these, and four times as long for twice as many.
        (headed(b"x", b"1" * 32_768), "200 digits or more in a row"),
    ],
)
def test_headers_of_members_have_a_limit(headers: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "_SPARE_BYTES", 2 * MIB)
    archive = b"".join(headers + headed(b"5", b"") for _ in range(20))
    with bounded(), pytest.raises(BadInputError, match=said):
        list(read_archive(io.BytesIO(archive + bytes(1024))))


def test_the_map_of_a_sparse_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old GNU one says in each block that another follows. tarfile reads them all."""
    monkeypatch.setattr(tar, "_SPARE_BYTES", 2 * MIB)
    head = bytearray(headed(b"S", b""))
    head[257:265] = b"ustar  \0"
    head[482] = 1
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    block = bytes(504) + b"\1" + bytes(7)
    with bounded(), pytest.raises(BadInputError, match="all have more than 2048 for each member"):
        list(read_archive(io.BytesIO(bytes(head) + block * 5000)))


@pytest.mark.parametrize(
    "records",
    [
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
        b"22 GNU.sparse.map=0,x\n",
        b"11 mtime=x\n",
        b"13 mtime=1.x\n",
    ],
)
def test_a_header_whose_numbers_are_none(records: bytes) -> None:
    """Not in Python's words, which would not say that the archive is damaged."""
    archive = headed(b"x", records) + headed(b"0", b"") + bytes(1024)
    with pytest.raises(
        BadInputError, match="a header has a number, a pax record or a map of holes that is none"
    ):
        list(read_archive(io.BytesIO(archive)))


def sparse_file(segments: str, data: bytes) -> bytes:
    """An archive of a sparse file (GNU's format 0.1) and another file. ``segments`` is the map."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("holes")
        info.pax_headers = {"GNU.sparse.map": segments, "GNU.sparse.size": "4096"}
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
        archive.addfile(tarfile.TarInfo("other"))
    return packed.getvalue()


def test_a_sparse_file_has_no_more_data_than_its_map_says() -> None:
    """Nobody would count them: a tar.xz of 1 MB with 6.5 GiB of them took a minute."""
    sound = sparse_file("0,1,4095,1", b"xy")
    assert [(member.path, b"".join(data)) for member, data in read_archive(io.BytesIO(sound))] == [
        ("holes", b"xy"),
        ("other", b""),
    ]
    # The data of a member that is left out are read over.
    assert len(list(read_archive(io.BytesIO(sound)))) == 2
    long = sparse_file("0,1", bytes(3 * MIB))
    with pytest.raises(BadInputError, match="a file has more data than the map of its holes says"):
        list(read_archive(io.BytesIO(long)))


def test_many_attributes_of_members_are_taken() -> None:
    """As of an image with a label and a signature for each file, and a few large attributes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(5000):
            info = tarfile.TarInfo(f"{number:0150}")
            info.pax_headers = {"SCHILY.xattr.x": "v" * (60_000 if number % 50 == 0 else 300)}
            archive.addfile(info)
    assert sum(1 for _ in read_archive(io.BytesIO(packed.getvalue()))) == 5000


def test_the_global_header_of_git_is_taken() -> None:
    packed = io.BytesIO()
    headers = {"comment": "0" * 40}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    assert [member.path for member, _ in read_archive(io.BytesIO(packed.getvalue()))] == ["a"]


def test_an_acl_is_the_attribute_that_the_kernel_has() -> None:
    (version,) = struct.unpack_from("<I", ACL)
    words = {0x1: "user:", 0x2: "user", 0x4: "group:", 0x8: "group", 0x10: "mask:", 0x20: "other:"}
    lines = []
    for at in range(4, len(ACL), 8):
        tag, bits, number = struct.unpack_from("<HHI", ACL, at)
        who = words[tag] if number == 0xFFFFFFFF else f"{words[tag]}:{number}"
        letters = "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        lines.append(f"{who}:{letters}")
    assert version == 2
    assert acl_attribute("\n".join(reversed(lines))) == ACL
    assert acl_attribute(",".join(lines) + "\t#effective:r--") == ACL


@pytest.mark.parametrize(
    "text", ["user::rwz", "nobody::r--", "user", "user:a:b:c:d:e", "user:99999999999:r--"]
)
def test_what_is_no_acl(text: str) -> None:
    with pytest.raises(BadInputError):
        acl_attribute(text)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_attributes_of_any_bytes(area: bytes, first: int) -> None:
    try:
        found = attributes_in(area, first)
    except BadInputError:
        return
    assert sum(map(len, found.values())) <= len(area) ** 2


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "a/..", "a\0b", "n" * 256, "d/" * 2048 + "f", "file/below", "link/below"]
)
def test_a_path_that_is_refused(tmp_path: Path, path: str) -> None:
    link = (mine("link", Kind.LINK, target=".."), b"")
    with pytest.raises(BadInputError, match="cannot be unpacked whole"):
        home(tmp_path / "tree", file("file"), link, file(path))
    assert [each.name for each in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize(
    "members",
    [
        [file("a", b"x" * (10 * BLOCK + 1))],
        [file(str(number)) for number in range(11)],
        [(mine("a", Kind.FILE, size_bytes=20 * BLOCK + 1), b"")],
        [pieces(11)],
    ],
)
def test_a_limit(tmp_path: Path, members: list[tuple[Member, bytes]]) -> None:
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        home(tmp_path / "tree", *members)


@pytest.mark.parametrize(
    "fields",
    [
        {"uid": 2**32 - 1},
        {"gid": -1},
        {"uid": 2**70},
        {"mtime_ns": 10**30},
        {"mtime_ns": -(10**20)},
    ],
)
def test_numbers_that_no_file_has(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="cannot be unpacked whole") as caught:
        home(tmp_path / "tree", (mine("a", Kind.FIFO, **fields), b""))
    assert "\n" not in caught.value.message


def test_times_modes_holes_and_names(tmp_path: Path) -> None:
    directory = (mine("d", Kind.DIRECTORY, mtime_ns=5 * 10**9, mode=0o2750), b"")
    holes = (mine("d/h", Kind.FILE, size_bytes=2000, segments=((100, 3),)), b"abc")
    again = (Member(path="./d//again", kind=Kind.HARD, target="/d/h"), b"")
    gone = (Member(path="d/socket", kind=Kind.SOCKET), b"")
    left_out = home(tmp_path / "tree", directory, file("d/h", b"first"), holes, again, gone)
    assert left_out == NotHome(sockets=("d/socket",))
    found = tmp_path / "tree/d"
    assert (found.stat().st_mode & 0o7777, found.stat().st_mtime_ns) == (0o2750, 5 * 10**9)
    assert (found / "h").read_bytes() == bytes(100) + b"abc" + bytes(1897)
    assert (found / "again").samefile(found / "h")


def node(path: str, kind: Kind = Kind.CHARACTER, **fields: Any) -> tuple[Member, bytes]:
    return Member(path=path, kind=kind, **{"mode": 0o666, "major": 1, "minor": 3, **fields}), b""


def test_device_nodes_come_home_as_facts_only(tmp_path: Path) -> None:
    disk = node("a/sda", Kind.BLOCK, mode=0o660, uid=0, gid=6, major=8, minor=0, mtime_ns=7 * 10**9 + 5)
    again = (Member(path="a/again", kind=Kind.HARD, target="./a//sda"), b"")
    found = home(tmp_path / "tree", node("b/null"), disk, again)
    assert [(each.path, oct(each.mode), each.major, each.minor) for each in found.devices] == [
        ("a/again", "0o60660", 8, 0),
        ("a/sda", "0o60660", 8, 0),
        ("b/null", "0o20666", 1, 3),
    ]
    assert (found.devices[1].uid, found.devices[1].gid, found.devices[1].mtime_s) == (0, 6, 7)
    # The directories that hold them are there.
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == [
        "tree",
        "tree/a",
        "tree/b",
    ]


def test_of_a_node_and_another_member_of_its_name_the_later_counts(tmp_path: Path) -> None:
    found = home(tmp_path / "tree", node("a"), file("a"), file("b"), node("b"), node("c"), node("c", minor=5))
    assert [(each.path, each.minor) for each in found.devices] == [("b", 3), ("c", 5)]
    assert [each.name for each in (tmp_path / "tree").iterdir()] == ["a"]


@pytest.mark.parametrize("numbers", [(-1, 0), (4096, 0), (1, -1), (1, 1 << 20), (1 << 70, 1)])
def test_numbers_that_no_device_has(tmp_path: Path, numbers: tuple[int, int]) -> None:
    with pytest.raises(BadInputError, match="as none is numbered"):
        home(tmp_path / "tree", node("a", major=numbers[0], minor=numbers[1]))


def test_a_node_is_no_way_through(tmp_path: Path) -> None:
    link = (mine("l", Kind.LINK, target="/etc"), b"")
    with pytest.raises(BadInputError, match="leads through 'l', no directory"):
        home(tmp_path / "tree", link, node("l/null"))
    with pytest.raises(BadInputError, match="leads through 'n', no directory"):
        home(tmp_path / "other", node("n"), file("n/a"))


@pytest.mark.parametrize("last", ["n", "\n  line"])
def test_a_path_that_is_too_long_for_mke2fs(tmp_path: Path, last: str) -> None:
    """mke2fs writes behind its buffer for a path of more than 2000 bytes (members.PATH_BYTES)."""
    fits = "/".join(["ab"] * 333)
    home(tmp_path / "tree", (mine(f"{fits}/c", Kind.FIFO), b""), limits=replace(ROOM, members=400))
    long = f"{last}/{fits}/" + "c" * 30
    with pytest.raises(BadInputError, match="is a path of more than 1000 bytes") as caught:
        home(tmp_path / "other", (mine(long, Kind.FIFO), b""))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_deep_directories_take_little_memory(tmp_path: Path) -> None:
    """Each of them was kept with the names of all directories above it."""
    base = "/".join(["ab"] * 320)
    count = 1000
    stream = stream_of(*((mine(f"{base}/{number:05}", Kind.DIRECTORY), b"") for number in range(count)))
    with little_memory():
        bring_home(read_members(stream, "it"), tmp_path / "tree", replace(ROOM, members=2 * count), "it")
    made = tmp_path / "tree" / base
    assert len(list(made.iterdir())) == count
    assert all(each.stat().st_mode & 0o7777 == 0o755 for each in (*made.iterdir(), made, made.parent))


def test_what_takes_the_writer_too_much_time_is_ended_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several times of an ordinary writer's, and more for each member."""
    members = [(mine(name, Kind.DIRECTORY), b"") for name in ("a", "b")]
    clock = iter([100.0, 130.002, 130.005])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    home(tmp_path / "tree", *members)
    clock = iter([100.0, 130.002, 130.007])
    with pytest.raises(BadInputError, match="unpacking it takes more than 30 s of CPU time for 2 files"):
        home(tmp_path / "other", *members)


def test_a_piece_of_a_sparse_file_takes_a_block(tmp_path: Path) -> None:
    """An archive of some KB filled the store with more than the disk's size."""
    home(tmp_path / "tree", pieces(10))
    assert (tmp_path / "tree/holes").stat().st_blocks * 512 <= ROOM.data_bytes
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        home(tmp_path / "other", pieces(10), file("a"))


def test_padding_has_an_end() -> None:
    """Zeros without end take as long to decompress as somebody likes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("name"))
    sound = packed.getvalue()
    assert [member.path for member, _ in read_archive(io.BytesIO(sound + bytes(MIB)))] == ["name"]
    with pytest.raises(BadInputError, match="bytes are behind its end"):
        list(read_archive(io.BytesIO(sound + bytes(18 * MIB))))


def test_attributes_of_many_directories_are_data(tmp_path: Path) -> None:
    directories = (
        (mine(str(number), Kind.DIRECTORY, xattrs={"user.x": b"v" * 3 * BLOCK}), b"") for number in range(4)
    )
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        home(tmp_path / "tree", *directories)


def test_directories_that_no_member_names_are_members(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="does not fit on the disk"):
        home(tmp_path / "tree", file("/".join(["ab"] * 11)))


def test_sockets_without_an_end(tmp_path: Path) -> None:
    sockets = ((Member(path=f"s{number}", kind=Kind.SOCKET), iter(())) for number in range(20_000))
    with pytest.raises(BadInputError, match="it has more than 16384 devices and sockets"):
        bring_home(sockets, tmp_path / "tree", replace(ROOM, members=20_000), "it")


def test_the_name_of_an_attribute_begins_no_line(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has an attribute ") as caught:
        home(tmp_path / "tree", (mine("a", Kind.DIRECTORY, xattrs={"x\n  run": b""}), b""))
    assert "\n" not in caught.value.message


def test_a_fault_of_the_reader_is_told_with_the_sources_name() -> None:
    def broken() -> Iterator[tuple[Member, Iterator[bytes]]]:
        yield Member(path="a", kind=Kind.DIRECTORY), iter(())
        raise BadInputError("is damaged", hint="mend it")

    out = io.BytesIO()
    tell(broken(), out)
    out.seek(0)
    with pytest.raises(BadInputError, match=r"^/the/source is damaged$") as caught:
        list(read_members(out, "/the/source"))
    assert caught.value.hint == "mend it"


def told(**fields: object) -> io.BytesIO:
    """A stream with one file, some of whose fields a reader that was taken over says in another way."""
    document = {
        "path": "a", "kind": "file", "mode": 0o644, "uid": os.getuid(), "gid": os.getgid(), "mtime_ns": 0, "ctime_s": 0,
        "size_bytes": 0, "major": 0, "minor": 0, "segments": [], "target": "", "xattrs": {}, "acls": {},
    }  # fmt: skip
    return told_so({**document, **fields}, {"fault": "", "hint": ""})


def told_so(*documents: object) -> io.BytesIO:
    texts = [json.dumps(each).encode() for each in documents]
    return io.BytesIO(b"".join(struct.pack("<I", len(text)) + text for text in texts))


def test_what_a_reader_says_that_was_not_taken_over(tmp_path: Path) -> None:
    assert bring_home(read_members(told(), "it"), tmp_path / "tree", ROOM, "it") == NotHome()
    assert (tmp_path / "tree/a").exists()


@pytest.mark.parametrize(
    "fields",
    [
        *({name: value} for name in ("path", "kind", "target") for value in (None, 5, ["a"], "\ud800")),
        *(
            {name: value}
            for name in ("mode", "uid", "gid", "mtime_ns", "ctime_s", "size_bytes", "major", "minor")
            for value in (None, "5", 0.5, True, float("nan"))
        ),
        *({name: value} for name in ("xattrs", "acls") for value in (None, [1], {"a": 5}, {"\ud800": ""})),
        *({"segments": value} for value in (None, "ab", [5], [[0]], [[0, "1"]], [[float("inf"), 1]], [[1 << 63, 1]])),
        {"unknown": 1},
    ],
)  # fmt: skip
def test_a_reader_that_was_taken_over_says_what_no_member_is(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    with pytest.raises(BadInputError, match="it cannot be read"):
        bring_home(read_members(told(**fields), "it"), tmp_path / "tree", ROOM, "it")


def test_a_reader_that_was_taken_over_gets_no_more_room(tmp_path: Path) -> None:
    """A length below 0 was taken off what all members have together, whose limit then was none."""
    with pytest.raises(BadInputError, match="it cannot be read"):
        bring_home(read_members(told(segments=[[0, -(10**15)]]), "it"), tmp_path / "tree", ROOM, "it")


@pytest.mark.parametrize(
    "document",
    [None, 5, "fault", ["fault"], {"fault": 5, "hint": ""}, {"fault": "x"}, {"fault": "x", "hint": [1]}],
)
def test_a_document_that_a_reader_does_not_say(document: object) -> None:
    with pytest.raises(BadInputError, match="it cannot be read"):
        list(read_members(told_so(document), "it"))
