"""What init asks the volume for in advance: debugfs checks the plan on a real ext4."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.image.blockmap import read_block_map
from quickstart.initramfs.prefetch import Prefetch
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB, Event, Exclusion, Op, StartSet
from quickstart.model.residency import Resident
from quickstart.pack.parts import joined
from quickstart.pack.prefetch import foresee, plan
from tests.unit.imagebuilder import trace
from tests.unit.startfiles import start_file

PAGE = 4096


def P(path: str) -> PurePosixPath:  # noqa: N802
    return PurePosixPath(path)


def debugfs(image: Path, request: str) -> str:
    done = subprocess.run(["debugfs", "-R", request, image], capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("prefetch") / "tree"
    for name in ("etc/app", "usr/lib", "usr/sbin", "var/log", "far"):
        (base / name).mkdir(parents=True)
    (base / "lib").symlink_to("usr/lib")
    (base / "etc/hostname").write_text("guest\n")
    (base / "etc/app/app.conf").write_text("x" * 5000)
    (base / "etc/app/large").write_bytes(os.urandom(MIB))
    (base / "etc/app/middle").write_bytes(os.urandom(100_000))
    (base / "etc/app/table").write_bytes(b"table")
    (base / "etc/app/empty").write_bytes(b"")
    (base / "usr/sbin/post").write_bytes(b"post")
    (base / "etc/link").symlink_to("app/app.conf")
    (base / "usr/lib/libserved.so.1").write_bytes(b"served")
    with (base / "etc/app/pieces").open("wb") as pieces:
        for number in range(6):
            pieces.seek(number * 16 * PAGE)
            pieces.write(b"x" * PAGE)
    # So that inodes and directories lie in blocks of their own.
    for number in range(300):
        (base / f"far/{number}").write_text("far")
    (base / "zone").mkdir()
    (base / "zone/UTC").write_text("UTC")
    return base


@pytest.fixture(scope="module")
def image(tree: Path) -> Path:
    path = tree.parent / "root.raw"
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-d", tree, path, "64M"], check=True, timeout=60)
    return path


def planned(tree: Path, image: Path, *events: str | tuple[Op, str] | tuple[Op, str, str]) -> Prefetch:
    served = start_file("/usr/lib/libserved.so.1", size_bytes=6)
    foreseen = foresee([trace(*events)], StartSet((served,), ()), ImageRoot(tree))
    return plan(foreseen, read_block_map(image))


def has(found: Prefetch, block: int) -> bool:
    return any(offset <= block * 4096 < offset + length for offset, length in found.ranges)


def inode_block(image: Path, path: str) -> int:
    """By debugfs' imap: `located at block 36, offset 0x0100`."""
    match = re.search(r"located at block (\d+)", debugfs(image, f"imap {path}"))
    assert match
    return int(match[1])


def first_block(image: Path, path: str) -> int:
    return int(debugfs(image, f"bmap {path} 0"))


def test_what_leads_to_a_file_is_asked_for(tree: Path, image: Path) -> None:
    found = planned(tree, image, (Op.OPEN, "/etc/link"), (Op.LIST, "/zone"))
    for name in ("/", "/etc", "/etc/app", "/etc/app/app.conf", "/etc/link", "/etc/hostname", "/zone"):
        assert has(found, inode_block(image, name)), name
    for name in ("/", "/etc", "/etc/app", "/zone"):
        assert has(found, first_block(image, name)), name
    assert found.files == (P("/etc/app/app.conf"), P("/etc/hostname"))


def test_what_our_own_programs_come_to_is_asked_for(tree: Path, image: Path) -> None:
    """The log is made in a directory that is searched for it; nothing else of /var/log is looked at."""
    found = planned(tree, image)
    assert has(found, first_block(image, "/var/log"))
    assert found.files == (P("/etc/hostname"),)


def test_a_name_that_is_not_there_is_looked_for_in_its_directory(tree: Path, image: Path) -> None:
    found = planned(tree, image, (Op.LOOKUP, "/zone/nothing/below", "ENOENT"))
    assert has(found, first_block(image, "/zone"))
    assert not found.files[1:]


def test_what_comes_from_elsewhere_is_not_asked_for(tree: Path, image: Path) -> None:
    """Libraries come from /fast, and are looked for there; /proc is no volume; large files are the application's own affair."""
    without = planned(tree, image)
    found = planned(
        tree,
        image,
        (Op.MAP, "/lib/libserved.so.1"),
        (Op.OPEN, "/far/libother.so.2", "ENOENT"),
        (Op.OPEN, "/proc/self/stat"),
        (Op.OPEN, "/etc/ld.so.cache"),
    )
    assert found == without
    assert planned(tree, image, "/etc/app/large").files == without.files


def test_what_is_written_to_is_read_when_it_is_small(tree: Path, image: Path) -> None:
    found = planned(tree, image, (Op.WRITE, "/etc/app/table"), (Op.WRITE, "/etc/app/empty"))
    assert set(found.files) == {P("/etc/app/table"), P("/etc/hostname")}
    assert planned(tree, image, (Op.WRITE, "/etc/app/middle")).files == (P("/etc/hostname"),)


