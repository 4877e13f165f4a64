"""The bench's sequence with stand-ins for the machines: order, no lost sample, continuation, Ctrl-C, and invalid results."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quickstart.bench.series import RESULTS, Bench, invalid, run_matrix, time_left
from quickstart.cli import bench as cli
from quickstart.cli.main import group
from quickstart.errors import BadInputError, GuestError, OtherResultsError, ResultsError
from quickstart.host.progress import Quiet
from quickstart.measure.matrix import Matrix, order
from quickstart.measure.results import Cell, Circumstances, Planned, Reads, Sample
from quickstart.report import document
from tests.unit.benchdata import CELL, S, censored, circumstances, realistic, results_of, sample

STANDARD = dataclasses.replace(CELL, configuration="standard")
PLAN = (Planned(STANDARD, 2, 30), Planned(CELL, 2, 60))
ORDER = order(PLAN)


class Shown(Quiet):
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.said.append(name)
        yield

    def note(self, text: str) -> None:
        self.said.append(text)


class Stand:
    """A Runner without machines; ``before`` may raise in place of a run."""

    def __init__(self, before: Callable[[int], None] = lambda count: None, **changed: object) -> None:
        self.ran: list[tuple[Cell, int, int]] = []
        self._before = before
        self._changed = changed

    def circumstances(self) -> Circumstances:
        return dataclasses.replace(circumstances(), **self._changed)  # type: ignore[arg-type]

    def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
        self._before(len(self.ran))
        self.ran.append((cell, number, timeout_s))
        return tuple(sample(cell, number, S, instance=each + 1) for each in range(cell.instances))


def asked(directory: Path, plan: tuple[Planned, ...] = PLAN) -> Bench:
    return Bench(Matrix("m", plan), directory, ("quickstart", "bench"), "2026-01-02T03:04:05Z")


def fail_at(count: int, error: BaseException) -> Callable[[int], None]:
    def before(done: int) -> None:
        if done == count:
            raise error

    return before


def test_a_matrix_is_run_in_rounds(tmp_path: Path) -> None:
    stand = Stand()
    results = run_matrix(asked(tmp_path / "new"), stand, Shown())
    assert stand.ran == [(STANDARD, 1, 30), (CELL, 1, 60), (CELL, 2, 60), (STANDARD, 2, 30)]
    assert document.load(tmp_path / "new" / RESULTS) == results
    assert [(each.cell, each.number) for each in results.samples] == list(ORDER)
    assert all(each.took_ns > 0 for each in results.samples)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GuestError("qemu died")])
def test_what_was_measured_is_kept_and_gone_on_from(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_matrix(asked(tmp_path), Stand(fail_at(3, error)), Shown())
    kept = document.load(tmp_path / RESULTS).samples
    assert [(each.cell, each.number) for each in kept] == list(ORDER[:3])
    again, shown = Stand(), Shown()
    results = run_matrix(asked(tmp_path), again, shown)
    assert again.ran == [(STANDARD, 2, 30)]
    assert results.samples[:3] == kept
    assert shown.said[0] == f"3 of 4 runs are in {tmp_path / RESULTS} and are kept"


def test_a_censored_run_is_not_made_again_and_that_is_said(tmp_path: Path) -> None:
    """Whoever repeats slow runs until they are fast measures only fast ones."""
    with pytest.raises(KeyboardInterrupt):
        run_matrix(asked(tmp_path), Stand(fail_at(3, KeyboardInterrupt())), Shown())
    before = document.load(tmp_path / RESULTS)
    first, *rest = before.samples
    slow = (censored(first.cell, first.number, "it hung"), *rest)
    document.save(dataclasses.replace(before, samples=slow), tmp_path / RESULTS)
    again, shown = Stand(), Shown()
    run_matrix(asked(tmp_path), again, shown)
    assert again.ran == [(STANDARD, 2, 30)]
    assert shown.said[0].endswith("are kept; 1 of them are censored, and are not made again")


def test_every_sample_is_in_the_file_before_the_next_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def look(count: int) -> None:
        file = tmp_path / RESULTS
        seen.append(len(document.load(file).samples) if file.exists() else 0)

    run_matrix(asked(tmp_path), Stand(look), Shown())
    assert seen == [0, 1, 2, 3]


def test_a_launch_of_several_is_one_run_with_a_sample_of_each(tmp_path: Path) -> None:
    burst = dataclasses.replace(CELL, clock="wall", pattern="burst", instances=3)
    plan = (Planned(burst, 2, 60),)
    with pytest.raises(KeyboardInterrupt):
        run_matrix(asked(tmp_path, plan), Stand(fail_at(1, KeyboardInterrupt())), Shown())
    assert [each.instance for each in document.load(tmp_path / RESULTS).samples] == [1, 2, 3]
    stand, shown = Stand(), Shown()
    results = run_matrix(asked(tmp_path, plan), stand, shown)
    assert stand.ran == [(burst, 2, 60)]
    assert [(each.number, each.instance) for each in results.samples] == [
        (number, instance) for number in (1, 2) for instance in (1, 2, 3)
    ]
    assert shown.said[0] == f"1 of 2 runs are in {tmp_path / RESULTS} and are kept"
    assert invalid(results) == ()


def test_what_is_complete_is_not_measured_again(tmp_path: Path) -> None:
    first = run_matrix(asked(tmp_path), Stand(), Shown())
    stand = Stand()
    assert run_matrix(asked(tmp_path), stand, Shown()) == first
    assert stand.ran == []


def test_another_matrix_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    run_matrix(asked(tmp_path), Stand(), Shown())

    class Costly(Stand):
        def circumstances(self) -> Circumstances:
            raise AssertionError("built something")

    with pytest.raises(OtherResultsError, match="only there"):
        run_matrix(asked(tmp_path, PLAN[:1]), Costly(), Shown())


def test_other_artefacts_are_refused(tmp_path: Path) -> None:
    run_matrix(asked(tmp_path), Stand(), Shown())
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(OtherResultsError, match="artefact nginx/reference"):
        run_matrix(asked(tmp_path), Stand(artefacts={}), Shown())
    assert (tmp_path / RESULTS).read_bytes() == before


def test_what_a_killed_bench_left_half_written_goes_with_the_next(tmp_path: Path) -> None:
    for name in (f".{RESULTS}.abc.partial", ".report.html.abc.partial"):
        (tmp_path / name).write_text("{")
    run_matrix(asked(tmp_path), Stand(), Shown())
    # The report's may be that of a call with --report, which takes no lock.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".report.html.abc.partial", RESULTS]


def test_only_a_file_is_taken_for_a_half_written_one(tmp_path: Path) -> None:
    (tmp_path / f".{RESULTS}.directory.partial").mkdir()
    (tmp_path / f".{RESULTS}.link.partial").symlink_to("nowhere")
    before = set(tmp_path.iterdir())
    run_matrix(asked(tmp_path), Stand(), Shown())
    assert set(tmp_path.iterdir()) == before | {tmp_path / RESULTS}


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("{")
    with pytest.raises(ResultsError):
        run_matrix(asked(tmp_path), Stand(), Shown())
    assert (tmp_path / RESULTS).read_text() == "{"


def test_two_benches_do_not_share_a_directory(tmp_path: Path) -> None:
    def second(count: int) -> None:
        with pytest.raises(BadInputError, match="another bench writes"):
            run_matrix(asked(tmp_path), Stand(), Shown())

    assert len(run_matrix(asked(tmp_path), Stand(second), Shown()).samples) == 4


def test_a_clock_that_is_set_changes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's date jumps in each run: back to 1970, then a century ahead."""

    def jump(count: int) -> None:
        monkeypatch.setattr(time, "time", lambda: (0.0, 4e9)[count % 2])
        monkeypatch.setattr(time, "time_ns", lambda: (0, 4 * 10**18)[count % 2])

    results = run_matrix(asked(tmp_path), Stand(jump), Shown())
    assert all(0 <= each.took_ns < 60 * S for each in results.samples)
    assert "less than a minute left" in time_left(results.samples, [CELL])


