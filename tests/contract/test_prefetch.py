"""What init asks the volume for in advance: debugfs checks the plan on a real ext4, and the page cache checks the prefetcher."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.image.blockmap import read_block_map
from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.programs import freestanding
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Event, Exclusion, Op, StartSet
from quickstart.model.residency import Resident
from quickstart.pack.parts import joined
from quickstart.pack.prefetch import foresee, plan
from quickstart.store.store import Store
from tests.unit.imagebuilder import trace
from tests.unit.startfiles import start_file

MIB = 1024 * 1024
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


@pytest.fixture(scope="module")
def prefetcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield freestanding(store, "prefetcher")


def cached_bytes(*paths: Path) -> list[int]:
    """By fincore(1) of util-linux."""
    columns = ["--json", "--bytes", "--output", "RES"]
    done = subprocess.run(["fincore", *columns, *paths], capture_output=True, check=True, timeout=30)
    return [int(entry["res"]) for entry in json.loads(done.stdout)["fincore"]]


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk: what is on a tmpfs, as /tmp may be, never leaves memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as other:
        for base in (tmp_path, Path(other)):
            if filled(base):
                yield base
                return
    pytest.fail("neither the temporary directory nor /var/tmp is on a disk: set TMPDIR to one that is")


def filled(base: Path) -> bool:
    """Whether what was written there could be taken out of memory again."""
    paths = [base / name for name in ("volume", "root/etc/a b", "root/untouched")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(MIB))
        forget(path)
    return not any(cached_bytes(*paths))


def run(prefetcher: Path, place: Path, ranges: bytes, names: bytes, parts: bytes = b"", *before: str) -> int:
    """The exit status; ``before`` are the words of a program that executes the prefetcher."""
    lists = {"ranges": ranges, "names": names, "parts": parts}
    for name, data in lists.items():
        (place / name).write_bytes(data)
    words: list[str | Path] = [
        *before,
        prefetcher,
        place / "volume",
        place / "root",
        *(place / name for name in lists),
        "128",
    ]
    return subprocess.run(words, timeout=30, check=False).returncode


def come_into_memory(begin: Callable[[], int], wanted: Mapping[Path, int]) -> bool:
    """Whether after ``begin`` all files have so many bytes in the page cache.

    The kernel reads behind our back. And it may take away what nobody uses (DAMON's reclaim does so within a second, with memory to
    spare), so all is begun anew a few times: what is never asked for comes in none of them.
    """
    for _ in range(5):
        for path in wanted:
            forget(path)
        assert begin() == 0
        for _ in range(20):
            if cached_bytes(*wanted) == list(wanted.values()):
                return True
            time.sleep(0.05)
    return False


def test_files_are_asked_for_in_the_order_of_their_places(tree: Path, image: Path) -> None:
    found = planned(tree, image, "/zone/UTC", "/etc/app/app.conf").files
    first = {run.path: run.first_block for run in read_block_map(image).runs if run.offset_bytes == 0}
    assert {P("/zone/UTC"), P("/etc/app/app.conf")} <= set(found)
    assert [first[path] for path in found] == sorted(first[path] for path in found)


def test_more_files_than_a_batch_holds(prefetcher: Path, place: Path) -> None:
    names = [f"etc/{number}" for number in range(300)]
    for name in names:
        (place / "root" / name).write_bytes(os.urandom(PAGE))
    text = b"".join(f"{name}\0".encode() for name in names)
    wanted = {place / "root" / name: PAGE for name in names}
    assert come_into_memory(lambda: run(prefetcher, place, b"", text), wanted)


@pytest.mark.parametrize("most_open", [1024, 64])
def test_more_files_than_a_process_may_have_open(prefetcher: Path, place: Path, most_open: int) -> None:
    """1024 is the limit that PID 1 leaves to its children. With 64, the batches use each place of the ring more than once."""
    names = [f"etc/{number}" for number in range(1500)]
    for name in names:
        (place / "root" / name).write_bytes(os.urandom(PAGE))
    text = b"".join(f"{name}\0".encode() for name in names)
    wanted = {place / "root" / name: PAGE for name in names}
    limit = f"--nofile={most_open}"
    assert come_into_memory(lambda: run(prefetcher, place, b"", text, b"", "prlimit", limit), wanted)


def test_ranges_and_files_come_into_the_page_cache(prefetcher: Path, place: Path) -> None:
    found = Prefetch(((64 * PAGE, 4 * PAGE), (128 * PAGE, PAGE)), (P("/etc/nothing"), P("/etc/a b")))
    wanted = {place / "volume": 5 * PAGE, place / "root/etc/a b": MIB}
    assert come_into_memory(lambda: run(prefetcher, place, found.ranges_text, found.names_text), wanted)
    assert cached_bytes(place / "root/untouched") == [0]


def test_parts_of_files_come_into_the_page_cache(prefetcher: Path, place: Path) -> None:
    parts = (
        (P("/etc/nothing"), 0, PAGE),
        (P("/etc/a b"), 16 * PAGE, 2 * PAGE),
        (P("/etc/a b"), 64 * PAGE, PAGE),
    )
    found = Prefetch((), (), parts)
    wanted = {place / "root/etc/a b": 3 * PAGE}
    assert come_into_memory(lambda: run(prefetcher, place, b"", b"", found.parts_text), wanted)
    assert cached_bytes(place / "root/untouched") == [0]


def test_without_names_there_is_nothing_but_ranges_and_parts(prefetcher: Path, place: Path) -> None:
    """As `ask_for_data` in init/hand-off calls it: it has no file of names."""
    (place / "ranges").write_bytes(b"%d %d\n" % (64 * PAGE, 4 * PAGE))
    (place / "parts").write_bytes(b"%d %d etc/a b\0" % (16 * PAGE, 2 * PAGE))
    words: list[str | Path] = [
        *(prefetcher, place / "volume", place / "root"),
        *(place / "ranges", "/dev/null", place / "parts", "128"),
    ]
    wanted = {place / "volume": 4 * PAGE, place / "root/etc/a b": 2 * PAGE}
    assert come_into_memory(lambda: subprocess.run(words, timeout=30, check=False).returncode, wanted)


def test_nothing_beside_the_parts_is_read(prefetcher: Path, place: Path) -> None:
    """The kernel would read ahead of a long read, and of one from the file's beginning."""
    (place / "root/etc/large").write_bytes(os.urandom(8 * MIB))
    parts = b"0 %d etc/large\0%d %d etc/large\0" % (50 * PAGE, 1000 * PAGE, 200 * PAGE)
    for _ in range(3):
        forget(place / "root/etc/large")
        assert run(prefetcher, place, b"", b"", parts) == 0
        time.sleep(0.5)
        assert cached_bytes(place / "root/etc/large")[0] <= 250 * PAGE


