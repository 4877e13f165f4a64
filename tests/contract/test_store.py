"""Several processes use the store and OUT: one makes an entry, none removes an entry in use, and the next
process repairs what a SIGKILL left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quickstart.artefact.output import new_directory
from quickstart.errors import HostLacksError
from quickstart.host import door
from quickstart.image.ext4 import write_disk
from quickstart.model import MIB
from quickstart.store.store import MARK, Store, key_of
from quickstart.store.treehash import tree_hash

COMMAND = Path(sys.executable).with_name("quickstart")
LIMIT_S = 120.0
# Dies by SIGKILL at the N-th call of one of the functions that change what is on disk.
DIES = """
import os, pathlib, shutil, signal, sys
left = int(sys.argv[2])
def deadly(real):
    def call(*args, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    return call
for name in ("rename", "mkdir", "chmod", "write_text"):
    setattr(pathlib.Path, name, deadly(getattr(pathlib.Path, name)))
for module, name in ((os, "unlink"), (os, "rmdir"), (os, "sync"), (shutil, "rmtree")):
    setattr(module, name, deadly(getattr(module, name)))
"""
MAKE = """
import sys
from pathlib import Path
from quickstart.store.store import Store
def make(directory):
    (directory / "sub").mkdir()
    (directory / "sub/result").write_text("made")
with Store(Path(sys.argv[1])) as store:
    print(store.get_or_make("s", {}, make).made)
"""
ASK_OFTEN = """
for _ in range(100):
    with Store(Path(sys.argv[1])) as store:
        path = store.get_or_make("s", {}, make).path
        assert (path / "sub/result").read_text() == "made"
"""
SWAP = """
import sys
from pathlib import Path
from quickstart.artefact.output import new_directory
with new_directory(Path(sys.argv[1])) as directory:
    (directory / "a").write_text("new")
    (directory / "b").write_text("new")
"""


def python(script: str, *words: str | int | Path) -> subprocess.Popen[str]:
    """A process that runs ``script``."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", script, *(str(word) for word in words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return out.strip()


def gc(store: Path) -> list[str]:
    """The stages that `cache gc --days 0` removed entries of."""
    done = subprocess.run(
        [str(COMMAND), "cache", "gc", "--days", "0", "--json"],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "QUICKSTART_CACHE": str(store)},
    )
    return [row["stage"] for row in json.loads(done.stdout)["result"]["removed"]]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---------------------------------------------------------------- the store


def test_processes_that_want_one_entry_make_it_once(tmp_path: Path) -> None:
    made = [output_of(process) for process in [python(MAKE, tmp_path) for _ in range(6)]]
    assert sorted(made) == ["False"] * 5 + ["True"]


def test_gc_leaves_what_a_process_uses_until_it_ends(tmp_path: Path) -> None:
    user = python(MAKE + "    print(sys.stdin.read())", tmp_path)
    assert user.stdout is not None
    assert user.stdout.readline() == "True\n"
    assert gc(tmp_path) == []
    output_of(user)
    assert gc(tmp_path) == ["s"]
    assert names(tmp_path / "s") == []


def test_a_child_that_outlives_its_build_holds_no_lock(tmp_path: Path) -> None:
    forks = "    import subprocess\n    print(subprocess.Popen(['cat'], close_fds=False).pid)"
    build = python(MAKE + forks, tmp_path)
    assert build.stdout is not None
    assert build.stdin is not None
    build.stdout.readline()
    child = int(build.stdout.readline())
    assert build.wait(LIMIT_S) == 0
    assert Path(f"/proc/{child}").exists()
    assert gc(tmp_path) == ["s"]
    build.stdin.close()
    build.stdout.close()


def test_builds_beside_gc(tmp_path: Path) -> None:
    """Whoever asks gets an entry that is whole while he holds it, however often it is removed."""
    script = MAKE.partition("with Store")[0] + ASK_OFTEN
    builds = [python(script, tmp_path) for _ in range(3)]
    while any(build.poll() is None for build in builds):
        gc(tmp_path)
    for build in builds:
        output_of(build)
    gc(tmp_path)
    assert names(tmp_path / "s") == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_maker_killed_at_any_moment(tmp_path: Path, damaged: bool) -> None:
    for moment in range(1, 100):
        root = tmp_path / str(moment)
        entry = root / "s" / key_of("s", {})
        if damaged:
            output_of(python(MAKE, root))
            (entry / "sub/result").write_text("broken")
        killed = python(DIES + MAKE, root, moment)
        killed.communicate(timeout=LIMIT_S)
        with Store(root) as store:
            store.get_or_make("s", {}, lambda directory: (directory / "sub").mkdir())
            remembered = json.loads((entry / MARK).read_text())["tree_hash"]
            assert tree_hash(entry, without=MARK) == remembered
        assert names(root / "s") == [entry.name, f"{entry.name}.lock"]
        if killed.returncode == 0:
            assert moment > 6
            return
    pytest.fail("it never came to an end")


# ---------------------------------------------------------------- OUT


def test_many_builds_onto_one_out_leave_a_whole_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = SWAP.replace("with", "for turn in range(20):\n  with").replace(
        '"new"', "f'{sys.argv[2]} {turn}'"
    )
    builds = [python(script, out, number) for number in range(5)]
    for build in builds:
        output_of(build)
    assert names(tmp_path) == ["out"]
    assert names(out) == ["a", "b"]
    assert (out / "a").read_text() == (out / "b").read_text()
    assert (out / "a").read_text().endswith(" 19")


def test_a_build_killed_at_any_moment_leaves_out_to_the_next(tmp_path: Path) -> None:
    for moment in range(1, 100):
        out = tmp_path / str(moment) / "out"
        out.mkdir(parents=True)
        for name in ("a", "b"):
            (out / name).write_text("old")
        killed = python(DIES + SWAP, out, moment)
        killed.communicate(timeout=LIMIT_S)
        with pytest.raises(InterruptedError), new_directory(out):
            # The next build has mended all before it begins, and fails.
            assert {(out / name).read_text() for name in ("a", "b")} in ({"old"}, {"new"})
            assert len(names(out.parent)) == 2
            raise InterruptedError
        assert names(out.parent) == ["out"]
        assert names(out) == ["a", "b"]
        if killed.returncode == 0:
            assert moment > 6
            assert (out / "a").read_text() == "new"
            return
    pytest.fail("it never came to an end")


def test_a_live_build_is_no_leftover(tmp_path: Path) -> None:
    script = SWAP.replace(
        "    (directory", "    print(directory, flush=True)\n    sys.stdin.readline()\n    (directory", 1
    )
    build = python(script, tmp_path / "out")
    assert build.stdout is not None
    partial = Path(build.stdout.readline().strip())
    with new_directory(tmp_path / "out"):
        assert partial.is_dir()
    assert names(tmp_path) == sorted([partial.name, "out"])
    build.communicate("\n", timeout=LIMIT_S)
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["a", "b"]


# ---------------------------------------------------------------- a full disk


@contextmanager
def small_disk(place: Path, size_mib: int) -> Iterator[Path]:
    """A tmpfs of ``size_mib``."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they mount a small tmpfs")
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0755", "none", place], timeout=60, check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", place], timeout=60, check=True)


def by_ourselves(directory: Path) -> None:
    (directory / "large").write_bytes(b"x" * 9 * MIB)


def by_a_program(directory: Path) -> None:
    door.run(["cp", "--sparse=never", "/dev/zero", directory / "large"], timeout_s=60)


def by_a_program_that_does_not_say_so(directory: Path) -> None:
    door.run(["sh", "-c", f"cat /dev/zero >{directory}/large 2>/dev/null"], timeout_s=60)


def by_mkfs(directory: Path) -> None:
    source = directory.parent.parent.parent / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(9 * MIB))
    write_disk(source, directory / "root.raw", 16, "00112233-4455-6677-8899-aabbccddeeff", "root")


def that_fits(directory: Path) -> None:
    (directory / "large").write_bytes(b"x" * 3 * MIB)


FILLERS = [by_ourselves, by_a_program, by_a_program_that_does_not_say_so]


@pytest.mark.parametrize("fill", [*FILLERS, by_mkfs])
def test_a_store_that_is_full(tmp_path: Path, fill: Callable[[Path], None]) -> None:
    with small_disk(tmp_path / "disk", 4) as disk, Store(disk) as store:
        with pytest.raises(HostLacksError) as caught:
            store.get_or_make("s", {}, fill)
        assert caught.value.message.startswith(f"no space left for the store {disk} (")
        assert " bytes free on its file system)" in caught.value.message
        assert "QUICKSTART_CACHE" in (caught.value.hint or "")
        assert store.entries() == store.leftovers() == ()
        # The room is free again.
        store.get_or_make("s", {}, that_fits)


def test_a_store_that_can_only_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        with Store(disk) as store:
            made = store.get_or_make("s", {}, that_fits)
        subprocess.run(["mount", "-o", "remount,ro", disk], timeout=60, check=True)
        with Store(disk) as store:
            assert store.get_or_make("s", {}, that_fits).path == made.path
            with pytest.raises(HostLacksError, match="cannot be written: Read-only file system"):
                store.get_or_make("s", {"n": 1}, that_fits)


@pytest.mark.parametrize("fill", FILLERS)
def test_a_disk_that_is_full_at_out(tmp_path: Path, fill: Callable[[Path], None]) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        (disk / "out").mkdir()
        (disk / "out/old").write_text("old")
        said = f"no space left for OUT in {disk} "
        with pytest.raises(HostLacksError, match=said) as caught, new_directory(disk / "out") as directory:
            fill(directory)
        assert "-o" in (caught.value.hint or "")
        assert names(disk) == ["out"]
        assert names(disk / "out") == ["old"]


def test_extended_attributes_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = tree_hash(tmp_path)
    os.setxattr(tmp_path / "file", "user.quickstart", b"1")
    assert tree_hash(tmp_path) != before


def in_a_link(store: Path, entry: Path) -> None:
    entry.rename(store / "elsewhere")
    entry.symlink_to(store / "elsewhere")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda store, entry: os.chown(store, 4242, 4242),
        lambda store, entry: store.chmod(0o777),
        lambda store, entry: os.chown(entry.parent, 4242, 4242),
        lambda store, entry: entry.parent.chmod(0o775),
        lambda store, entry: os.chown(entry, 4242, 4242),
        lambda store, entry: entry.chmod(0o777),
        lambda store, entry: os.chown(entry / "program", 4242, 4242),
        lambda store, entry: (entry / "program").chmod(0o777),
        lambda store, entry: os.chown(entry / "entry.json", 4242, 4242),
        in_a_link,
    ],
)
def test_what_somebody_else_could_have_put_there_is_not_run(
    tmp_path: Path, spoil: Callable[[Path, Path], None]
) -> None:
    """Its own hash says nothing: who writes the program writes the hash."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they give files to others")
    root = tmp_path / "store"

    def make(directory: Path) -> None:
        (directory / "program").write_text("x")
        (directory / "program").chmod(0o755)

    with Store(root) as store:
        entry = store.get_or_make("agent", {}, make).path
    spoil(root, entry)
    with Store(root) as store:
        for ask in (
            lambda: store.get_or_make("agent", {}, make),
            lambda: store.use("agent", {}),
            lambda: store.find("agent", {}),
        ):
            with pytest.raises(HostLacksError, match="is run here") as caught:
                ask()
            assert "QUICKSTART_CACHE" in (caught.value.hint or "")


def test_a_store_made_with_an_open_umask_is_ours_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with Store(tmp_path / "new/store") as store:
            entry = store.get_or_make("agent", {}, lambda directory: None).path
        assert [each.stat().st_mode & 0o022 for each in (store.root, entry.parent, entry)] == [0, 0, 0]
        with Store(tmp_path / "new/store") as store:
            assert not store.get_or_make("agent", {}, lambda directory: None).made
    finally:
        os.umask(before)
