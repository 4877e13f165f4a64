"""Looking inside an artefact: names as in the archive, the guest and on the root; reasons; differences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart import inside
from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs.newc import CpioEntry, directory, hard_link, regular, symlink, write_archive
from quickstart.model import Artefact, Readiness, Superblock

READY = Readiness("http", 80, "/", 200, "", 60)
SUPERBLOCK = Superblock("u", 0, 0, True, False, False)
PART_A = (directory("fast"), directory("fast/quickstart"), regular("fast/quickstart/config", b"A=1\n", 0o644))
PART_B = (
    directory("fast"),
    symlink("fast/lib", "usr/lib"),
    directory("fast/usr"),
    directory("fast/usr/lib"),
    symlink("fast/usr/lib/libz.so", "../lib/libz.so.1"),
    regular("fast/usr/lib/libz.so.1", b"library", 0o644),
    symlink("fast/usr/lib/loop", "loop"),
    directory("fast/quickstart"),
    regular("fast/quickstart/part-b", b"build\n", 0o644),
)
START_SET = {
    "files": [
        {"path": "/usr/lib/libz.so.1", "reasons": ["elf: needed libz.so.1 of /usr/sbin/app"]},
        {"path": "/lib", "target": "usr/lib", "reasons": ["symlink: on the way"]},
        {"path": "/usr/lib/libz.so", "target": "/lib/libz.so.1", "reasons": ["symlink: on the way"]},
        {"path": "/usr/lib/loop", "target": "loop", "reasons": ["symlink: on the way"]},
    ],
    "excluded": [{"path": "/var/data", "rule": "data: /var/**"}],
}


def artefact(base: Path, part_b: tuple[CpioEntry, ...] = PART_B) -> Artefact:
    base.mkdir(exist_ok=True)
    with (base / "initramfs.img").open("wb") as stream:
        write_archive(stream, PART_A)
        write_archive(stream, part_b)
    (base / "start-set.json").write_text(json.dumps(START_SET))
    image = base / "initramfs.img"
    return Artefact(base, "app", READY, base, "raw", SUPERBLOCK, base, image, base, "", 1, "", "", 1, 1, 1)


def test_members_in_order_with_their_part(tmp_path: Path) -> None:
    found = inside.members(artefact(tmp_path))
    assert [each.part for each in found] == ["A"] * len(PART_A) + ["B"] * len(PART_B)
    assert found[-1].name == "fast/quickstart/part-b"


@pytest.mark.parametrize(
    "path",
    [
        "/fast/usr/lib/libz.so.1",
        "fast/usr/lib/libz.so.1",
        "/usr/lib/libz.so.1",
        "/lib/libz.so",
        "/fast/lib/libz.so",
    ],
)
def test_a_file_by_any_of_its_names(tmp_path: Path, path: str) -> None:
    assert inside.find(artefact(tmp_path), path).data == b"library"


def test_the_content_stands_under_every_name(tmp_path: Path) -> None:
    first = replace(regular("fast/usr/bin/perl", b"program", 0o755), names=2)
    part_b = (*PART_B[:3], directory("fast/usr/bin"), first, hard_link("fast/usr/bin/perl5.36.0", first))
    made = artefact(tmp_path / "a", part_b)
    assert inside.find(made, "/usr/bin/perl").data == b"program"
    assert inside.find(made, "/usr/bin/perl5.36.0").data == b"program"
    sizes = {each.name: each.size_bytes for each in inside.members(made)}
    assert sizes["fast/usr/bin/perl"] == sizes["fast/usr/bin/perl5.36.0"] == 7
    plain = (*part_b[:4], *(regular(each.name, b"program", 0o755) for each in part_b[4:]))
    assert inside.diff(made, artefact(tmp_path / "b", plain)) == ()


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has no file /usr/lib/none"):
        inside.find(artefact(tmp_path), "/usr/lib/none")


def test_a_loop_of_links(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="loop"):
        inside.find(artefact(tmp_path), "/usr/lib/loop")


@pytest.mark.parametrize(
    "path", ["/usr/lib/libz.so.1", "/fast/usr/lib/libz.so.1", "/lib/libz.so.1", "/fast/lib/libz.so.1"]
)
def test_why_by_the_roots_name_and_by_fasts(tmp_path: Path, path: str) -> None:
    found = inside.why(artefact(tmp_path).directory, path)
    assert found.path == PurePosixPath("/usr/lib/libz.so.1")
    assert found.reasons == ("elf: needed libz.so.1 of /usr/sbin/app",)


def test_why_not(tmp_path: Path) -> None:
    assert inside.why(artefact(tmp_path).directory, "/var/data").excluded == "data: /var/**"


def test_why_part_a(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    assert inside.why(tmp_path, "/fast/quickstart/config", made).reasons == (
        "part A: what init needs itself",
    )


@pytest.mark.parametrize("path", ["/config", "/etc/config", "/usr/lib/none", "/usr/lib/loop/x", "/fast"])
def test_why_of_a_name_that_only_looks_like_one_of_part_a(tmp_path: Path, path: str) -> None:
    made = artefact(tmp_path)
    with pytest.raises(BadInputError, match="was not met"):
        inside.why(tmp_path, path, made)


def test_why_of_a_file_that_nothing_met(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="/etc/motd was not met"):
        inside.why(artefact(tmp_path).directory, "/etc/motd")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"files": 5}', '{"files": [{}], "excluded": []}', "[" * 100000]
)
def test_a_damaged_start_set(tmp_path: Path, text: str) -> None:
    artefact(tmp_path)
    (tmp_path / "start-set.json").write_text(text)
    with pytest.raises(ArtefactError, match=r"start-set\.json cannot be read"):
        inside.why(tmp_path, "/x")


def test_an_archive_does_not_differ_from_itself(tmp_path: Path) -> None:
    assert inside.diff(artefact(tmp_path / "a"), artefact(tmp_path / "b")) == ()


def test_differences(tmp_path: Path) -> None:
    changed = (
        *PART_B[:4],
        symlink("fast/usr/lib/libz.so", "libz.so.1"),
        regular("fast/usr/lib/libz.so.1", b"LIBRARY", 0o755),
        regular("fast/usr/lib/new", b"", 0o644),
        *PART_B[7:],
    )
    found = inside.diff(artefact(tmp_path / "a"), artefact(tmp_path / "b", changed))
    assert [(each.name, each.what) for each in found] == [
        ("fast/usr/lib/libz.so", "changed: size 16 → 9"),
        ("fast/usr/lib/libz.so.1", "changed: mode 100644 → 100755, content"),
        ("fast/usr/lib/loop", "removed"),
        ("fast/usr/lib/new", "added"),
    ]


def test_a_directory_without_a_start_set(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has no start-set\.json"):
        inside.why(tmp_path, "/x")