def test_what_is_kept_out_until_later_is_not_asked_for(tree: Path, image: Path) -> None:
    """Nor what it comes to; another program's share of it is."""
    out = StartSet((), (Exclusion(P("/usr/sbin/post"), "exclude: /usr/sbin/post"),))
    late = Event(line=1, pid=9, program="post", op=Op.EXEC, path=P("/usr/sbin/post"), error=None)
    events = (late, Event(line=2, pid=9, program="post", op=Op.OPEN, path=P("/zone/UTC"), error=None))
    root, blocks = ImageRoot(tree), read_block_map(image)

    def files(start_set: StartSet, *seen: str | Event) -> tuple[PurePosixPath, ...]:
        return plan(foresee([trace(*seen)], start_set, root), blocks).files

    assert files(out, *events) == files(out)
    assert P("/zone/UTC") in files(out, *events, "/zone/UTC")
    data = StartSet((), (Exclusion(P("/usr/sbin/post"), "data: /usr/sbin/post"),))
    assert P("/zone/UTC") in files(data, *events)


def test_a_large_file_is_touched_once_in_each_piece_of_the_volume(tree: Path, image: Path) -> None:
    def asked(found: Prefetch) -> set[int]:
        return {block for at, length in found.ranges for block in range(at // PAGE, (at + length) // PAGE)}

    def pieces(numbers: set[int]) -> set[int]:
        return {number * PAGE // (512 * 1024) for number in numbers}

    held = {int(block) for block in debugfs(image, "blocks /etc/app/large").split()}
    found = planned(tree, image, (Op.WRITE, "/etc/app/large"))
    assert P("/etc/app/large") not in found.files
    # The host's name is asked for as a file.
    assert len(pieces(held)) >= 3
    assert pieces(held) <= pieces({*asked(found), first_block(image, "/etc/hostname")})
    assert len(held & asked(found) - asked(planned(tree, image))) <= len(pieces(held))


@pytest.mark.parametrize(
    ("parts", "touched"),
    [
        ((), True),
        (((0, 64 * 1024),), True),
        (((0, PAGE), (64 * 1024, PAGE)), False),
        (((0, 17 * PAGE),), False),
    ],
)
def test_a_file_that_is_read_through_the_page_cache_is_not_touched(
    tree: Path, image: Path, parts: tuple[tuple[int, int], ...], touched: bool
) -> None:
    """A page behind the head shows it: PostgreSQL reads a page at the head of its log, and one where the log ends."""
    seen = replace(trace((Op.OPEN, "/etc/app/large")), resident=(Resident(P("/etc/app/large"), MIB, parts),))
    root, blocks = ImageRoot(tree), read_block_map(image)
    found = plan(foresee([seen], StartSet((), ()), root), blocks)
    nothing = plan(foresee([trace("/etc/app")], StartSet((), ()), root), blocks)
    held = [int(block) for block in debugfs(image, "blocks /etc/app/large").split()]
    assert any(has(found, block) and not has(nothing, block) for block in held) is touched
    assert [part[1:] for part in found.parts] == list(joined(parts, 256 * 1024))


def test_the_extents_of_what_is_only_looked_up_are_not_asked_for(tree: Path, image: Path) -> None:
    found = re.search(r"\(ETB0\):(\d+)", debugfs(image, "stat /etc/app/pieces"))
    assert found
    extents = int(found[1])
    far = planned(tree, image, (Op.LOOKUP, "/etc/app/pieces"))
    assert has(far, inode_block(image, "/etc/app/pieces")) and not has(far, extents)
    assert has(planned(tree, image, "/etc/app/pieces"), extents)


def test_large_files_are_arranged_unless_they_are_very_large(tmp_path: Path) -> None:
    """And a file that is requested whole is among the files."""
    sizes = {"small": MIB, "whole": MIB, "limit": 4 * MIB, "larger": 4 * MIB + 1}
    (tmp_path / "far").mkdir()
    for name, size in sizes.items():
        with (tmp_path / "far" / name).open("wb") as file:
            file.truncate(size)
    parts = {name: ((0, 512 * 1024 if name == "whole" else PAGE),) for name in sizes}
    seen = replace(
        trace(*((Op.OPEN, f"/far/{name}") for name in sizes)),
        resident=tuple(Resident(P(f"/far/{name}"), size, parts[name]) for name, size in sizes.items()),
    )
    foreseen = foresee([seen], StartSet((), ()), ImageRoot(tmp_path))
    assert foreseen.arranged[:2] == (foreseen.directories, foreseen.files)
    assert foreseen.arranged[2] == {P("/far/small"), P("/far/limit")}
    assert P("/far/whole") in foreseen.files


def test_who_makes_files_comes_to_the_bitmaps(tree: Path, image: Path) -> None:
    bitmap = re.search(r"Inode bitmap at (\d+)", subprocess.run(
        ["dumpe2fs", image], capture_output=True, text=True, timeout=60, check=True
    ).stdout) or re.search(r"block bitmap at (\d+)", debugfs(image, "stats"))  # fmt: skip
    assert bitmap
    found = planned(tree, image, (Op.WRITE, "/var/log/app.log"))
    assert has(found, int(bitmap[1]))


def test_ranges_are_apart_and_in_order(tree: Path, image: Path) -> None:
    ranges = planned(tree, image, "/etc/link", "/zone/UTC", (Op.WRITE, "/var/log/x")).ranges
    assert ranges
    assert all(a[0] + a[1] + 128 * 4096 < b[0] for a, b in itertools.pairwise(ranges))
    assert sum(length for _, length in ranges) < 4 * MIB


def test_files_are_asked_for_in_the_order_of_their_places(tree: Path, image: Path) -> None:
    found = planned(tree, image, "/zone/UTC", "/etc/app/app.conf").files
    first = {run.path: run.first_block for run in read_block_map(image).runs if run.offset_bytes == 0}
    assert {P("/zone/UTC"), P("/etc/app/app.conf")} <= set(found)
    assert [first[path] for path in found] == sorted(first[path] for path in found)
