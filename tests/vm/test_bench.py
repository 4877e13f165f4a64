"""`quickstart bench` when something goes wrong: a run that fails is censored with its reason and the matrix goes on; what ends the
verb leaves results.json whole, and the same command goes on from it. Nothing is left running, mounted, listening or in $TMPDIR.
"""

from __future__ import annotations

import errno
import html
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quickstart import pipeline
from quickstart.measure import document
from quickstart.measure.matrix import load_matrix, order
from quickstart.measure.results import Cell, Results, Sample
from quickstart.profile import known_profiles, load_profile
from quickstart.store import MARK, Store, default_root, key_of
from tests.vm.conftest import COMMAND, Called, assert_gone
from tests.vm.meddled import descendants
from tests.vm.test_errors import profile
from tests.vm.test_kill import copy, mount

CALL_S = 300.0
# Before it no guest says anything, and so none is meddled with; after it a hanging one is given up.
SHORT_S = 12
# Whatever who starts the tests ignores.
HEARS = ("env", "--default-signal=INT,TERM,HUP")
ONE_CELL = (
    "--profile",
    "nginx",
    "--configuration",
    "quickstart",
    "--storage",
    "ebs-warm",
    "--clock",
    "virtual",
)


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
    # A short name: a UNIX socket's has at most 107 bytes.
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


# ---------------------------------------------------------------- a run that fails


