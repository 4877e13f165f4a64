"""Strangers' archives and disks, the part without system calls: archives and streams of any bytes, and ACLs."""

from __future__ import annotations

import io
import struct
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quickstart.errors import BadInputError
from quickstart.inspect.foreign import tar
from quickstart.inspect.foreign.attributes import acl_attribute, acl_text, attributes_in
from quickstart.inspect.foreign.members import Kind, Member, read_members
from quickstart.inspect.foreign.reader import tell
from quickstart.inspect.foreign.tar import read_archive
from quickstart.model import MIB
from tests.contract.test_ext4 import ACL
from tests.unit.hostile import bounded
from tests.unit.members import file, stream_of


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
        (headed(b"x", b"1" * 32_768), "256 digits or more in a row"),
    ],
)
def test_headers_of_members_have_a_limit(headers: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "_SPARE_BYTES", 2 * MIB)
    monkeypatch.setattr(tar, "_BEGINS_ANEW", True)
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


def test_a_link_to_a_name_of_digits_only() -> None:
    """Each user of a machine can make one. Debian 12's tarfile takes no time for it."""
    target = "1" * 4000
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, target
        archive.addfile(info)
    ((member, _),) = list(read_archive(io.BytesIO(packed.getvalue())))
    assert member.target == target


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [("1.5", 1_500_000_000), ("-1.5", -1_500_000_000), ("-0.25", -250_000_000), ("-3", -3 * 10**9)],
)
def test_a_time_with_a_fraction(text: str, time_ns: int) -> None:
    """GNU tar writes a time before 1970 as one number with its sign."""
    records = "".join(
        f"{len(text) + len(name) + 4 + (len(text) + len(name) > 5)} {name}={text}\n"
        for name in ("mtime", "ctime")
    )
    archive = headed(b"x", records.encode()) + headed(b"0", b"") + bytes(1024)
    ((member, _),) = list(read_archive(io.BytesIO(archive)))
    assert (member.mtime_ns, member.ctime_s) == (time_ns, time_ns // 10**9)


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


# What debugfs(8) says that ext4 has for ACL: the entries without a user or group have no number.
STORED = bytes.fromhex("010000000100060002000400e8030000040004001000040020000000")


def test_an_acl_of_ext4() -> None:
    assert acl_text(STORED) == "user::rw-\nuser:1000:r--\ngroup::r--\nmask::r--\nother::---"
    assert acl_attribute(acl_text(STORED)) == ACL


@pytest.mark.parametrize(
    "stored", [b"", b"\2" + STORED[1:], STORED[:-1], STORED[:10], STORED + b"\x40\0\0\0"]
)
def test_what_is_no_acl_of_ext4(stored: bytes) -> None:
    with pytest.raises(BadInputError, match="its ACLs"):
        acl_text(stored)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_attributes_of_any_bytes(area: bytes, first: int) -> None:
    try:
        found = attributes_in(area, first)
    except BadInputError:
        return
    assert sum(map(len, found.values())) <= len(area) ** 2


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE]
)
def test_a_negative_size_gives_no_room_for_headers(kind: bytes) -> None:
    """It would count backwards, and raise the limit for all headers."""
    info = tarfile.TarInfo("x")
    info.type = kind
    # tarfile itself writes no negative size: the field is a number in base 256.
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" + (2**88 - 2**60).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    # Newer versions of tarfile refuse it by themselves.
    with pytest.raises(BadInputError, match=r"negative size|invalid offset"):
        for _ in read_archive(io.BytesIO(bytes(head) + bytes(10240))):
            pass
