"""The audit of the archive as a whole: the names, the two parts, the digests, and start-set.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quickstart.artefact.audit import ERROR, Finding
from quickstart.artefact.audit.names import nearest_above
from quickstart.errors import ArtefactError
from quickstart.initramfs.digests import list_bytes
from quickstart.initramfs.digests import listed as digests_of
from quickstart.initramfs.newc import (
    CpioEntry,
    directory,
    hard_link,
    regular,
    symlink,
    write_archive,
)
from tests.unit.audited import (
    HEAD,
    LISTED,
    OURS,
    PART_A,
    TAIL,
    artefact,
    audit,
    listed,
    the_error,
)
from tests.unit.hostile import bounded

EVIL = b"#!/bin/sh"


def raw_members(*named: tuple[str, int, bytes], begin: int) -> bytes:
    """Members as no writer of ours makes them, with any names, and with inodes from ``begin``."""
    made = bytearray()
    for inode, (name, mode, data) in enumerate(named, begin):
        raw = name.encode() + b"\0"
        numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        made += b"070701" + b"".join(b"%08X" % number for number in numbers) + raw
        made += bytes(-len(made) % 4) + data
        made += bytes(-len(made) % 4)
    return bytes(made)


def with_members(base: Path, *named: tuple[str, int, bytes]) -> dict[str, set[str]]:
    """What audit says of an artefact in whose part A these members are, too."""
    made = artefact(base)
    whole = made.initramfs.read_bytes()
    more = raw_members(*named, begin=len(PART_A) + 2)
    at = whole.index(b"TRAILER!!!") - 110
    made.initramfs.write_bytes(whole[:at] + more + whole[at:])
    found: dict[str, set[str]] = {}
    for each in audit(made):
        if each.severity == ERROR:
            found.setdefault(each.object, set()).add(each.what)
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("./init", "/init", "x/../init", ".//init", "init/", "init"),
        *("./launch/agent", "/launch/agent", "x/../launch/agent", "launch/agent", "x/../fast/usr/app"),
        *(".", "./.", "/", "//", "..", "../.."),
    ],
)
def test_a_name_in_another_spelling_or_place(tmp_path: Path, name: str) -> None:
    """The kernel resolves it, and writes over the first /init."""
    with pytest.raises(ArtefactError, match=r"the name .*, which quickstart does not write there"):
        with_members(tmp_path, (name, 0o100755, EVIL))


def test_a_member_below_a_link(tmp_path: Path) -> None:
    made = artefact(tmp_path, part_a=(*PART_A, symlink("way", "fast/usr")))
    found = {each.object for each in audit(made) if each.severity == ERROR}
    assert found == set()
    with pytest.raises(ArtefactError, match="the name way/app, which quickstart does not write there"):
        with_members(tmp_path / "below", ("way", 0o120777, b"fast/usr"), ("way/app", 0o100755, EVIL))


def test_part_b_writes_over_nothing_of_part_a(tmp_path: Path) -> None:
    """Also where the list of digests names it: that is the same author's."""
    evil = (regular(f"{OURS}/busybox", EVIL, 0o755), directory("bin"), regular("bin/sh", EVIL, 0o755))
    found = audit(artefact(tmp_path, tail=(TAIL[0], *evil, *TAIL[1:])))
    said = {(each.object, each.what) for each in found}
    assert (f"/{OURS}/busybox", "is in part A, and again in part B") in said
    assert ("/bin/sh", "is in part B, but not below /fast") in said


def test_names_of_thousands_of_components_take_little_time(tmp_path: Path) -> None:
    above = [directory("/".join("a" * depth), 0o700 if depth == 1900 else 0o755) for depth in range(1, 1901)]
    named = [regular(f"{above[-1].name}/{number:03}", b"", 0o644) for number in range(300)]
    made = artefact(tmp_path, part_a=(*PART_A, *above, *named))
    with bounded():
        found = [each.what for each in audit(made)]
    assert sum("not everybody may read it" in what for what in found) == 300


def test_the_nearest_directory_above() -> None:
    names = ["a", "a/b", "a/b/c", "a-b/c", "a.b", "ab/c", "z"]
    assert nearest_above(names, {"a", "a/b"}) == {"a/b": "a", "a/b/c": "a/b"}
    assert nearest_above(["a/b", "c"], {"", "a"}) == {"a": "", "a/b": "a", "c": ""}


