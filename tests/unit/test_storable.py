"""Files of XFS or btrfs that ext4 cannot store: every user of a machine can make them, and they stop no rebuild."""

from __future__ import annotations

from collections.abc import Iterator

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
    (found,) = storable(Member(path="./a", kind=Kind.FILE, xattrs=attributes, acls=acls))
    assert found.xattrs == {"trusted.b": b"y"}
    assert found.acls == {"default": "user::r--"}


def test_a_huge_file_with_all_its_names() -> None:
    huge = Member(path="./a", kind=Kind.FILE, size_bytes=HUGE_BYTES)
    link = Member(path="./b", kind=Kind.HARD, target="./a")
    again = Member(path="./c", kind=Kind.HARD, target="./b")
    other = Member(path="./d", kind=Kind.LINK, target="./a")
    assert storable(huge, link, again, other) == [other]


def test_more_links_than_ext4_has() -> None:
    file = Member(path="./a", kind=Kind.FILE)
    links = [Member(path=f"./{number}", kind=Kind.HARD, target="./a") for number in range(70_000)]
    assert len(storable(file, *links)) == 65_000


def test_what_is_left_out_has_a_limit() -> None:
    huge = Member(path="./a", kind=Kind.FILE, size_bytes=HUGE_BYTES)
    links = [Member(path=f"./{number}", kind=Kind.HARD, target="./a") for number in range(20_000)]
    with pytest.raises(BadInputError, match="more than 16384 files that ext4 cannot store"):
        storable(huge, *links)