def test_parts_are_one_batch(prefetcher: Path, place: Path) -> None:
    """The block layer makes one request for what is side by side on the volume only within a batch. No read is larger than
    the volume's largest request, of 128 KiB here.
    """
    for name in ("one", "other"):
        (place / "root/etc" / name).write_bytes(os.urandom(MIB))
    parts = b"0 8192 etc/one\000409600 307200 etc/one\0000 4096 etc/other\000"
    tracer = ("strace", "-f", "-o", str(place / "log"), "-e", "trace=io_uring_setup,io_uring_enter,fadvise64")
    assert run(prefetcher, place, b"", b"", parts, *tracer) == 0
    log = (place / "log").read_text()
    if re.search(r"io_uring_setup.*= -", log):
        # A kernel without io_uring is asked for one part after the other.
        assert log.count("POSIX_FADV_WILLNEED") >= 3
        return
    assert re.findall(r"io_uring_enter\(\d+, (\d+), (\d+),", log).count(("5", "5")) == 1
    assert "POSIX_FADV_WILLNEED" not in log


def test_parts_of_more_files_than_a_process_may_have_open(prefetcher: Path, place: Path) -> None:
    names = [f"etc/{number}" for number in range(200)]
    for name in names:
        (place / "root" / name).write_bytes(os.urandom(4 * PAGE))
    text = b"".join(f"{2 * PAGE} {PAGE} {name}\0{3 * PAGE} {PAGE} {name}\0".encode() for name in names)
    wanted = {place / "root" / name: 2 * PAGE for name in names}
    assert come_into_memory(lambda: run(prefetcher, place, b"", b"", text, "prlimit", "--nofile=64"), wanted)


@pytest.mark.parametrize(
    ("ranges", "names", "parts", "status"),
    [
        (b"", b"", b"", 0),
        (b"4096", b"", b"", 0),
        (b"4096 x\n", b"", b"", 0),
        (b"99999999999999999999999 4096\n", b"", b"", 0),
        (b"0 4096\n", b"no NUL", b"", 2),
        (b"", b"", b"0 4096 etc/no NUL", 2),
        (b"", b"", b"0 4096\0", 0),
        (b"", b"", b"0 4096 \0", 0),
        (b"", b"", b"9999999999999999999999 1 etc/a b\0", 0),
    ],
)
def test_a_broken_list_does_no_harm(
    prefetcher: Path, place: Path, ranges: bytes, names: bytes, parts: bytes, status: int
) -> None:
    assert run(prefetcher, place, ranges, names, parts) == status


def test_a_long_range_is_requested_whole(prefetcher: Path, place: Path) -> None:
    """The kernel takes only the first part of one request for a range (force_page_cache_ra, bdi->io_pages)."""
    with (place / "volume").open("wb") as file:
        file.write(os.urandom(4 * MIB))
    wanted = {place / "volume": 4 * MIB}
    assert come_into_memory(lambda: run(prefetcher, place, b"0 %d\n" % (4 * MIB), b""), wanted)


def test_a_file_of_several_reads_comes_whole(prefetcher: Path, place: Path) -> None:
    with (place / "root/etc/large").open("wb") as file:
        file.write(os.urandom(3 * MIB + 1))
    wanted = {place / "root/etc/large": 3 * MIB + PAGE}
    assert come_into_memory(lambda: run(prefetcher, place, b"", b"etc/large\0"), wanted)


@pytest.mark.parametrize("kib", ["", "0", "x", "128 ", "99999999999999999999"])
def test_a_request_size_that_is_none(prefetcher: Path, place: Path, kib: str) -> None:
    run(prefetcher, place, b"", b"")
    words: list[str | Path] = [
        prefetcher,
        place / "volume",
        place / "root",
        place / "ranges",
        place / "names",
        place / "parts",
        kib,
    ]
    assert subprocess.run(words, timeout=30, check=False).returncode == 2


def test_without_a_volume_it_says_so(prefetcher: Path, place: Path) -> None:
    (place / "volume").unlink()
    assert run(prefetcher, place, b"", b"") == 2
