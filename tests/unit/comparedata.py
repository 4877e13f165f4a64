"""Makes results of the bench for the tests of its comparison, and changes them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from quickstart.measure.results import Phase, Results, Sample
from quickstart.report.compare import Compared, Comparison
from tests.unit.benchdata import S, censored, realistic

MS = S // 1000
Change = Callable[[Sample], Sample]


def bench(configuration: str = "quickstart", runs: int = 3, clock: str = "virtual") -> Results:
    return realistic(configurations=(configuration,), runs=runs, clocks=(clock,))


def stock(runs: int) -> Results:
    return realistic(configurations=("standard",), runs=runs, storages=("local",))


def longer(phase: str, by_ns: int) -> Change:
    """A run whose phase takes more, and with it all that comes after."""

    def change(sample: Sample) -> Sample:
        at = next(each for each in sample.phases if each.name == phase).begin_ns
        phases = tuple(
            Phase(
                each.name,
                each.begin_ns + (by_ns if each.begin_ns > at else 0),
                each.end_ns + (by_ns if each.end_ns > at else 0),
            )
            for each in sample.phases
        )
        return dataclasses.replace(
            sample,
            phases=phases,
            t_app_ns=sample.t_app_ns + by_ns,
            t_total_ns=sample.t_total_ns + by_ns,
            ready_uptime_ns=sample.ready_uptime_ns + by_ns,
        )

    return change


def fetched(by_ns: int) -> Change:
    def change(sample: Sample) -> Sample:
        return dataclasses.replace(
            sample,
            fetch_ns=sample.fetch_ns + by_ns,
            t_pr_ns=sample.t_pr_ns + by_ns,
            t_total_ns=sample.t_total_ns + by_ns,
        )

    return change


def changed(results: Results, *changes: Change, **facts: object) -> Results:
    """The results with each run changed, and other facts."""
    samples = results.samples
    for change in changes:
        samples = tuple(change(each) for each in samples)
    known = dataclasses.replace(results.circumstances.facts, **facts)  # type: ignore[arg-type]
    return dataclasses.replace(
        results, samples=samples, circumstances=dataclasses.replace(results.circumstances, facts=known)
    )


def resampled(results: Results, runs: int, chance: random.Random) -> Results:
    """Another series of the same machine: as many runs of each cell, each one of those that were measured."""
    samples = [
        dataclasses.replace(chance.choice(there), number=number)
        for planned in results.plan
        if (there := [each for each in results.samples if each.cell == planned.cell])
        for number in range(1, runs + 1)
    ]
    plan = tuple(dataclasses.replace(each, runs=runs) for each in results.plan)
    return dataclasses.replace(results, plan=plan, samples=tuple(samples))


def only(found: Comparison) -> Compared:
    (cell,) = found.cells
    return cell


def texts(found: Compared, kind: str) -> list[str]:
    return [each.text for each in found.causes if each.kind == kind]


def causes_of(found: Compared, phase: str) -> set[str]:
    (one,) = [each for each in found.phases if each.name == phase]
    return {found.causes[at].kind for at in one.causes}


def lost(results: Results, numbers: Sequence[int]) -> Results:
    samples = tuple(
        censored(each.cell, each.number, "the guest was not ready after 9 s")
        if each.number in numbers
        else each
        for each in results.samples
    )
    return dataclasses.replace(results, samples=samples)
