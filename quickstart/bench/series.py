"""Measure a matrix, which is a list of cells. A cell is one combination to measure, for example of application and
configuration. Make the runs of all cells in order, save the samples after each run, and check the results.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quickstart.errors import BadInputError, ResultsError
from quickstart.host.progress import Progress
from quickstart.measure.matrix import Matrix, order
from quickstart.measure.results import Cell, Circumstances, Results, Sample, words_of
from quickstart.measure.run import first_line
from quickstart.measure.statistics import by_cell
from quickstart.parse.printable import brief
from quickstart.report import document
from quickstart.report.wholefile import remove_partial

RESULTS = "results.json"
# The guest counts a request when it is done, and the volume counts it when it arrives. So the two differ by
# the requests that are in flight at ready.
_FLIGHT_BYTES = 1024 * 1024
_FLIGHT_SHARE = 0.02
_MINUTE_S = 60


class Runner(Protocol):
    """The interface through which `run_matrix` measures cells. `run_matrix` calls the method ``circumstances`` first.
    This method makes all images and initramfs, so the method ``run`` only boots machines.
    """

    def circumstances(self) -> Circumstances:
        """Make the images and initramfs that are missing, and return the facts on which the measured times depend."""
        ...

    def run(self, cell: Cell, number: int, timeout_s: int) -> tuple[Sample, ...]:
        """The samples of one run of ``cell``. The run gives one sample for each machine that it launches.

        If a guest is not ready in time, its sample has no times and is marked as censored. Any other failure
        raises QuickStartError.
        """
        ...


@dataclass(frozen=True)
class Bench:
    """One call of `quickstart bench`: the matrix, the directory for the results, the command line, and the time
    in UTC at which the command began.
    """

    matrix: Matrix
    directory: Path
    command: tuple[str, ...]
    began: str


def run_matrix(bench: Bench, runner: Runner, progress: Progress) -> Results:
    """Make the runs of ``bench.matrix`` that results.json in ``bench.directory`` does not have yet, and write
    results.json after every run.

    When this call ends, even by Ctrl-C, results.json has the samples of all completed runs. The same call, repeated
    later, makes the remaining runs. Raises ResultsError when results.json is invalid, and OtherResultsError when its
    results were measured under other circumstances. Also raises every error that ``runner`` raises.
    """
    bench.directory.mkdir(parents=True, exist_ok=True)
    file = bench.directory / RESULTS
    with _alone(bench.directory):
        remove_partial(file)
        before = document.load(file) if file.exists() else None
        if before is not None:
            # First check everything that is known before the costly work.
            document.demand_same(before, bench.matrix.plan, before.circumstances, str(file))
        circumstances = runner.circumstances()
        if before is not None:
            document.demand_same(before, bench.matrix.plan, circumstances, str(file))
        results = before or Results(
            name=bench.matrix.name,
            command=bench.command,
            began=bench.began,
            circumstances=circumstances,
            plan=bench.matrix.plan,
            samples=(),
        )
        return _measure(_without_contents(results, file), runner, file, progress)


def _measure(results: Results, runner: Runner, file: Path, progress: Progress) -> Results:
    timeouts = {each.cell: each.timeout_s for each in results.plan}
    runs = order(results.plan)
    missing = document.remaining(results, runs)
    if len(missing) < len(runs):
        progress.note(
            f"{len(runs) - len(missing)} of {len(runs)} runs are in {file} and are kept{_censored(results)}"
        )
    for index, (cell, number) in enumerate(missing):
        done = len(runs) - len(missing) + index + 1
        left = time_left(results.samples, [each for each, _ in missing[index:]])
        with progress.step(f"{done}/{len(runs)} {words_of(cell)} run {number}{left}"):
            began_ns = time.monotonic_ns()
            samples = runner.run(cell, number, timeouts[cell])
        took_ns = time.monotonic_ns() - began_ns
        samples = tuple(dataclasses.replace(each, took_ns=took_ns) for each in samples)
        samples = _readable(results, samples, file)
        for sample in samples:
            if sample.censored:
                progress.note(
                    f"censored: {words_of(cell)} run {number}{_machine(sample)}: {brief(sample.censored)}"
                )
        results = dataclasses.replace(results, samples=(*results.samples, *samples))
        document.save(results, file)
    return results


def _readable(results: Results, samples: tuple[Sample, ...], file: Path) -> tuple[Sample, ...]:
    """``samples``, or censored ones in their place if ``file`` could not be read any more with them. A guest says the
    times of its run, and the samples of other cells must not be lost with them.

    Raises ResultsError when ``file`` has no room for another run, however little this run says.
    """
    try:
        _check_readable(results, samples, file)
    except ResultsError as error:
        why = f"the machine's numbers are none of a run: {brief(first_line(error))}"
        censored = tuple(
            Sample(
                cell=each.cell,
                number=each.number,
                instance=each.instance,
                launched_ns=each.launched_ns,
                dilation_percent=each.dilation_percent,
                censored=why,
                delivery=each.delivery,
                took_ns=each.took_ns,
            )
            for each in samples
        )
        _check_readable(results, censored, file)
        return censored
    return samples


def _check_readable(results: Results, samples: tuple[Sample, ...], file: Path) -> None:
    """Raise ResultsError when `document.load` would refuse ``results`` with ``samples``."""
    with_them = dataclasses.replace(results, samples=(*results.samples, *samples))
    document.parse(document.text_of(with_them), str(file))


def _without_contents(results: Results, file: Path) -> Results:
    """``results`` without the lists of what the initramfs have, if ``file`` could not be read with them. One may come from
    somebody else.
    """
    try:
        _check_readable(results, (), file)
    except ResultsError:
        circumstances = results.circumstances
        facts = dataclasses.replace(circumstances.facts, contents={})
        return dataclasses.replace(results, circumstances=dataclasses.replace(circumstances, facts=facts))
    return results


def _censored(results: Results) -> str:
    """A text with the number of censored runs, in which the guest did not become ready. `run_matrix` does not repeat a
    censored run. By repeating slow runs until they are fast, the bench would measure only fast runs. The text is empty
    if there are no censored runs.
    """
    count = len({(sample.cell, sample.number) for sample in results.samples if sample.censored})
    return f"; {count} of them are censored, and are not made again" if count else ""


def time_left(samples: Sequence[Sample], cells: Sequence[Cell]) -> str:
    """A text that says how long the remaining runs take, such as ``; about 4 min left``. ``cells`` has one cell for
    each remaining run. The time is estimated from earlier runs with the same clock, configuration and launch pattern.
    The text is empty when there are no samples yet.
    """
    if not samples:
        return ""
    known: dict[tuple[str, str, str], list[int]] = {}
    for sample in samples:
        known.setdefault(_kind(sample.cell), []).append(sample.took_ns)
    means = {kind: sum(took) / len(took) for kind, took in known.items()}
    usual_ns = sum(sample.took_ns for sample in samples) / len(samples)
    seconds = sum(means.get(_kind(cell), usual_ns) for cell in cells) / 1e9
    if seconds < _MINUTE_S:
        return "; less than a minute left"
    minutes = round(seconds / _MINUTE_S)
    return f"; about {minutes} min left" if minutes < 120 else f"; about {minutes / 60:.1f} h left"


def _machine(sample: Sample) -> str:
    return f", machine {sample.instance}" if sample.cell.instances > 1 else ""


def _kind(cell: Cell) -> tuple[str, str, str]:
    return cell.clock, cell.configuration, cell.launched


def invalid(results: Results) -> tuple[str, ...]:
    """The reasons why the measurement is not valid, one line each. The result is empty for a valid measurement. If
    there is a reason, `bench` exits with status 4.
    """
    return tuple(_faults(results.samples))


def _faults(samples: Sequence[Sample]) -> Iterator[str]:
    for cell, runs in by_cell(samples).items():
        if all(sample.censored for sample in runs):
            what = "runs" if cell.instances == 1 else "machines"
            yield f"{words_of(cell)}: none of {len(runs)} {what} got ready: {runs[-1].censored}"
        for sample in runs:
            here, there = sample.guest.read_bytes, sample.volume.read_bytes
            if abs(here - there) > max(_FLIGHT_BYTES, _FLIGHT_SHARE * max(here, there)):
                yield (
                    f"{words_of(cell)} run {sample.number}{_machine(sample)}: the guest read {here} bytes of its root, "
                    f"the volume was asked for {there}"
                )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock ``directory`` while the context lasts. Raises BadInputError when another `bench` has locked it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInputError(
                f"another bench writes to {directory}", hint="wait for it, or another -o"
            ) from error
        yield
    finally:
        os.close(descriptor)
