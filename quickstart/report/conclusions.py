"""Make the conclusions of a bench, as plain sentences, and the first table of the report. The conclusions and the table
come from the bench's numbers. This module has no side effects.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quickstart.measure.results import (
    BUILT,
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    DELIVERIES,
    LINE_NAMES,
    PAYLOADS,
    SIZES,
    STOCK_CONFIGURATIONS,
    STORAGES,
    Cell,
    Results,
    Sample,
    words_of,
)
from quickstart.measure.statistics import Claim, Metric, by_cell, claim_faster, summarise

OURS = "quickstart"
T_APP: Metric = operator.attrgetter("t_app_ns")
T_TOTAL: Metric = operator.attrgetter("t_total_ns")
# This many comparisons that do not hold are named. The others are in the tables.
_NAMED = 3
_VIRTUAL_RULE = (
    "quickstart counts as faster where its time with all that the virtual clock may have charged too little (overlap) is below "
    "the other's without."
)
_REAL_RULE = (
    "One counts as faster where its median is smaller and a permutation test gives p of at most 0.05."
)

# What `build` makes comes first.
_DELIVERIES = ("", *reversed(DELIVERIES))

Measured = Mapping[Cell, Sequence[Sample]]


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first table of the report, as texts. The table has a row for each combination of an application, a machine
    size and a time. The time is T_app (from the start of the guest kernel's clock until ready) or T_total (from launch
    until ready). The table has a column for each storage model.
    """

    clock: str
    rival: str
    command_line: str
    storages: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


def planned_samples(results: Results) -> dict[Cell, tuple[Sample, ...]]:
    """Every cell of the bench's matrix that launches a single machine, with the samples of the cell. A cell that was
    not run has no samples. The module launch_report handles the cells that launch several machines.
    """
    found = by_cell(results.samples)
    cells = (planned.cell for planned in results.plan if planned.cell.instances == 1)
    return {cell: found.get(cell, ()) for cell in cells}


def overview(samples: Measured) -> dict[Cell, Sequence[Sample]]:
    """The cells in the report's first picture. All these cells have the same clock, which is the first measured clock
    in the order of results.CLOCKS. These cells also have the same storage model, which is the slowest model that was
    measured on this clock. These cells also have the same machine size, which is the smallest size that was measured
    with this clock and storage model.
    """
    clock = next(each for each in CLOCKS if any(cell.clock == each for cell in samples))
    here = [cell for cell in samples if cell.clock == clock]
    storage = next(each for each in reversed(STORAGES) if any(cell.storage == each for cell in here))
    here = [cell for cell in here if cell.storage == storage]
    size = next(each for each in SIZES if any(cell.size == each for cell in here))
    return {cell: samples[cell] for cell in here if cell.size == size}


def headline(results: Results) -> Headline | None:
    """The table that compares the configuration quickstart with one other configuration. The table has the times on one
    clock, the first measured clock in the order of results.CLOCKS. The other configuration is the first measured
    configuration in the order standard, standard-tuned, minimal, ramboot. The result is None when there are no cells to
    compare.
    """
    samples = planned_samples(results)
    clock = next((each for each in CLOCKS if any(cell.clock == each for cell in samples)), "")
    here = {cell: runs for cell, runs in samples.items() if cell.clock == clock}
    there = {cell.configuration for cell in here}
    rival = next((each for each in CONFIGURATIONS if each in there and each != OURS), "")
    if not rival or OURS not in there:
        return None
    lines = {cell.command_line for cell in here if cell.configuration == OURS}
    # The command line of a build comes first. An older series without it has the stock line, which the other
    # configurations also have.
    line = next(each for each in (BUILT, *COMMAND_LINES) if each in lines)
    storages = tuple(each for each in STORAGES if any(cell.storage == each for cell in here))
    forms = {(cell.payload, cell.delivery) for cell in here if cell.configuration == OURS}
    payload, delivery = next(
        each for each in itertools.product(("", *PAYLOADS), _DELIVERIES) if each in forms
    )
    rows = []
    for profile, size, firmware in dict.fromkeys(cell.place for cell in here):
        cells = [
            Cell(
                profile=profile,
                configuration=OURS,
                command_line=line,
                storage=storage,
                clock=clock,
                size=size,
                payload=payload,
                delivery=delivery,
                firmware=firmware,
            )
            for storage in storages
        ]
        for interval, metric in (("launch to ready (T_total)", T_TOTAL), ("kernel to ready (T_app)", T_APP)):
            values = tuple(_verdict(here, cell, rival_of(here, cell, rival), metric) for cell in cells)
            rows.append(((cells[0].machine, interval), values))
    return Headline(clock=clock, rival=rival, command_line=line, storages=storages, rows=tuple(rows))


