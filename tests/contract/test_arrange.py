"""Directories and small files are put side by side on a real ext4. The superblock stays the same, and e2fsck finds no fault."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import ArtefactError
from quickstart.image import arrange
from quickstart.image.arrange import Move, move, plan_moves
from quickstart.image.blockmap import BlockMap, Kind, read_block_map
from quickstart.image.ext4 import BlockGroup, block_groups
from quickstart.image.superblock import read_superblock

P = PurePosixPath
WANTED = (P("/"), P("/etc"), P("/etc/app"), P("/var/empty"))
FILES = (P("/etc/app/app.conf"), P("/etc/passwd"), P("/usr/large"), P("/etc/inherited"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("arrange") / "tree"
    for name in ("etc/app", "usr/many", "var/empty"):
        (base / name).mkdir(parents=True)
    (base / "etc/app/app.conf").write_text("x" * 9000)
    (base / "etc/app/link").symlink_to("app.conf")
    (base / "etc/passwd").write_text("root\n")
    (base / "etc/inherited").write_bytes(b"")
    (base / "usr/large").write_bytes(os.urandom(300_000))
    for number in range(600):
        (base / f"usr/many/{number:03}").write_text(str(number))
    return base


@pytest.fixture
def image(tree: Path, tmp_path: Path) -> Path:
    path = tmp_path / "root.raw"
    words = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-U", "57174af5-eba9-5dc8-89d7-1ee8d7185e0b"]
    words += ["-E", "hash_seed=57174af5-eba9-5dc8-89d7-1ee8d7185e0b", "-d", str(tree), str(path), "256M"]
    subprocess.run(words, check=True, timeout=60, env={**os.environ, "E2FSPROGS_FAKE_TIME": "1400000000"})
    return path


def arranged(image: Path) -> tuple[tuple[Move, ...], BlockMap]:
    blocks, groups = read_block_map(image), block_groups(image)
    moves = plan_moves(blocks, groups, WANTED, FILES)
    move(image, blocks.block_bytes, groups, moves)
    return moves, read_block_map(image)


def said_by_debugfs(image: Path, request: str) -> str:
    done = subprocess.run(["debugfs", "-R", request, image], capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


def contents(image: Path, place: Path) -> dict[str, tuple[int, str]]:
    place.mkdir()
    said_by_debugfs(image, f"rdump / {place}")
    return {
        str(path.relative_to(place)): (path.lstat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_what_is_wanted_lies_side_by_side(image: Path) -> None:
    moves, after = arranged(image)
    runs = {run.path: run for run in after.runs if run.kind in (Kind.DIRECTORY, Kind.FILE)}
    found = [runs[path] for path in (*WANTED, P("/etc/app/app.conf"), P("/etc/passwd"), P("/usr/large"))]
    assert [run.first_block for run in found] == [each.target for each in moves]
    assert all(a.first_block + a.blocks == b.first_block for a, b in itertools.pairwise(found))
    assert found[0].first_block % 128 == 0
    # An empty file has no block; a directory that nobody asked for stays.
    assert P("/etc/inherited") not in runs
    assert runs[P("/usr/many")].first_block < found[0].first_block


def test_nothing_else_changes(image: Path, tmp_path: Path) -> None:
    before, superblock = contents(image, tmp_path / "before"), read_superblock(image)
    names = ("/", "/etc", "/etc/app/app.conf", "/etc/passwd", "/usr/large")
    facts = [said_by_debugfs(image, f"stat {name}").split("EXTENTS:")[0] for name in names]
    arranged(image)
    assert contents(image, tmp_path / "after") == before
    assert read_superblock(image) == superblock
    again = [said_by_debugfs(image, f"stat {name}").split("EXTENTS:")[0] for name in names]
    # The checksum of an inode is over its extents.
    cut = [[line for line in text.splitlines() if "checksum" not in line] for text in (*facts, *again)]
    assert cut[: len(names)] == cut[len(names) :]


def test_the_old_places_are_free_and_empty(image: Path) -> None:
    moves, after = arranged(image)
    for each in moves:
        owners = after.owners(each.source * 4096, each.blocks * 4096)
        assert [owner.kind for owner in owners] == [Kind.FREE]
        with image.open("rb") as file:
            file.seek(each.source * 4096)
            assert not any(file.read(each.blocks * 4096))


def test_the_same_image_gives_the_same_bytes(image: Path, tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.raw"
    subprocess.run(["cp", "--sparse=always", image, copy], check=True, timeout=60)
    arranged(image)
    arranged(copy)
    subprocess.run(["cmp", image, copy], check=True, timeout=60)


def test_a_second_time_and_nothing_to_do(image: Path) -> None:
    _, after = arranged(image)
    assert plan_moves(after, block_groups(image), (), ()) == ()
    move(image, 4096, block_groups(image), ())
    # Once more goes as well, to another place or the same.
    arranged(image)


@pytest.fixture
def in_pieces(tmp_path: Path) -> Path:
    """A volume with groups of 8 MiB: /usr/b lies in two of them, /usr/c has three holes, /usr/d is larger than a group."""
    tree, path = tmp_path / "tree", tmp_path / "pieces.raw"
    (tree / "usr/many").mkdir(parents=True)
    for number in range(600):
        (tree / f"usr/many/name-{number}").write_text(str(number))
    (tree / "usr/a").write_bytes(os.urandom(2_000_000))
    (tree / "usr/b").write_bytes(os.urandom(4_000_000))
    (tree / "usr/d").write_bytes(os.urandom(9_000_000))
    with (tree / "usr/c").open("wb") as file:
        for offset, size in ((0, 4096), (300_000, 50_000), (600_000, 4096), (900_000, 50_000)):
            file.seek(offset)
            file.write(os.urandom(size))
    words: list[str | Path] = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-g", "2048", "-d", tree, path, "64M"]
    subprocess.run(words, check=True, timeout=60)
    return path


def test_what_lies_in_pieces_is_moved_too(in_pieces: Path, tmp_path: Path) -> None:
    """All pieces of a directory, a file and a file with a hole. The largest file stays, because no place has room for it."""
    before, blocks, groups = (
        contents(in_pieces, tmp_path / "before"),
        read_block_map(in_pieces),
        block_groups(in_pieces),
    )
    wanted = (P("/usr/many"),), (P("/usr/b"), P("/usr/d")), (P("/usr/c"),)
    moves = plan_moves(blocks, groups, *wanted)
    move(in_pieces, blocks.block_bytes, groups, moves)
    assert contents(in_pieces, tmp_path / "after") == before
    after = read_block_map(in_pieces)
    found = {path: [run for run in after.runs if run.path == path] for paths in wanted for path in paths}
    moved = [run for path in (P("/usr/many"), P("/usr/b"), P("/usr/c")) for run in found[path]]
    assert all(len(found[path]) > 1 for path in found if path != P("/usr/d"))
    assert len(found[P("/usr/c")]) == 4
    assert [run.first_block for run in moved] == [each.target for each in moves]
    assert all(a.first_block + a.blocks == b.first_block for a, b in itertools.pairwise(moved))
    assert found[P("/usr/d")] == [run for run in blocks.runs if run.path == P("/usr/d")]


def test_where_there_is_no_room_nothing_moves(image: Path) -> None:
    blocks = read_block_map(image)
    full = [
        BlockGroup(
            number=g.number,
            first_block=g.first_block,
            blocks=g.blocks,
            free_blocks=0,
            uninitialised=g.uninitialised,
        )
        for g in block_groups(image)
    ]
    assert plan_moves(blocks, full, WANTED, FILES) == ()
    unused = [
        BlockGroup(
            number=g.number,
            first_block=g.first_block,
            blocks=g.blocks,
            free_blocks=g.free_blocks,
            uninitialised=True,
        )
        for g in block_groups(image)
    ]
    assert plan_moves(blocks, unused, WANTED, FILES) == ()


def test_a_result_that_is_not_whole_is_refused(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, groups = read_block_map(image), block_groups(image)
    moves = plan_moves(blocks, groups, WANTED, FILES)
    commands = arrange._commands
    monkeypatch.setattr(
        arrange, "_commands", lambda *a: (c for c in commands(*a) if not c.startswith("freeb"))
    )
    with pytest.raises(ArtefactError, match="is no whole ext4"):
        move(image, blocks.block_bytes, groups, moves)


def test_groups_are_as_dumpe2fs_says(image: Path) -> None:
    said = subprocess.run(["dumpe2fs", image], capture_output=True, timeout=60, check=True).stdout.decode()
    groups = block_groups(image)
    lines = said.splitlines()
    heads = [line for line in lines if line.startswith("Group ") and "(Blocks" in line]
    assert [f"Group {g.number}: (Blocks {g.first_block}-{g.first_block + g.blocks - 1})" for g in groups] == [
        head.split(")")[0] + ")" for head in heads
    ]
    assert [g.free_blocks for g in groups] == [
        int(line.split()[0]) for line in lines if " free blocks, " in line
    ]
    assert [g.uninitialised for g in groups] == ["BLOCK_UNINIT" in head for head in heads]
