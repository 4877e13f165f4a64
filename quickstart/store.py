"""A content-addressed cache of what stages make: an entry's name is the hash of its stage's inputs.

Layout below the root (`$QUICKSTART_CACHE`, else `$XDG_CACHE_HOME/quickstart`, else `~/.cache/quickstart`)::

    STAGE/KEY/            a finished entry, with `inputs.json` beside what the stage made
    STAGE/KEY.partial/    one that is being made, or was when its maker died; the lock's holder removes it
    STAGE/KEY.lock        flock(2): one maker at a time
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from quickstart.errors import HostLacksError

KEY_DIGITS = 32


def default_root() -> Path:
    """Where the store lies on this host."""
    if chosen := os.environ.get("QUICKSTART_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quickstart"


def key_of(stage: str, inputs: Mapping[str, object]) -> str:
    """The name of the entry that ``stage`` makes of ``inputs`` (JSON values)."""
    text = json.dumps({"stage": stage, "inputs": inputs}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def source_digest(*packages: str) -> str:
    """SHA-256 over the files of our own ``packages`` (dotted names; a module's name counts too).

    It goes into a stage's inputs, so that a changed tool never takes a cached result of the old one.
    """
    digest = hashlib.sha256()
    for name in packages:
        parent, _, last = name.rpartition(".")
        module = resources.files(parent).joinpath(f"{last}.py") if parent else None
        roots = [module] if module is not None and module.is_file() else [resources.files(name)]
        for path, file in sorted(_walk(roots[0], name)):
            digest.update(path.encode() + b"\0" + hashlib.sha256(file).digest())
    return digest.hexdigest()


def _walk(node: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if node.is_file():
        yield name, node.read_bytes()
        return
    for child in node.iterdir():
        if child.name != "__pycache__":
            yield from _walk(child, f"{name}/{child.name}")


@dataclass(frozen=True)
class Entry:
    """A finished entry: ``path`` is its directory; ``made`` is False when it was there already."""

    path: Path
    key: str
    made: bool


@dataclass(frozen=True)
class Kept:
    """An entry as it lies in the store; ``used_s`` is when it was last asked for (seconds since the epoch)."""

    stage: str
    key: str
    path: Path
    size_bytes: int
    used_s: int


@dataclass(frozen=True)
class Store:
    root: Path

    def find(self, stage: str, inputs: Mapping[str, object]) -> Path | None:
        """The finished entry of ``inputs``, or None."""
        path = self.root / stage / key_of(stage, inputs)
        return path if path.is_dir() else None

    def get_or_make(self, stage: str, inputs: Mapping[str, object], make: Callable[[Path], None]) -> Entry:
        """Return the entry of ``inputs``, or call ``make`` with an empty directory and keep what it leaves there.

        When ``make`` raises nothing is kept. A second process that wants the same entry waits for the first.
        """
        key = key_of(stage, inputs)
        final = self.root / stage / key
        if final.is_dir():
            return _used(final, key)
        with self._lock(stage, key):
            if final.is_dir():
                return _used(final, key)
            partial = final.with_name(f"{key}.partial")
            remove_tree(partial)
            partial.mkdir()
            try:
                make(partial)
                text = json.dumps({"stage": stage, "inputs": inputs}, indent=1, sort_keys=True)
                (partial / "inputs.json").write_text(text + "\n")
                os.sync()
                partial.rename(final)
            finally:
                remove_tree(partial)
        return Entry(final, key, made=True)

    def entries(self) -> tuple[Kept, ...]:
        """Every finished entry, by stage and key."""
        marks = sorted(self.root.glob(f"*/{'[0-9a-f]' * KEY_DIGITS}/inputs.json"))
        return tuple(
            Kept(
                stage=mark.parent.parent.name,
                key=mark.parent.name,
                path=mark.parent,
                size_bytes=_allocated_bytes(mark.parent),
                used_s=int(mark.stat().st_mtime),
            )
            for mark in marks
        )

    def remove(self, entry: Kept) -> bool:
        """Remove an entry unless somebody is making or waiting for it; False when it stays."""
        lock = self.root / entry.stage / f"{entry.key}.lock"
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            remove_tree(entry.path)
            return True

    @contextmanager
    def _lock(self, stage: str, key: str) -> Iterator[None]:
        directory = self.root / stage
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = (directory / f"{key}.lock").open("w")
        except OSError as error:
            raise HostLacksError(
                f"the store {self.root} cannot be written: {error.strerror}",
                hint="set QUICKSTART_CACHE to a directory of yours",
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _used(path: Path, key: str) -> Entry:
    # Who may read a store but not write it can use it all the same.
    with suppress(OSError):
        os.utime(path / "inputs.json")
    return Entry(path, key, made=False)


def _allocated_bytes(directory: Path) -> int:
    """What the files of a tree take on disk, each inode once (holes of a sparse file take nothing)."""
    inodes: dict[int, int] = {}
    for base, _, names in os.walk(directory):
        for name in names:
            status = os.lstat(f"{base}/{name}")
            inodes[status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


def remove_tree(path: Path) -> None:
    """Remove a directory tree if it is there; raises HostLacksError rather than walk into a mount."""
    if not path.exists():
        return
    below = f"{path.resolve()}/"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (point := line.split()[4]).startswith(below):
            raise HostLacksError(f"{point} is mounted in what is to be removed", hint=f"umount {point}")
    shutil.rmtree(path)