def rival_of(samples: Measured, cell: Cell, configuration: str) -> Cell:
    """The cell of ``configuration`` with which ``cell``, a cell of the configuration quickstart, is compared.

    The result has the same kernel command line as ``cell``, with one exception. If ``configuration`` is a
    distribution's own boot and was not measured with the kernel options of a build, the result has the stock command
    line.
    """
    same = cell.beside(configuration)
    alone = configuration in STOCK_CONFIGURATIONS and cell.command_line == BUILT and same not in samples
    return replace(same, command_line="stock") if alone else same


def _verdict(samples: Measured, ours: Cell, rival: Cell, metric: Metric) -> str:
    if not samples.get(ours) or not samples.get(rival):
        return "not run"
    claim = claim_faster(samples[ours], samples[rival], metric)
    if claim.ours_ns is None or claim.rival_ns is None:
        lost = [
            cell.configuration for cell in (rival, ours) if summarise(samples[cell], metric).median is None
        ]
        return f"censored: {', '.join(lost)}"
    pair = f"{_seconds(claim.rival_ns)} → {_seconds(claim.ours_ns)}"
    return f"{pair}, {claim.factor:.1f} times" if claim.holds else f"{pair}, not shown"


@dataclass(frozen=True)
class Conclusions:
    """The conclusions for one clock. ``rule`` is a sentence that says when one configuration counts as faster than
    another. ``sentences`` are the conclusions.
    """

    clock: str
    rule: str
    sentences: tuple[str, ...]


def conclusions(results: Results) -> tuple[Conclusions, ...]:
    """The conclusions for each clock. The conclusions say which configurations are slower than quickstart, where
    quickstart saves time, and how much the times of different runs vary.
    """
    samples = planned_samples(results)
    found = []
    for clock in CLOCKS:
        here = {cell: runs for cell, runs in samples.items() if cell.clock == clock and runs}
        if here:
            rule = _VIRTUAL_RULE if clock == "virtual" else _REAL_RULE
            sentences = (*_compared(here), *_parts(here), *_repeats(here))
            found.append(Conclusions(clock, rule, sentences))
    return tuple(found)


def _compared(samples: Measured) -> Iterator[str]:
    """One sentence for each configuration other than quickstart. The sentence compares quickstart with this
    configuration. The sentence covers all pairs of a cell of quickstart and the corresponding cell of this
    configuration. The function ``rival_of`` finds the corresponding cell.
    """
    for rival in CONFIGURATIONS:
        if rival == OURS:
            continue
        pairs = [
            (cell, rival_of(samples, cell, rival))
            for cell in samples
            if cell.configuration == OURS and rival_of(samples, cell, rival) in samples
        ]
        if pairs:
            yield _comparison(samples, rival, pairs)


def _comparison(samples: Measured, rival: str, pairs: Sequence[tuple[Cell, Cell]]) -> str:
    app, total = (
        [claim_faster(samples[ours], samples[other], metric) for ours, other in pairs]
        for metric in (T_APP, T_TOTAL)
    )
    back = [
        sum(claim_faster(samples[other], samples[ours], metric).holds for ours, other in pairs)
        for metric in (T_APP, T_TOTAL)
    ]
    text = (
        f"quickstart beside {rival}, T_app: faster in {_share(_held(app), len(pairs))} comparisons, {_factors(app)}; "
        f"T_total: in {_share(_held(total), len(pairs))}, {_factors(total)}."
    )
    if any(back):
        text += (
            f" By the same rule {rival} is faster in {_share(back[0], len(pairs))} (T_app) and "
            f"{_share(back[1], len(pairs))} (T_total)."
        )
    failed = [
        f"{words_of(ours)} ({_pair(claim)})"
        for (ours, _), claim in zip(pairs, app, strict=True)
        if not claim.holds
    ]
    if 0 < len(failed) < len(pairs):
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        text += f" T_app is not shown to be shorter for {'; '.join(failed[:_NAMED])}{more}."
    return text