@pytest.fixture(scope="module")
def lent(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A profile whose request is never answered right, and a store that has nginx's trace for its own.

    A real reference boot would not get ready either, and so end before there is anything to measure.
    """
    never = profile(tmp_path_factory.mktemp("never"), ('path = "/"', 'path = "/nothing-is-here"'))
    place = tmp_path_factory.mktemp("store")
    with Store(default_root()) as store:
        (key,) = [
            key
            for stage, key, _ in pipeline.plan(load_profile("nginx"), pipeline.TraceOptions(), store).stages
            if stage == "trace"
        ]
        for stage in store.root.iterdir():
            if stage.name != "trace":
                (place / stage.name).symlink_to(stage)
        (place / "trace").mkdir(mode=0o700)
        copy(store.root / "trace" / key, place / "trace")
        mark = json.loads((place / "trace" / key / MARK).read_text())
        mark["inputs"]["ready"]["path"] = "/nothing-is-here"
        other = key_of("trace", mark["inputs"])
        copy(place / "trace" / key, place / "trace" / other)
        (place / "trace" / other / MARK).write_text(json.dumps(mark))
        yield never, place


Meddle = Callable[[Booting], None]
# By cell and number: what is done to a run, and what its reason has to say.
FAULTS: dict[tuple[str, int], tuple[Meddle, str]] = {
    ("never", 1): (lambda run: None, f"the guest was not ready after {SHORT_S} s"),
    ("ebs-warm", 1): (
        lambda run: os.kill(run.volume, signal.SIGKILL),
        "the volume emulator died: was killed by signal 9",
    ),
    ("local", 1): (
        lambda run: os.kill(run.volume, signal.SIGSTOP),
        f"the volume emulator said nothing for 5 s: the guest was not ready after {SHORT_S} s",
    ),
    ("local", 2): (
        lambda run: os.kill(run.qemu, signal.SIGSTOP),
        f"the guest was not ready after {SHORT_S} s",
    ),
    ("ebs-warm", 2): (lambda run: os.kill(run.qemu, signal.SIGKILL), "QEMU was killed by signal 9"),
}


@dataclass(frozen=True)
class Measured:
    """A whole matrix: what the verb said of it, results.json, and the directory with the report."""

    called: Called
    results: Results
    out: Path


@pytest.fixture(scope="module")
def meddled(lent: tuple[Path, Path]) -> Iterator[Measured]:
    """A matrix in which one run after the other has something done to it, and the last has not."""
    never, store = lent
    block = '[[block]]\nconfigurations = ["quickstart"]\nclocks = ["virtual"]\n'
    with ground_of() as place:
        matrix = place.place / "m.toml"
        matrix.write_text(
            'schema = 1\nname = "meddled"\n'
            f'{block}profiles = ["{never}"]\nstorages = ["local"]\nruns = 1\ntimeout_s = {SHORT_S}\n'
            f'{block}profiles = ["nginx"]\nstorages = ["ebs-warm"]\nruns = 3\ntimeout_s = {CALL_S:.0f}\n'
            f'{block}profiles = ["nginx"]\nstorages = ["local"]\nruns = 2\ntimeout_s = {SHORT_S}\n'
        )
        ground = Ground(place.place, (str(matrix),), store)
        with ground.call() as running:
            for each in order(load_matrix(matrix, known_profiles()).plan):
                before = list(running.seen)
                run = running.booting()
                assert_gone(before)
                if word_of(*each) in FAULTS:
                    FAULTS[word_of(*each)][0](run)
            called = running.finished()
        yield Measured(called, document.load(ground.file), ground.out)


def word_of(cell: Cell, number: int) -> tuple[str, int]:
    return cell.storage if cell.profile == "nginx" else "never", number


@pytest.mark.parametrize("run", FAULTS, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_run_that_fails_is_censored_with_its_reason(meddled: Measured, run: tuple[str, int]) -> None:
    (found,) = [each for each in meddled.results.samples if word_of(each.cell, each.number) == run]
    assert FAULTS[run][1] in found.censored
    assert (found.t_total_ns, found.phases) == (0, ())
    page = html.unescape((meddled.out / "report.html").read_text())
    assert "Run, not ready (censored)" in page
    assert found.censored in page


def test_after_runs_that_failed_comes_one_that_is_good(meddled: Measured) -> None:
    last = meddled.results.samples[-1]
    assert (word_of(last.cell, last.number), last.censored) == (("ebs-warm", 3), "")
    assert last.t_total_ns > 0
    # Of the two others no run got ready.
    assert meddled.called.status == 4
    said = meddled.called.result
    assert said["complete"] and not said["valid"]
    never, local = said["faults"]
    assert "none of 1 runs got ready" in never and "local virtual small: none of 2 runs got ready" in local
    assert [(each["n"], each["censored"]) for each in said["cells"]] == [(0, 1), (1, 2), (0, 2)]


# ---------------------------------------------------------------- what ends the verb


@pytest.fixture(scope="module")
def begun(artefact: Path) -> Iterator[Ground]:
    """Results with the first of two runs: Ctrl-C came in the second."""
    with ground_of(*ONE_CELL, "--runs", "2", "--timeout", "300") as ground:
        with ground.call() as running:
            running.booting()
            running.booting()
            os.killpg(running.process.pid, signal.SIGINT)
            called = running.finished()
        assert called.status == 130, called.err
        assert called.error["kind"] == "KeyboardInterrupt"
        assert f"what was measured is in {ground.file}; the same command goes on from there" in called.err
        assert [(each.number, each.censored) for each in ground.samples] == [(1, "")]
        assert [path.name for path in ground.out.iterdir()] == ["results.json"]
        yield ground


@pytest.fixture
def ground(begun: Ground) -> Iterator[Ground]:
    """A copy of `begun`."""
    with ground_of(*begun.words) as found:
        found.out.mkdir()
        shutil.copy(begun.file, found.file)
        yield found


def interrupted(ground: Ground, number: signal.Signals) -> None:
    """A call whose process alone gets a signal: what was measured stays as it is, and nothing of this or any other call is left."""
    before = ground.file.read_bytes()
    with ground.call() as running:
        running.booting()
        running.process.send_signal(number)
        called = running.finished()
    assert called.status == 130, called.err
    assert ground.file.read_bytes() == before


def test_an_interrupt_to_the_verb_alone_keeps_the_samples(ground: Ground) -> None:
    interrupted(ground, signal.SIGINT)


def test_a_killed_verb_takes_guest_and_volume_along_and_the_next_call_its_directories(ground: Ground) -> None:
    before = ground.file.read_bytes()
    with ground.call() as running:
        run = running.booting()
        assert {run.qemu, run.volume} <= set(running.seen)
        running.process.kill()
        assert running.ended().status == -signal.SIGKILL
    assert ground.file.read_bytes() == before
    left = [path.name.rpartition("-")[0] for path in (ground.place / "tmp").iterdir()]
    assert sorted(left) == ["quickstart-guest", "quickstart-volume"]
    # The lock on the results is free again, too.
    interrupted(ground, signal.SIGTERM)


def test_results_on_a_disk_that_gets_full(ground: Ground) -> None:
    before = ground.file.read_bytes()
    with small(ground.out, 16):
        ground.file.write_bytes(before)
        with ground.call() as running:
            running.booting()
            filler = fill(ground.out)
            called = running.finished()
        assert called.status == 3, called.err
        assert f"no space left for the results {ground.out} (0 bytes free" in called.error["message"]
        assert "repeat the command: samples are kept" in called.error["hint"]
        assert ground.file.read_bytes() == before
        assert sorted(path.name for path in ground.out.iterdir()) == ["filler", "results.json"]
        filler.unlink()
        ground.assert_goes_on()


@pytest.mark.parametrize("size_mib", [1, 4, 64])
def test_a_temporary_directory_without_room(ground: Ground, size_mib: int) -> None:
    """Full from the beginning, too small for the initramfs, full while the guest boots."""
    before = ground.file.read_bytes()
    tmp = ground.place / "tmp"
    with small(tmp, size_mib):
        if size_mib == 1:
            fill(tmp)
        with ground.call() as running:
            if size_mib == 64:
                running.booting()
                fill(tmp)
            called = running.finished()
        assert called.status == 3, called.err
        assert f"no space left for the temporary directory {tmp}" in called.error["message"]
    assert ground.file.read_bytes() == before
