"""Looking inside an artefact: names in the archive, in the guest and on the root volume; reasons; differences."""

from __future__ import annotations

import json
import re
import stat
import tracemalloc
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from quickstart.artefact import difference, inside
from quickstart.artefact.directory import load
from quickstart.artefact.manifest import Excluded, StartSetFacts
from quickstart.cli.inside import diff as cli_diff
from quickstart.errors import ArtefactError, BadInputError
from quickstart.initramfs.newc import (
    CpioEntry,
    char_device,
    directory,
    hard_link,
    regular,
    symlink,
    write_archive,
)
from quickstart.initramfs.payload import packing
from quickstart.model import Artefact
from quickstart.model.words import Payload
from tests.unit.hostile import little_memory
from tests.unit.outs import change, write_manifest

PART_A = (directory("fast"), directory("fast/quickstart"), regular("fast/quickstart/config", b"A=1\n", 0o644))
PART_B = (
    directory("fast"),
    symlink("fast/lib", "usr/lib"),
    directory("fast/usr"),
    directory("fast/usr/lib"),
    symlink("fast/usr/lib/libz.so", "../lib/libz.so.1"),
    regular("fast/usr/lib/libz.so.1", b"library", 0o644),
    symlink("fast/usr/lib/loop", "loop"),
    symlink("fast/usr/lib/data", "/usr/lib/data"),
    directory("fast/quickstart"),
    regular("fast/quickstart/part-b", b"build\n", 0o644),
)
ON_THE_WAY = ["symlink: on the way"]
START_SET = {
    "files": [
        {
            "path": "/usr/lib/libz.so.1",
            "kind": "file",
            "size_bytes": 7,
            "reasons": ["elf: needed libz.so.1 of /usr/sbin/app"],
        },
        *(
            {"path": path, "kind": "symlink", "size_bytes": 0, "target": target, "reasons": ON_THE_WAY}
            for path, target in (
                ("/lib", "usr/lib"),
                ("/usr/lib/libz.so", "/lib/libz.so.1"),
                ("/usr/lib/loop", "loop"),
            )
        ),
    ],
    "excluded": [{"path": "/var/data", "rule": "data: /var/**"}],
}


def artefact(base: Path, part_b: tuple[CpioEntry, ...] = PART_B, payload: Payload = Payload.CPIO) -> Artefact:
    base.mkdir(exist_ok=True)
    with (base / "initramfs.img").open("wb") as stream:
        write_archive(stream, PART_A)
        with packing(stream, payload) as sink:
            write_archive(sink, part_b)
    (base / "start-set.json").write_text(json.dumps(START_SET))
    write_manifest(base)
    return load(base)


def read(made: Artefact, path: str) -> bytes:
    return b"".join(inside.content(made, inside.find(made, path)))


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
    assert read(artefact(tmp_path), path) == b"library"


def test_the_content_stands_under_every_name(tmp_path: Path) -> None:
    first = replace(regular("fast/usr/bin/perl", b"program", 0o755), names=2)
    part_b = (*PART_B[:3], directory("fast/usr/bin"), first, hard_link("fast/usr/bin/perl5.36.0", first))
    made = artefact(tmp_path / "a", part_b)
    assert read(made, "/usr/bin/perl") == b"program"
    assert read(made, "/usr/bin/perl5.36.0") == b"program"
    sizes = {each.name: each.size_bytes for each in inside.members(made)}
    assert sizes["fast/usr/bin/perl"] == sizes["fast/usr/bin/perl5.36.0"] == 7
    plain = (*part_b[:4], *(regular(each.name, b"program", 0o755) for each in part_b[4:]))
    (whole,) = difference.diff(made, artefact(tmp_path / "b", plain))
    assert (whole.name, "hard links" in whole.what) == ("", True)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has no file /usr/lib/none"):
        inside.find(artefact(tmp_path), "/usr/lib/none")


def test_a_file_that_stays_on_the_volume(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="/usr/lib/data stays on the root volume") as refused:
        inside.find(artefact(tmp_path), "/lib/data")
    assert "cat /usr/lib/data" in (refused.value.hint or "")


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