def _held(claims: Sequence[Claim]) -> int:
    return sum(claim.holds for claim in claims)


def _share(count: int, of: int) -> str:
    return f"all {of}" if count == of > 1 else f"{count or 'none'} of {of}"


def _factors(claims: Sequence[Claim]) -> str:
    known = [claim.factor for claim in claims if claim.factor]
    if not known:
        return "by an unknown factor"
    return _between(f"{min(known):.2f}", f"{max(known):.2f}", "times as fast")


def _pair(claim: Claim) -> str:
    if claim.ours_ns is None or claim.rival_ns is None:
        return "censored"
    return f"{_seconds(claim.ours_ns)} against {_seconds(claim.rival_ns)}"


def _parts(samples: Measured) -> Iterator[str]:
    """T_app is the time from the start of the guest kernel's clock until ready. The result consists of sentences that
    say how much of T_app depends on the storage model, on waiting for systemd, on serving files from memory, and on the
    kernel's options.
    """
    known = {
        cell: middle
        for cell, runs in samples.items()
        if (middle := summarise(runs, T_APP).median) is not None
    }
    storages = [each for each in STORAGES if any(cell.storage == each for cell in known)]
    here = [each for each in CONFIGURATIONS if any(cell.configuration == each for cell in known)]
    if len(storages) > 1:
        first, last = storages[0], storages[-1]
        costs = {name: _differences(_of(known, name), "storage", last, first) for name in here}
        said = "; ".join(f"{name} {_range(each)}" for name, each in costs.items() if each)
        if said:
            yield f"{last} instead of {first} adds to T_app: {said}."
    if "minimal" in here:
        if found := _differences(known, "configuration", "standard", "minimal"):
            yield (
                f"Not waiting for systemd saves {_range(found)} of T_app: minimal, whose start set is empty, beside standard."
            )
        if found := _differences(known, "configuration", "minimal", OURS):
            yield f"Serving the start set from memory saves {_range(found)} of T_app: quickstart beside minimal."
    for line, called in LINE_NAMES.items():
        saved = {name: _differences(_of(known, name), "command_line", "stock", line) for name in here}
        if said := "; ".join(f"{name} {_range(each)}" for name, each in saved.items() if each):
            yield f"{called[:1].upper()}{called[1:]} save of T_app: {said}."


def _of(known: Mapping[Cell, int], configuration: str) -> dict[Cell, int]:
    return {cell: middle for cell, middle in known.items() if cell.configuration == configuration}


def _differences(known: Mapping[Cell, int], axis: str, more: str, less: str) -> list[int]:
    """The differences in ns between the times of pairs of cells. The two cells of a pair differ only in the field
    ``axis``, which has the value ``more`` in the first cell and ``less`` in the second. The difference is the time of
    the first cell minus the time of the second cell.
    """
    change: dict[str, Any] = {axis: less}
    others = {cell: known.get(replace(cell, **change)) for cell in known if getattr(cell, axis) == more}
    return [known[cell] - other for cell, other in others.items() if other is not None]


def _repeats(samples: Measured) -> Iterator[str]:
    spreads = {cell: summarise(runs, T_APP) for cell, runs in samples.items() if len(runs) > 1}
    known = {cell: found for cell, found in spreads.items() if found.spread is not None and found.n > 1}
    if known:
        cell = max(known, key=lambda each: known[each].spread or 0)
        widest = known[cell]
        share = f" ({widest.spread_share:.1%} of its median)" if widest.spread_share is not None else ""
        middle = sorted(found.spread or 0 for found in known.values())[(len(known) - 1) // 2]
        yield (
            f"The runs of a cell are {_short(middle)} apart in T_app in the median of {len(known)} cells, and at most "
            f"{_short(widest.spread or 0)}{share}: {words_of(cell)}."
        )


def _range(values_ns: Sequence[int]) -> str:
    # Tens of milliseconds, so that nothing is -0.00.
    least, most = (round(each / 1e7) / 100 for each in (min(values_ns), max(values_ns)))
    return _between(f"{least:.2f}", f"{most:.2f}", "s")


def _between(least: str, most: str, unit: str) -> str:
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _short(value_ns: int) -> str:
    return f"{value_ns / 1e6:.0f} ms" if value_ns < 10**9 else _seconds(value_ns)


def _seconds(value_ns: int) -> str:
    return f"{value_ns / 1e9:.2f} s"
