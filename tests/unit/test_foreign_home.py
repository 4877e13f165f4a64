"""Members of a stranger's archive come home: paths, limits, device nodes, and what a reader that was taken over says."""

from __future__ import annotations

import errno
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

from quickstart.errors import BadInputError
from quickstart.inspect.foreign.home import NotHome, bring_home
from quickstart.inspect.foreign.members import Kind, Member, read_members
from quickstart.inspect.foreign.reader import tell
from quickstart.inspect.foreign.tar import read_archive
from quickstart.model import MIB
from tests.unit.hostile import little_memory
from tests.unit.members import BLOCK, ROOM, file, home, mine, pieces, stream_of


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


@pytest.mark.parametrize("drops_links", [False, True])
def test_more_links_than_the_host_s_file_system_has(
    tmp_path: Path, drops_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", link)
    limits = replace(ROOM, drops_links=drops_links)
    members = (file("a"), (mine("b", Kind.HARD, target="a"), b""), file("c"))
    if drops_links:
        home(tmp_path / "tree", *members, limits=limits)
        assert sorted(each.name for each in (tmp_path / "tree").iterdir()) == ["a", "c"]
    else:
        with pytest.raises(BadInputError, match="Too many links"):
            home(tmp_path / "tree", *members, limits=limits)


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
