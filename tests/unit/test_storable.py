"""Files of XFS or btrfs that ext4 cannot store: every user of a machine can make them, and they stop no rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from quickstart.artefact.useddisk import _storable
from quickstart.errors import BadInputError
from quickstart.inspect.foreign.members import Kind, Member

# 2480 and 1890.
LATER_S, EARLIER_S = 16_094_592_000, -2_524_521_600
HUGE_BYTES = 17 << 40


def storable(*members: Member) -> list[Member]:
    def given() -> Iterator[tuple[Member, Iterator[bytes]]]:
        for member in members:
            yield member, iter(())

    return [member for member, _ in _storable(given())]


def test_an_ordinary_file_stays_as_it_is() -> None:
    file = Member(
        path="./a",
        kind=Kind.FILE,
        mtime_ns=1_600_000_000_123_456_789,
        ctime_s=5,
        xattrs={"security.capability": b"x"},
    )
    assert storable(file) == [file]


@pytest.mark.parametrize(("time_s", "stored_s"), [(LATER_S, 15_032_385_535), (EARLIER_S, -2_147_483_648)])
def test_a_time(time_s: int, stored_s: int) -> None:
    (found,) = storable(Member(path="./a", kind=Kind.FILE, mtime_ns=time_s * 10**9))
    assert found.mtime_ns == stored_s * 10**9


def test_attributes_of_users() -> None:
    attributes = {"user.a": b"x" * 60_000, "btrfs.compression": b"zstd", "trusted.b": b"y"}
    acls = {"access": ",".join(f"user:{uid}:r--" for uid in range(1500)), "default": "user::r--"}
    (found,) = storable(Member(path="./a", kind=Kind.FILE, mode=0o754, xattrs=attributes, acls=acls))
    assert found.xattrs == {"trusted.b": b"y"}
    # There is still one, and the mode is the same.
    access = "user::rwx\nuser:0:---\ngroup::---\nmask::r-x\nother::r--"
    assert found.acls == {"access": access, "default": "user::r--"}


def test_a_huge_file_with_all_its_names() -> None:
    huge = Member(path="./a", kind=Kind.FILE, size_bytes=HUGE_BYTES)
    link = Member(path="./b", kind=Kind.HARD, target="./a")
    again = Member(path="./c", kind=Kind.HARD, target="./a")
    other = Member(path="./d", kind=Kind.LINK, target="./a")
    assert storable(huge, link, again, other) == [other]


def test_too_large_files_have_a_limit() -> None:
    """Links to them do not count."""
    huge = Member(path="./a", kind=Kind.FILE, size_bytes=HUGE_BYTES)
    links = [Member(path=f"./{number}", kind=Kind.HARD, target="./a") for number in range(20_000)]
    assert storable(huge, *links) == []
    with pytest.raises(BadInputError, match="more than 16384 files of more than 16 TiB, the last one"):
        storable(*(replace(huge, path=f"./{number}") for number in range(20_000)))
