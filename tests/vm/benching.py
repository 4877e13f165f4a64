"""`quickstart bench` as a process of its own, in a directory of its own: what it runs, opens and mounts, and what it leaves."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quickstart.measure.results import Sample
from quickstart.report import document
from quickstart.store.store import default_root
from tests.vm.conftest import COMMAND, Called, assert_gone
from tests.vm.meddled import descendants
from tests.vm.test_kill import mount

CALL_S = 300.0
# Whatever who starts the tests ignores.
HEARS = ("env", "--default-signal=INT,TERM,HUP")


@dataclass(frozen=True)
class Booting:
    """A run's processes, seen when its guest's kernel had begun to speak."""

    qemu: int
    volume: int


@dataclass
class Running:
    """The verb as a process that leads a group of its own, as one that a shell starts."""

    process: subprocess.Popen[bytes]
    place: Path
    seen: list[int] = field(default_factory=list)
    sockets: set[str] = field(default_factory=set)

    @property
    def tmp(self) -> Path:
        return self.place / "tmp"

    def booting(self) -> Booting:
        """Wait for the next run's guest."""
        end_s = time.monotonic() + CALL_S
        while time.monotonic() < end_s:
            assert self.process.poll() is None, self.said()
            below = {pid: name_of(pid) for pid in descendants(self.process.pid)}
            new = {name: pid for pid, name in below.items() if pid not in self.seen}
            logs = [path for path in self.tmp.glob("quickstart-guest-*/console.log") if path.stat().st_size]
            if logs and {"qemu-system-x86", "volume"} <= new.keys():
                self.seen += below
                self.sockets.update(*(sockets_of(pid) for pid in below))
                assert self.sockets & listed_sockets()
                return Booting(new["qemu-system-x86"], new["volume"])
            time.sleep(0.02)
        raise AssertionError("no guest came up")

    def ended(self) -> Called:
        """Wait for the end; whatever it was, the verb's processes and sockets are gone."""
        status = self.process.wait(CALL_S)
        assert_gone(self.seen)
        assert self.sockets & listed_sockets() == set()
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        ours = (str(self.place), str(default_root()))
        tmpfs = [str(self.place / name) for name in ("tmp", "out")]
        assert [each for each in points if each.startswith(ours) and each not in tmpfs] == []
        return Called(status, (self.place / "stdout").read_text(), self.said())

    def finished(self) -> Called:
        """As `ended`, and the temporary directory is as it was, which only a SIGKILL may be an excuse for."""
        called = self.ended()
        assert [path for path in self.tmp.iterdir() if path.name != "filler"] == []
        return called

    def said(self) -> str:
        # rich breaks lines where there is no terminal, too.
        return " ".join((self.place / "stderr").read_text().split())


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def sockets_of(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            name = str(path.readlink())
            if name.startswith("socket:["):
                found.add(name[len("socket:[") : -1])
    return found


def listed_sockets() -> set[str]:
    """The inodes of every TCP and UNIX socket of this host."""
    columns = {"tcp": 9, "tcp6": 9, "unix": 6}
    return {
        line.split()[column]
        for name, column in columns.items()
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    }


@dataclass(frozen=True)
class Ground:
    """A place with a temporary directory and a results directory of a test's own."""

    place: Path
    words: tuple[str, ...]
    store: Path = field(default_factory=default_root)

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def file(self) -> Path:
        return self.out / "results.json"

    @property
    def samples(self) -> tuple[Sample, ...]:
        return document.load(self.file).samples

    @contextmanager
    def call(self) -> Iterator[Running]:
        """The verb, which is killed at the end when it still runs."""
        argv = [*HEARS, str(COMMAND), "bench", *self.words, "-o", str(self.out), "--json"]
        environment = {"TMPDIR": str(self.place / "tmp"), "QUICKSTART_CACHE": str(self.store)}
        with (self.place / "stdout").open("wb") as out, (self.place / "stderr").open("wb") as err:
            process = subprocess.Popen(
                argv, env={**os.environ, **environment}, stdout=out, stderr=err, process_group=0
            )
        with process:
            try:
                yield Running(process, self.place)
            finally:
                process.kill()

    def assert_goes_on(self) -> None:
        """The same command measures what is missing, and nothing again."""
        before = self.samples
        with self.call() as running:
            running.booting()
            called = running.finished()
        assert called.status == 0, called.err
        assert called.result["complete"] and called.result["valid"]
        assert f"{len(before)} of 2 runs are in {self.file} and are kept" in called.err
        assert self.samples[: len(before)] == before
        assert [(each.number, each.censored) for each in self.samples] == [(1, ""), (2, "")]
        assert [path.name for path in self.out.iterdir() if path.name.startswith(".")] == []


@contextmanager
def ground_of(*words: str) -> Iterator[Ground]:
    place = Path(tempfile.mkdtemp(prefix="qs-", dir="/tmp"))
    try:
        (place / "tmp").mkdir()
        yield Ground(place, words)
    finally:
        shutil.rmtree(place)


@contextmanager
def small(directory: Path, size_mib: int) -> Iterator[None]:
    """A tmpfs of that size at ``directory``."""
    directory.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={size_mib}m", "none", directory)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], timeout=60, check=True)


def fill(directory: Path) -> Path:
    """A file that takes all the space there is."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), (directory / "more").open("wb") as more:
        more.write(b"x")
    (directory / "more").unlink()
    return filler
