"""The checker (quickstart/initramfs/checker) runs natively and is compared with zlib: each implementation
that this CPU supports, and every kind of damage.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quickstart.initramfs.digests import list_bytes, listed, read_list
from quickstart.initramfs.newc import CpioEntry
from quickstart.initramfs.programs import freestanding
from quickstart.inspect.elf_file import read_elf
from quickstart.store.store import Store

# Around what is taken at once: 8 bytes by tables, 16 and 64 by PCLMULQDQ; and around pages.
SIZES = (
    *(0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 79, 80, 81, 127, 128, 129, 191, 192, 193),
    *(4095, 4096, 4097, 65_535, 65_536, 65_537, 3_333_333),
)
# The word of the checker and of /proc/cpuinfo.
WAYS = {"pclmul": "pclmulqdq", "plain": ""}
FLAGS = set((re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M) or [""] * 2)[1].split())
HAS = [way for way, flag in WAYS.items() if not flag or flag in FLAGS]


@dataclass(frozen=True)
class Tree:
    """Files below ``root`` and the list of what they are."""

    program: Path
    root: Path
    digests: Path

    def check(self, *way: str, digests: Path | None = None) -> tuple[int, str]:
        """Exit status and what is said to be damaged."""
        damage = self.root.with_name("damage")
        damage.unlink(missing_ok=True)
        words: list[str | Path] = [self.program, self.root, digests or self.digests, damage, *way]
        status = subprocess.run(words, check=False, timeout=60).returncode
        return status, damage.read_text() if damage.exists() else ""

    def path(self, name: str) -> Path:
        return self.root / name


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield freestanding(store, "checker")


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def make_tree(program: Path, place: Path, sizes: tuple[int, ...] = SIZES) -> Tree:
    root = place / "root"
    (root / "fast/dir").mkdir(parents=True)
    entries = [entry_of(root, name) for name in ("fast", "fast/dir")]
    for size in sizes:
        (root / f"fast/dir/f{size}").write_bytes(content(size))
        entries.append(entry_of(root, f"fast/dir/f{size}"))
    (root / "fast/link").symlink_to("dir/f1")
    entries.append(entry_of(root, "fast/link"))
    (root / "fast/other").hardlink_to(root / "fast/dir/f65")
    first = next(each for each in entries if each.name == "fast/dir/f65")
    entries.append(
        CpioEntry(
            name="fast/other", mode=first.mode, data=b"", uid=first.uid, gid=first.gid, link_to=first.name
        )
    )
    digests = place / "digests"
    digests.write_bytes(list_bytes(listed(entries)))
    return Tree(program, root, digests)


def entry_of(root: Path, name: str) -> CpioEntry:
    path = root / name
    status = path.lstat()
    data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
    return CpioEntry(name=name, mode=status.st_mode, data=data, uid=status.st_uid, gid=status.st_gid)


@pytest.fixture
def tree(program: Path, tmp_path: Path) -> Tree:
    return make_tree(program, tmp_path)


# ---------------------------------------------------------------- the two ways


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_the_crcs_of_zlib_or_is_not_there(tree: Tree, way: str) -> None:
    assert tree.check(way) == ((0, "") if way in HAS else (2, ""))


@pytest.mark.parametrize("way", HAS)
@pytest.mark.parametrize("size", SIZES)
def test_each_size_counts(tree: Tree, way: str, size: int) -> None:
    """A list that is right but for one bit of the CRC of one file."""
    entries = [
        replace(each, crc=each.crc ^ 1 << size % 32) if each.name == b"fast/dir/f%d" % size else each
        for each in read_list(tree.digests.read_bytes())
    ]
    broken = tree.digests.with_name("broken")
    broken.write_bytes(list_bytes(entries))
    assert tree.check(way, digests=broken) == (1, f"/fast/dir/f{size} (content)\n")


@pytest.mark.parametrize("way", HAS)
def test_every_length_up_to_some_steps(program: Path, tmp_path: Path, way: str) -> None:
    assert make_tree(program, tmp_path, tuple(range(300))).check(way) == (0, "")


@pytest.mark.parametrize("way", HAS)
@pytest.mark.parametrize("seed", range(6))
def test_many_files_of_any_length(program: Path, tmp_path: Path, way: str, seed: int) -> None:
    chance = random.Random(seed)
    longest = chance.choice((70, 5000, 300_000))
    sizes = {65, *(chance.randrange(longest) for _ in range(chance.randrange(1, 60)))}
    tree = make_tree(program, tmp_path, tuple(sizes))
    assert tree.check(way) == (0, "")


@pytest.mark.parametrize("way", HAS)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    size=st.sampled_from([size for size in SIZES if size]),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_anywhere_is_found(standing: Tree, way: str, size: int, where: float, bit: int) -> None:
    path, at = standing.path(f"fast/dir/f{size}"), int(where * size)
    flip(path, at, bit)
    try:
        assert standing.check(way) == (1, f"/fast/dir/f{size} (content)\n")
    finally:
        flip(path, at, bit)


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture(scope="module")
def standing(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Who changes it changes it back."""
    return make_tree(program, tmp_path_factory.mktemp("standing"))


