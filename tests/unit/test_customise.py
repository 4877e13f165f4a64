"""Two images of the same packages have no difference left."""

from __future__ import annotations

import os
from pathlib import Path

from quickstart.model import IMAGE_TIME_S
from quickstart.reference import customise
from quickstart.store.treehash import tree_hash

BEGIN_S = 1_700_000_000.5
DAY = str(IMAGE_TIME_S // 86400)


def aged(path: Path, mtime_s: float) -> Path:
    os.utime(path, (mtime_s, mtime_s), follow_symlinks=False)
    return path


def times(tree: Path) -> dict[str, int]:
    return {str(path.relative_to(tree)): int(path.lstat().st_mtime) for path in tree.rglob("*")}


def test_only_what_was_written_meanwhile_gets_the_fixed_time(tmp_path: Path) -> None:
    """Files, directories and links themselves; what a link leads to is not touched."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    outside.write_text("of this host")
    aged(outside, BEGIN_S + 9)
    for name in ("new", "old"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text(name)
        (tree / name / "link").symlink_to(outside)
    for path in (*(tree / "old").iterdir(), tree / "old"):
        aged(path, 1_600_000_000)
    for path in (*(tree / "new").iterdir(), tree / "new"):
        aged(path, BEGIN_S)
    customise.fix_times(tree, BEGIN_S)
    assert times(tree) == {
        **dict.fromkeys(("new", "new/file", "new/link"), IMAGE_TIME_S),
        **dict.fromkeys(("old", "old/file", "old/link"), 1_600_000_000),
    }
    assert outside.stat().st_mtime == BEGIN_S + 9


def test_nobodys_umask_counts(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        customise.configure(tmp_path)
    finally:
        os.umask(old)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes["fast"] == modes["etc/systemd/system/ssh.service.d"] == 0o755
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_dir()} == {0o755}
    assert {mode for name, mode in modes.items() if (tmp_path / name).is_file()} == {0o644}


def test_the_days_of_accounts_are_fixed(tmp_path: Path) -> None:
    """shadow(5): the third field, unless it says no ageing or that the password has to be changed."""
    (tmp_path / "etc").mkdir()
    shadow = tmp_path / "etc/shadow"
    shadow.write_text("root:*:20778:0:99999:7:::\nnone:!::0:::::\nmust:x:0:0:99999:7:::\nodd line\n")
    shadow.chmod(0o640)
    (tmp_path / "etc/shadow-").symlink_to("/etc/hostname")
    customise.fix_times(tmp_path, BEGIN_S)
    assert shadow.read_text() == (
        f"root:*:{DAY}:0:99999:7:::\nnone:!::0:::::\nmust:x:0:0:99999:7:::\nodd line\n"
    )
    assert shadow.stat().st_mode & 0o777 == 0o640
    assert int(shadow.stat().st_mtime) == IMAGE_TIME_S


def test_the_hash_of_a_tree_knows_hard_links(tmp_path: Path) -> None:
    """Those inside of it: a name elsewhere does not reach the volume."""
    hashes = []
    for name, linked in (("two", False), ("one", True), ("outside", True)):
        tree = tmp_path / name
        tree.mkdir()
        (tree / "a").write_text("x")
        if linked:
            (tree / "b").hardlink_to(tree / "a")
        else:
            (tree / "b").write_text("x")
        for path in tree.iterdir():
            aged(path, 1)
        if name == "outside":
            (tmp_path / "c").hardlink_to(tree / "a")
        hashes.append(tree_hash(tree))
    assert hashes[0] != hashes[1] == hashes[2]


def test_the_hash_of_a_tree_knows_times_but_not_those_of_this_host(tmp_path: Path) -> None:
    """mtime in seconds, directories' too; not ctime, which no copy keeps, nor the root directory's own."""
    trees = [tmp_path / name for name in "ab"]
    for tree in trees:
        (tree / "d").mkdir(parents=True)
        (tree / "d/f").write_text("x")
        aged(tree / "d/f", 1_600_000_000.25)
        aged(tree / "d", 1_600_000_000)
    aged(trees[1], 7)
    first = tree_hash(trees[0])
    assert tree_hash(trees[1]) == first
    aged(trees[1] / "d", 1_600_000_001)
    assert tree_hash(trees[1]) != first
    aged(trees[1] / "d", 1_600_000_000)
    assert tree_hash(trees[1]) == first
    aged(trees[1] / "d/f", 1_600_000_001)
    assert tree_hash(trees[1]) != first