def test_why_keeps_no_table_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path and an answer for each of 295 000 took 170 MiB."""
    excluded = tuple(Excluded(path=f"/{number}", rule="x") for number in range(50_000))
    document = StartSetFacts(files=(), excluded=excluded)
    monkeypatch.setattr(inside, "read_start_set", lambda directory: document)
    with little_memory():
        assert inside.why(tmp_path, "/49999").excluded == "x"
        with pytest.raises(BadInputError, match="was not met"):
            inside.why(tmp_path, "/zz")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"files": 5}', '{"files": [{}], "excluded": []}', "[" * 100000]
)
def test_a_damaged_start_set(tmp_path: Path, text: str) -> None:
    artefact(tmp_path)
    (tmp_path / "start-set.json").write_text(text)
    with pytest.raises(ArtefactError, match=r"start-set\.json cannot be read"):
        inside.why(tmp_path, "/x")


def test_an_archive_does_not_differ_from_itself(tmp_path: Path) -> None:
    assert difference.diff(artefact(tmp_path / "a"), artefact(tmp_path / "b")) == ()


def test_differences(tmp_path: Path) -> None:
    changed = (
        *PART_B[:4],
        symlink("fast/usr/lib/libz.so", "libz.so.1"),
        regular("fast/usr/lib/libz.so.1", b"LIBRARY", 0o755),
        regular("fast/usr/lib/new", b"", 0o644),
        *PART_B[7:],
    )
    found = difference.diff(artefact(tmp_path / "a"), artefact(tmp_path / "b", changed))
    assert [(each.name, each.what) for each in found] == [
        ("fast/usr/lib/libz.so", "changed: size 16 → 9"),
        ("fast/usr/lib/libz.so.1", "changed: mode 100644 → 100755, content"),
        ("fast/usr/lib/loop", "removed"),
        ("fast/usr/lib/new", "added"),
    ]


def test_files_of_one_name_are_always_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part A and part B may have the same name."""
    names = [f"f{number:02}" for number in range(20)]
    sides = {
        part: [
            inside.Member(name=name, part=part, mode=0, size_bytes=0, target="", data=b"") for name in names
        ]
        for part in "AB"
    }
    first, second = artefact(tmp_path / "a"), artefact(tmp_path / "b")
    monkeypatch.setattr(difference, "members", lambda which: sides["A" if which is first else "B"])
    expected = [difference.Difference(name, what) for name in names for what in ("added", "removed")]
    assert list(difference.diff(first, second)) == expected


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"uid": 1000, "gid": 1001}, "changed: owner 0:0 → 1000:1001"),
        ({"rdev_major": 8, "rdev_minor": 0}, "changed: device 1:3 → 8:0"),
        ({"mtime": 7}, "changed: time 0 → 7"),
        ({"mode": stat.S_IFBLK | 0o666}, "changed: mode 20666 → 60666"),
    ],
)
def test_who_owns_a_file_and_which_device_it_is(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    null = char_device("fast/usr/lib/null", 0o666, 1, 3)
    pair = [(*PART_B[:4], each, *PART_B[4:]) for each in (null, replace(null, **changes))]
    first, second = (artefact(tmp_path / name, each) for name, each in zip("ab", pair, strict=True))
    assert difference.diff(first, second) == (difference.Difference(null.name, what),)


@pytest.mark.parametrize("payload", [Payload.GZIP, Payload.ZSTD])
def test_archives_with_other_bytes_differ(
    tmp_path: Path, payload: Payload, capsys: pytest.CaptureFixture[str]
) -> None:
    artefact(tmp_path / "a")
    artefact(tmp_path / "b", payload=payload)
    with pytest.raises(SystemExit) as ended:
        cli_diff.main([str(tmp_path / "a"), str(tmp_path / "b")])
    assert (ended.value.code, "other bytes" in capsys.readouterr().out) == (1, True)


def test_a_directory_without_a_start_set(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has no start-set\.json"):
        inside.why(tmp_path, "/x")


# ---------------------------------------------------------------- within limits


def test_a_pattern_across_the_border_of_two_pieces_is_found() -> None:
    """The content is looked at in pieces; a line's beginning is one wherever a piece begins."""
    sought = (
        inside.Sought("whole", b"secret", re.compile(rb"secret-of-mine")),
        inside.Sought("line", b"begin", re.compile(rb"^begin", re.M)),
    )
    border = inside._LOOK_BYTES

    def found(data: bytearray) -> frozenset[str]:
        pieces = iter([bytes(data[:border]), bytes(data[border:])])
        member = inside.Member(name="x", part="B", mode=0o100644, size_bytes=len(data), target="", data=b"")
        return inside._looked_at(inside._Met(member, pieces), sought, False).found

    for shift in (0, 1, 7, 13, 14):
        data = bytearray(2 * border)
        data[border - shift : border - shift + 14] = b"secret-of-mine"
        assert found(data) == {"whole"}
    for before, wanted in ((b"\n", {"line"}), (b"x", set())):
        data = bytearray(b"x" * (2 * border))
        data[border - 1 : border + 5] = before + b"begin"
        assert found(data) == wanted


@pytest.mark.parametrize("payload", [Payload.CPIO, Payload.GZIP, Payload.LZ4, Payload.ZSTD])
def test_a_large_file_is_never_held(tmp_path: Path, payload: Payload) -> None:
    made = artefact(
        tmp_path, payload=payload, part_b=(*PART_B[:3], regular("fast/usr/x", bytes(60 << 20), 0o644))
    )
    tracemalloc.start()
    found = inside.members(made)
    size_bytes = sum(len(piece) for piece in inside.content(made, found[-1]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found[-1].size_bytes, size_bytes) == (60 << 20, 60 << 20)
    assert peak_bytes < 40 << 20


def test_no_more_is_read_than_the_manifest_says(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    change(tmp_path, lambda document: document.update(initramfs_unpacked_bytes=300))
    with pytest.raises(ArtefactError, match="no more than"):
        inside.members(made)


def test_links_that_get_longer_and_longer_lead_nowhere(tmp_path: Path) -> None:
    long = symlink("fast/usr/lib/grow", "/".join(["../lib/grow", *["a"] * 1900]))
    made = artefact(tmp_path, (*PART_B[:4], long))
    with pytest.raises(BadInputError, match="has no file"):
        inside.find(made, "/usr/lib/grow")


def test_a_start_set_whose_links_get_longer_and_longer(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    grow = {
        "path": "/grow",
        "kind": "symlink",
        "size_bytes": 0,
        "target": "grow/" + "a/" * 4000,
        "reasons": [],
    }
    (tmp_path / "start-set.json").write_text(json.dumps({"files": [grow], "excluded": []}))
    with pytest.raises(BadInputError, match="was not met"):
        inside.why(made.directory, "/grow/x")