def test_part_b_before_part_a(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    with made.initramfs.open("wb") as stream:
        write_archive(stream, (*HEAD, *TAIL))
        write_archive(stream, PART_A)
    found = {each.object: each.what for each in audit(made)}
    assert "behind the beginning of part B" in found["/init"]
    assert "in part A" in found["/fast/usr/app"]


@pytest.mark.parametrize("line", [b"IMAGE=ext4\n", b"IMAGE=squashfs\n", b"IMAGE=''\nIMAGE=ext4\n"])
def test_another_kind_of_part_b(tmp_path: Path, line: bytes) -> None:
    config = replace(PART_A[-1], data=b"BUILD=b1\n" + line)
    found = {each.object: each.what for each in audit(artefact(tmp_path, part_a=(*PART_A[:-1], config)))}
    assert found[f"/{OURS}/config"] == "names another kind of part B than there is"


@pytest.mark.parametrize("lines", [1 << 16, 9 << 20])
def test_a_configuration_that_is_too_long(tmp_path: Path, lines: int) -> None:
    """It is a shell script, and so long that it is not searched for the kind of part B."""
    data = b"BUILD=b1\nIMAGE=''\n" + b"\n" * lines
    config = replace(PART_A[-1], data=data)
    found = {each.object: each.what for each in audit(artefact(tmp_path, part_a=(*PART_A[:-1], config)))}
    assert found[f"/{OURS}/config"].startswith(f"has {len(data)} bytes")


@pytest.mark.parametrize(
    "image", [symlink(f"{OURS}/part-b.squashfs", "spare"), regular(f"{OURS}/part-b.ext4", b"x", 0o644)]
)
def test_what_init_would_mount_and_is_no_image(tmp_path: Path, image: CpioEntry) -> None:
    with pytest.raises(ArtefactError, match="which is no image of part B; no build makes it so"):
        audit(artefact(tmp_path, tail=(TAIL[0], image, TAIL[1])))


def test_part_b_of_another_build(tmp_path: Path) -> None:
    tail = (directory(OURS), regular(f"{OURS}/part-b", b"b2\n", 0o644))
    assert "names another build" in the_error(audit(artefact(tmp_path, tail=tail))).what


def test_part_b_without_its_marker(tmp_path: Path) -> None:
    assert the_error(audit(artefact(tmp_path, tail=()))).object == f"/{OURS}/part-b"


def with_digests(base: Path, *entries: CpioEntry) -> tuple[Finding, ...]:
    """The audit of a part B whose list of digests is of these entries."""
    listing = regular(f"{OURS}/digests", list_bytes(digests_of(entries)), 0o644)
    return audit(artefact(base, part_a=(*PART_A, listing)))


@pytest.mark.parametrize(
    "other",
    [
        regular("fast/usr/app", b"Program", 0o755),
        regular("fast/usr/app", b"program", 0o750),
        regular("fast/usr/app", b"program!", 0o755),
        replace(regular("fast/usr/app", b"program", 0o755), uid=1),
        symlink("fast/usr/app", "program"),
    ],
)
def test_a_file_that_is_not_what_the_list_of_digests_says(tmp_path: Path, other: CpioEntry) -> None:
    error = the_error(with_digests(tmp_path, *HEAD[:-1], other, *TAIL))
    assert (error.object, error.what) == ("/fast/usr/app", f"is not what /{OURS}/digests says")


def test_a_list_of_digests_of_other_files(tmp_path: Path) -> None:
    error = the_error(with_digests(tmp_path / "a", *HEAD[:-1], *TAIL))
    assert (error.object, error.what) == (
        "/fast/usr/app",
        f"/{OURS}/digests: is packed, but not listed there",
    )
    more = regular("fast/usr/more", b"", 0o644)
    error = the_error(with_digests(tmp_path / "b", *HEAD, more, *TAIL))
    assert (error.object, error.what) == (
        "/fast/usr/more",
        f"/{OURS}/digests: is listed there, but not packed",
    )


def test_a_file_with_two_names_is_what_the_list_says(tmp_path: Path) -> None:
    first = CpioEntry(name="fast/usr/one", mode=0o100755, data=b"program", names=2)
    other = hard_link("fast/usr/two", first)
    made = artefact(
        tmp_path,
        head=(*HEAD, first, other),
        files=(*LISTED, listed("/usr/one", "file", 7), listed("/usr/two", "file", 7)),
    )
    assert audit(made) == ()


def test_a_damaged_list_of_digests(tmp_path: Path) -> None:
    listing = regular(f"{OURS}/digests", b"QSPARTB3", 0o644)
    error = the_error(audit(artefact(tmp_path, part_a=(*PART_A, listing))))
    assert (error.object, error.what) == (f"/{OURS}/digests", "the list of digests of 8 bytes is damaged")


def test_a_packed_file_that_is_not_listed(tmp_path: Path) -> None:
    made = artefact(tmp_path, regular("fast/etc/extra", b"", 0o644), listing=False)
    assert "does not list it" in the_error(audit(made)).what


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (listed("/usr/none", "file"), "is not packed"),
        ({**listed("/etc/extra", "file", 5), "reasons": []}, "no reason"),
        (listed("/etc/extra", "symlink", 5), "listed as symlink and packed as file"),
        (listed("/etc/extra", "file", 6), "has 5 bytes, listed are 6"),
    ],
)
def test_a_start_set_that_says_otherwise(tmp_path: Path, file: dict[str, Any], what: str) -> None:
    extra = () if file["path"] == "/usr/none" else (regular("fast/etc/extra", b"extra", 0o644),)
    made = artefact(tmp_path, *extra, files=(*LISTED, file), listing=False)
    assert what in the_error(audit(made)).what


def test_an_excluded_file_that_is_packed(tmp_path: Path) -> None:
    more = (directory("fast/var"), regular("fast/var/data", b"", 0o644))
    assert "excluded by data: /var/**" in the_error(audit(artefact(tmp_path, *more))).what
