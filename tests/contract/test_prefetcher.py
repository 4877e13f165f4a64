"""The prefetcher brings ranges, files and parts of files into the page cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.programs import freestanding
from quickstart.model import MIB
from quickstart.store.store import Store

PAGE = 4096


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
    found = Prefetch(
        ((64 * PAGE, 4 * PAGE), (128 * PAGE, PAGE)),
        (PurePosixPath("/etc/nothing"), PurePosixPath("/etc/a b")),
    )
    wanted = {place / "volume": 5 * PAGE, place / "root/etc/a b": MIB}
    assert come_into_memory(lambda: run(prefetcher, place, found.ranges_text, found.names_text), wanted)
    assert cached_bytes(place / "root/untouched") == [0]


def test_parts_of_files_come_into_the_page_cache(prefetcher: Path, place: Path) -> None:
    parts = (
        (PurePosixPath("/etc/nothing"), 0, PAGE),
        (PurePosixPath("/etc/a b"), 16 * PAGE, 2 * PAGE),
        (PurePosixPath("/etc/a b"), 64 * PAGE, PAGE),
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