def test_progress_names_run_and_time_left(tmp_path: Path) -> None:
    shown = Shown()
    run_matrix(asked(tmp_path), Stand(), shown)
    assert shown.said[0] == "1/4 nginx standard stock ebs-warm virtual small run 1"
    assert shown.said[1] == "2/4 nginx quickstart stock ebs-warm virtual small run 1; less than a minute left"


def test_time_left_is_that_of_runs_of_the_same_kind() -> None:
    done = [sample(STANDARD, took_ns=120 * S), sample(CELL, took_ns=10 * S), sample(CELL, 2, took_ns=30 * S)]
    assert time_left(done, [STANDARD] * 3 + [CELL] * 3) == "; about 7 min left"
    assert time_left(done, [STANDARD] * 90) == "; about 3.0 h left"
    other = dataclasses.replace(CELL, configuration="minimal")
    assert time_left(done[:1], [other]) == "; about 2 min left"
    assert time_left([], [CELL]) == ""


def test_a_cell_of_which_nothing_got_ready_is_not_valid() -> None:
    results = results_of(
        PLAN, [sample(), censored(STANDARD, why="it hung"), censored(STANDARD, 2, "it hung")]
    )
    assert invalid(results) == (
        "nginx standard stock ebs-warm virtual small: none of 2 runs got ready: it hung",
    )
    assert invalid(dataclasses.replace(results, samples=(sample(STANDARD), censored(STANDARD, 2)))) == ()


@pytest.mark.parametrize(
    ("guest", "volume", "valid"),
    [
        (0, 0, True),
        (10**6, 0, True),
        (2 * 10**6, 0, False),
        (10**9, 10**9 + 10**7, True),
        (10**9, 9 * 10**8, False),
    ],
)
def test_guest_and_volume_have_to_agree(guest: int, volume: int, valid: bool) -> None:
    run = sample(guest=Reads(1, guest), volume=Reads(1, volume))
    assert (invalid(results_of(PLAN, [run])) == ()) is valid


