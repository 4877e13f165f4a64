"""`make test-full`: every test. After an interruption it continues.

python -m tests.full [--shard I/N] [-- WORDS FOR PYTEST]

.full/ has a file of records for the present tree, named by the tree's hash; a changed tree begins again. A
test that passed or was skipped does not run again; a test that failed does. A shard is a share of the test
files, the same in each run of the same tree.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.resuming import FAILED, PASSED, SKIPPED, Test, read_list, read_records, write_list

ROOT = Path(__file__).parents[1]
RECORDS = ".full"
# Of pytest: all passed, and some failed. With any other status nothing more can be told of the rest.
_GOES_ON = (0, 1)
# Seconds that a test of a room takes, roughly, and that one marked ``full`` takes: what shards are balanced by.
_WEIGHTS = {"vm": 20.0, "contract": 1.0}
_WEIGHT = 0.02
_FULL_WEIGHT = 100.0


@dataclass(frozen=True)
class Shard:
    """Number ``index`` of ``count`` shards, from 1."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """``I/N``; raises ValueError for what is none, as argparse wants it."""
    index, slash, count = text.partition("/")
    shard = Shard(int(index), int(count)) if slash and index.isdecimal() and count.isdecimal() else None
    if shard is None or not 1 <= shard.index <= shard.count:
        raise ValueError(f"{text!r} is no shard")
    return shard


def in_shard(tests: Sequence[Test], shard: Shard) -> tuple[Test, ...]:
    """The tests of one shard, in their order (pure). A file's tests stay together: they share what they build.

    The heaviest file goes to the lightest shard, until none is left.
    """
    weights: dict[str, float] = {}
    for test in tests:
        weights[_file(test)] = weights.get(_file(test), 0.0) + _weight(test)
    loads = [0.0] * shard.count
    place: dict[str, int] = {}
    for file in sorted(weights, key=lambda each: (-weights[each], each)):
        place[file] = loads.index(min(loads))
        loads[place[file]] += weights[file]
    return tuple(test for test in tests if place[_file(test)] == shard.index - 1)


def _file(test: Test) -> str:
    return test.id.partition("::")[0]


def _weight(test: Test) -> float:
    if test.full:
        return _FULL_WEIGHT
    return next((_WEIGHTS[part] for part in test.id.split("/") if part in _WEIGHTS), _WEIGHT)


def to_run(tests: Sequence[Test], records: Mapping[str, str]) -> tuple[Test, ...]:
    """Those that have not passed, nor been skipped (pure)."""
    return tuple(test for test in tests if records.get(test.id, FAILED) == FAILED)


def closing_line(tests: Sequence[Test], records: Mapping[str, str], before: int, shard: Shard) -> str:
    """One line that counts all ``tests``, of which ``before`` were done by earlier runs (pure)."""
    counts = Counter(records.get(test.id, "not run") for test in tests)
    words = [f"{counts[word]} {word}" for word in (PASSED, FAILED, SKIPPED, "not run")]
    of = f", shard {shard}" if shard.count > 1 else ""
    earlier = f"; {before} of them in an earlier run" if before else ""
    return f"test-full{of}: {len(tests)} tests: {', '.join(words)}{earlier}"


def tree_hash(root: Path) -> str:
    """Names, modes and contents of what .gitignore does not name, and who runs the tests: root's are not an ordinary user's."""
    digest = hashlib.sha256(b"root" if os.geteuid() == 0 else b"user")
    lines = (root / ".gitignore").read_text().splitlines() if (root / ".gitignore").exists() else []
    # Patterns of one name; those of paths (generated reports) do no harm here.
    patterns = [line.rstrip("/") for line in lines if line and line[0] not in "#!" and "/" not in line[1:-1]]
    for path in _files(root, root, (".git", *patterns)):
        name = str(path.relative_to(root))
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        runs = not path.is_symlink() and path.stat().st_mode & 0o111 != 0
        digest.update(f"{name}\0{path.is_symlink():d}{runs:d}{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _files(root: Path, directory: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        at_top = directory == root
        if any(
            fnmatch.fnmatchcase(path.name, pattern.removeprefix("/"))
            for pattern in patterns
            if at_top or not pattern.startswith("/")
        ):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(root, path, patterns)
        elif path.is_symlink() or path.is_file():
            yield path


def records_of(root: Path) -> Path:
    """The file of records for the tree as it is; those of other trees are removed."""
    place = root / RECORDS
    place.mkdir(exist_ok=True)
    name = tree_hash(root)
    for old in place.iterdir():
        if not old.name.startswith(name):
            old.unlink(missing_ok=True)
    return place / name


def run_pytest(root: Path, *words: str | Path, output: int | None = None) -> int:
    """Its exit status. Ctrl-C is pytest's to answer: it ends its guests and says what it did."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    argv = [sys.executable, "-m", "pytest", "-p", "tests.resuming", *map(str, words)]
    process = subprocess.Popen(argv, cwd=root, env=environment, stdout=output)
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, former)


def collected(root: Path, place: str, file: Path) -> tuple[Test, ...] | None:
    """Every test of ``place``; None when they cannot be collected, which pytest then says."""
    words = ("-q", "--collect-only", "--list-tests", file, place)
    if run_pytest(root, *words, output=subprocess.DEVNULL) == 0:
        return read_list(file)
    run_pytest(root, *words)
    return None


def main(words: Sequence[str], root: Path = ROOT, place: str = "tests") -> int:
    """0 when every test of the shard has passed or was skipped, else pytest's status, or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.full")
    parser.add_argument("--shard", type=parse_shard, default=Shard())
    parser.add_argument("pytest", nargs="*", help="words for pytest, behind --")
    asked = parser.parse_args(words)
    records = records_of(root)
    scratch = records.with_name(f"{records.name}.{os.getpid()}")
    try:
        every = collected(root, place, scratch)
        if every is None:
            return 1
        tests = in_shard(every, asked.shard)
        before = len(tests) - len(to_run(tests, read_records(records)))
        status = _run(root, place, tests, records, scratch, asked.pytest)
    finally:
        scratch.unlink(missing_ok=True)
    found = read_records(records)
    print(closing_line(tests, found, before, asked.shard), flush=True)
    return status if status not in _GOES_ON else int(bool(to_run(tests, found)))


def _run(
    root: Path, place: str, tests: Sequence[Test], records: Path, scratch: Path, words: Sequence[str]
) -> int:
    """In one run, so that the tests of a file build what they share once."""
    left = to_run(tests, read_records(records))
    if not left:
        return 0
    write_list(scratch, left)
    return run_pytest(root, "--only-tests", scratch, "--record", records, *words, place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
