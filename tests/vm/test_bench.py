"""`quickstart bench` when something goes wrong. A failed run is censored with its reason, and the matrix
continues. What ends the verb leaves results.json complete, and the same command continues from it. No
process, mount, listener or file in $TMPDIR is left.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.engines import boot as pipeline
from quickstart.measure.matrix import load_matrix, order
from quickstart.measure.results import Cell, Results
from quickstart.profile import known_profiles, load_profile
from quickstart.report import document
from quickstart.store.store import MARK, Store, default_root, key_of
from tests.vm.benching import CALL_S, Booting, Ground, fill, ground_of, small
from tests.vm.conftest import Called, assert_gone, host
from tests.vm.test_errors import profile
from tests.vm.test_kill import copy, mount

# Before it no guest says anything, and so none is meddled with; after it a hanging one is given up.
SHORT_S = 12
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


# ---------------------------------------------------------------- a run that fails


@pytest.fixture(scope="module")
def lent(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A profile whose request is never answered right, and a store that has nginx's trace for its own.

    A real reference boot would not get ready either, and so end before there is anything to measure.
    """
    never = profile(tmp_path_factory.mktemp("never"), ('path = "/"', 'path = "/nothing-is-here"'))
    place = tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        store = stack.enter_context(Store(default_root()))
        (key,) = [
            key
            for stage, key, _ in pipeline.plan(load_profile("nginx"), pipeline.TraceOptions(), store).stages
            if stage == "trace"
        ]
        for stage in store.root.iterdir():
            if stage.name != "trace":
                # A store takes no links for its stages.
                (place / stage.name).mkdir()
                mount("--bind", stage, place / stage.name)
                stack.callback(host, "umount", "-l", place / stage.name)
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
        assert sorted(path.name for path in ground.out.iterdir()) == ["figures", "results.json"]
        assert list((ground.out / "figures").iterdir()) == []
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
        assert sorted(path.name for path in ground.out.iterdir()) == ["figures", "filler", "results.json"]
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