@pytest.fixture(name="call")
def _call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("QUICKSTART_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, runner: Stand | None = None) -> Result:
        with monkeypatch.context() as patched:
            patched.setattr(cli, "QemuRunner", lambda matrix, store, progress: runner or Stand())
            patched.setattr("quickstart.report.report.write_report", lambda results, faults, directory: None)
            return CliRunner().invoke(group, ["bench", *arguments])

    return call


OPTIONS = (
    *("--profile", "nginx", "--configuration", "standard", "--configuration", "quickstart"),
    *("--storage", "ebs-cold", "--clock", "virtual", "--runs", "2"),
)


def test_options_as_json(call: Callable[..., Result], tmp_path: Path) -> None:
    found = call(*OPTIONS, "-o", "out", "--json")
    assert found.exit_code == 0
    said = json.loads(found.stdout)["result"]
    assert (said["out"], said["valid"], said["complete"]) == (str(tmp_path / "out"), True, True)
    assert [(each["configuration"], each["n"], each["t_app_median_ns"]) for each in said["cells"]] == [
        ("standard", 2, S),
        ("quickstart", 2, S),
    ]


def test_ctrl_c_keeps_samples_and_ends_with_130(call: Callable[..., Result], tmp_path: Path) -> None:
    found = call(*OPTIONS, runner=Stand(fail_at(1, KeyboardInterrupt())))
    assert found.exit_code == 130
    assert "the same command goes on from there" in " ".join(found.stderr.split())
    assert len(document.load(tmp_path / "bench-options" / RESULTS).samples) == 1


@pytest.mark.parametrize(
    ("changed", "more", "said"),
    [
        ({"versions": {"quickstart": "0.9"}}, (), "version of quickstart: "),
        ({"host": {"cpu": "another"}}, (), "host cpu: "),
        ({"artefacts": {}}, (), "artefact nginx/reference: "),
        ({"poll_interval_ms": 999}, (), "poll interval: "),
        ({}, ("--timeout", "7"), "2 of at most 7 s now"),
        ({}, ("--size", "medium"), "medium is only in the new one"),
    ],
)
def test_results_of_other_circumstances_end_with_2_and_stay(
    call: Callable[..., Result], tmp_path: Path, changed: dict[str, Any], more: tuple[str, ...], said: str
) -> None:
    assert call(*OPTIONS, "-o", "out").exit_code == 0
    file = tmp_path / "out" / RESULTS
    before = file.read_bytes()
    stand = Stand(**changed)
    found = call(*OPTIONS, *more, "-o", "out", "--json", runner=stand)
    assert (found.exit_code, stand.ran) == (2, [])
    error = json.loads(found.stdout)["error"]
    assert (error["kind"], said in "\n".join(error["details"])) == ("OtherResultsError", True), error
    assert "-o DIR" in error["hint"]
    assert file.read_bytes() == before


def test_a_measurement_that_is_not_valid_ends_with_4(call: Callable[..., Result]) -> None:
    class Dead(Stand):
        def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
            return (censored(cell, number),)

    found = call(*OPTIONS, "--json", runner=Dead())
    assert found.exit_code == 4
    assert json.loads(found.stdout)["result"]["valid"] is False
    assert "not valid: nginx standard stock ebs-cold virtual small: none of 2 runs got ready" in " ".join(
        found.stderr.split()
    )


def test_a_matrix_file(call: Callable[..., Result], tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "bench/smoke.toml"
    found = call(str(file))
    assert found.exit_code == 0
    assert "standard" in found.stdout
    assert (tmp_path / "bench-smoke" / RESULTS).exists()


def test_a_dry_run_names_runs_and_makes_nothing(call: Callable[..., Result], tmp_path: Path) -> None:
    found = call(*OPTIONS, "--dry-run", "--json")
    assert json.loads(found.stdout)["result"]["runs"] == 4
    assert "run 2" in call(*OPTIONS, "--dry-run").stdout
    assert list(tmp_path.iterdir()) == []


def test_the_report_can_be_made_again(call: Callable[..., Result], tmp_path: Path) -> None:
    document.save(realistic(), tmp_path / RESULTS)
    assert call("--report", "-o", str(tmp_path)).exit_code == 0
    assert call("--report").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to measure"),
        (("--profile", "nginx"), "block[0].storages: missing"),
        ((*OPTIONS, "m.toml"), "both a matrix and options for one"),
        (("--runs", "2", "--timeout", "9", "m.toml"), "options for one (--runs, --timeout)"),
        (("m.toml",), "cannot be read"),
        (("--profile", "ngnix", *OPTIONS), "did you mean 'nginx'?"),
    ],
)
def test_bad_input(call: Callable[..., Result], arguments: tuple[str, ...], said: str) -> None:
    found = call(*arguments)
    assert (found.exit_code, said in " ".join(found.stderr.split())) == (2, True), found.stderr
