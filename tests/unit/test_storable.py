"""Files of XFS or btrfs that ext4 cannot store: every user of a machine can make them, and they stop no rebuild."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quickstart.artefact.useddisk import _storable
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
    (found,) = storable(
        Member(path="./a", kind=Kind.FILE, xattrs={"user.a": b"x" * 60_000, "trusted.b": b"y"})
    )
    assert found.xattrs == {"trusted.b": b"y"}


def test_a_huge_file_with_all_its_names() -> None:
    huge = Member(path="./a", kind=Kind.FILE, size_bytes=HUGE_BYTES)
    link = Member(path="./b", kind=Kind.HARD, target="./a")
    again = Member(path="./c", kind=Kind.HARD, target="./b")
    other = Member(path="./d", kind=Kind.LINK, target="./a")
    assert storable(huge, link, again, other) == [other]