def test_without_a_root_all_is_damage(standing: Tree, tmp_path: Path) -> None:
    moved = replace(standing, root=tmp_path / "none")
    assert moved.check() == (1, f"{moved.root} (no directory)\n")


def test_without_a_word_it_takes_a_way_that_there_is(tree: Tree) -> None:
    assert tree.check() == (0, "")


# ---------------------------------------------------------------- damage


def replaced(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        path.unlink()
        change(path)

    return act


def file_for_directory(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"")


def copied(path: Path) -> None:
    path.write_bytes(content(65))
    path.chmod(0o644)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "cut": ("fast/dir/f64", lambda path: os.truncate(path, 63), "size"),
    "longer": ("fast/dir/f0", lambda path: path.write_bytes(b"x"), "size"),
    "missing": ("fast/dir/f1", Path.unlink, "missing"),
    "mode": ("fast/dir/f63", lambda path: path.chmod(0o755), "mode"),
    "set-uid": ("fast/dir/f63", lambda path: path.chmod(0o4644), "mode"),
    "owner": ("fast/dir/f128", lambda path: os.chown(path, 12345, -1), "owner"),
    "group": ("fast/dir/f128", lambda path: os.chown(path, -1, 12345), "owner"),
    "a directory's mode": ("fast/dir", lambda path: path.chmod(0o700), "mode"),
    "a file in place of a directory": ("fast/dir", file_for_directory, "kind"),
    "a link's text": ("fast/link", replaced(lambda path: path.symlink_to("dir/f2")), "link"),
    "a longer link": ("fast/link", replaced(lambda path: path.symlink_to("dir/f11")), "size"),
    "a link in place of a file": ("fast/dir/f1", replaced(lambda path: path.symlink_to("x")), "kind"),
    "a FIFO in place of a file": ("fast/dir/f1", replaced(os.mkfifo), "kind"),
    "a copy in place of a hard link": ("fast/other", replaced(copied), "hard link"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_kind_of_damage_is_named(program: Path, tmp_path: Path, name: str) -> None:
    assert os.geteuid() == 0, "another owner needs root: run the tests with sudo"
    before = os.umask(0o022)
    try:
        tree = make_tree(program, tmp_path)
        place, act, what = DAMAGE[name]
        act(tree.path(place))
        assert tree.check() == (1, f"/{place} ({what})\n")
    finally:
        os.umask(before)


def test_a_file_that_nobody_lists_is_no_damage(tree: Tree) -> None:
    tree.path("fast/more").write_bytes(b"x")
    assert tree.check() == (0, "")


def test_a_name_of_any_bytes_is_shown_in_one_line_of_printing_ascii(program: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    name = os.fsdecode(b"a\n\x1b[2J\xff\xc3\xa4")
    (tmp_path / "root" / name).write_bytes(b"")
    entry = entry_of(tmp_path / "root", name)
    (tmp_path / "digests").write_bytes(list_bytes(listed([entry])))
    tree = Tree(program, tmp_path / "root", tmp_path / "digests")
    assert tree.check() == (0, "")
    (tmp_path / "root" / name).unlink()
    assert tree.check() == (1, "/a\\x0a\\x1b[2J\\xff\\xc3\\xa4 (missing)\n")


def test_a_very_long_name_is_cut(program: Path, tmp_path: Path) -> None:
    entry = CpioEntry(name="/".join(["d" * 200] * 15), mode=0o040755)
    (tmp_path / "root").mkdir()
    (tmp_path / "digests").write_bytes(list_bytes(listed([entry])))
    status, said = Tree(program, tmp_path / "root", tmp_path / "digests").check()
    assert status == 1
    assert said.startswith("/ddd") and said.endswith("d (missing)\n") and len(said) < 600


# ---------------------------------------------------------------- the list


def test_a_cut_list_is_refused_wherever_it_ends(program: Path, tmp_path: Path) -> None:
    tree = make_tree(program, tmp_path, (0, 65))
    whole = tree.digests.read_bytes()
    broken = tmp_path / "broken"
    for end in range(len(whole)):
        broken.write_bytes(whole[:end])
        status, said = tree.check(digests=broken)
        assert (status, said) == (1, f"{broken} (no list of digests)\n"), end
    broken.write_bytes(whole + b"\0")
    assert tree.check(digests=broken)[0] == 1


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_flipped_bit_in_the_list_never_passes_and_never_crashes(
    standing: Tree, data: st.DataObject
) -> None:
    """A list that says something else is a difference too: no single flip makes the checker pass what is not as packed."""
    text = bytearray(standing.digests.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))
    broken = standing.digests.with_name("broken")
    broken.write_bytes(text)
    status, said = standing.check(digests=broken)
    assert status == 1 and re.fullmatch(r"/[ -~]* \([a-z ]+\)\n", said), (at, said)


HEAD = struct.pack("<8sI", b"QSPARTB3", 1)


@pytest.mark.parametrize(
    "text",
    [
        struct.pack("<8sI", b"QSPARTB3", 0),
        struct.pack("<8sI", b"QSPARTB3", 0xFFFFFFFF),
        HEAD + struct.pack("<8I", 0o040755, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0) + b"d\0",
        HEAD + struct.pack("<8I", 0o040755, 0, 0, 0, 0, 0, 2, 0) + b"dd",
        HEAD + struct.pack("<8I", 0o040755, 0, 0, 0, 0, 0, 2, 0) + b"/\0",
        HEAD + struct.pack("<8I", 0o040755, 0, 0, 0, 0, 0, 3, 0) + b"\0d\0",
        HEAD + struct.pack("<8I", 0o020600, 0, 0, 0, 0, 0, 2, 0) + b"d\0",
        HEAD + struct.pack("<8I", 0o120777, 0, 0, 2, 0, 0, 2, 1) + b"l\0t",
        HEAD + struct.pack("<8I", 0o100644, 0, 0, 0, 1, 0, 2, 0) + b"f\0",
        HEAD + struct.pack("<8I", 0o100644, 0, 0, 0, 7, 0, 2, 0) + b"f\0",
        HEAD + struct.pack("<8I", 0o040755, 0, 0, 0, 0, 1, 2, 0) + b"d\0",
        HEAD + struct.pack("<8I", 0o120777, 0, 0, 1, 0, 1, 2, 1) + b"l\0t",
    ],
)
def test_an_absurd_list_is_refused(standing: Tree, text: bytes) -> None:
    broken = standing.digests.with_name("absurd")
    broken.write_bytes(text)
    assert standing.check(digests=broken) == (1, f"{broken} (no list of digests)\n")


@pytest.mark.parametrize("before", [b"QSPARTB1", b"QSPARTB2"])
def test_a_list_of_before_is_refused(standing: Tree, before: bytes) -> None:
    """They had SHA-256 and BLAKE2b."""
    text = standing.digests.read_bytes()
    assert text.startswith(b"QSPARTB3")
    broken = standing.digests.with_name("before")
    broken.write_bytes(text.replace(b"QSPARTB3", before, 1))
    assert standing.check(digests=broken) == (1, f"{broken} (no list of digests)\n")


def test_a_list_that_is_not_there(standing: Tree) -> None:
    absent = standing.digests.with_name("absent")
    assert standing.check(digests=absent) == (1, f"{absent} (no list of digests)\n")


@pytest.mark.parametrize(
    "words", [(), ("a", "b"), ("a", "b", "c", "no-such-way"), ("a", "b", "c", "plain", "d")]
)
def test_called_wrongly(program: Path, words: tuple[str, ...]) -> None:
    assert subprocess.run([program, *words], check=False, timeout=60).returncode == 2


def test_it_has_no_library_and_is_small(program: Path) -> None:
    """It goes into every initramfs: a static glibc alone is 0.7 MB."""
    found = read_elf(program)
    assert found is not None and (found.interpreter, found.is_dynamic) == (None, False)
    assert program.stat().st_size < 64 << 10
