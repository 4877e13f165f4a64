"""Compare the numbers of the QuickStart paper, which are in paper.toml, with the corresponding numbers of our own
bench. Apart from reading paper.toml, this module has no side effects.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    LINE_NAMES,
    SIZES,
    STOCK_CONFIGURATIONS,
    STORAGES,
    Sample,
    on_clock,
)
from quickstart.measure.statistics import Metric, claim_faster, summarise
from quickstart.parse.faults import Table
from quickstart.report.comparable import profile_name
from quickstart.report.conclusions import T_APP, T_TOTAL, Measured

_FILE = Path(__file__).with_name("paper.toml")
_MEGABYTE = 1_000_000


class Ours(Table):
    """A description of the numbers in our results that correspond to a statement of the paper. paper.toml explains the
    possible values of ``metric``. When ``storages`` is empty, the numbers have the storage model of the report's first
    picture.
    """

    metric: Literal["t_app", "t_total", "saved", "reads", "initramfs", "order"]
    profiles: tuple[str, ...]
    size: Literal[SIZES]  # type: ignore[valid-type]
    configurations: tuple[Literal[CONFIGURATIONS], ...]  # type: ignore[valid-type]
    storages: tuple[Literal[STORAGES], ...] = ()  # type: ignore[valid-type]


class Said(Table):
    """A statement of the QuickStart paper. ``printed`` are the statement's numbers in the form that the paper prints.
    ``where`` is the statement's place in the paper, and ``quote`` has the paper's words. ``differs`` says why our
    numbers differ from the paper's numbers, or why we have no corresponding numbers.
    """

    where: str
    what: str
    printed: tuple[str, ...]
    quote: str
    differs: str
    ours: Ours | None = None


class _Document(Table):
    schema_: Literal[1] = Field(alias="schema")
    said: tuple[Said, ...]


@dataclass(frozen=True)
class Beside:
    """A statement of the paper, and lines of text with our corresponding numbers (``ours``). ``ours`` is empty when
    we have no corresponding numbers.
    """

    said: Said
    ours: tuple[str, ...]


def statements() -> tuple[Said, ...]:
    """All statements in paper.toml."""
    raw = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    # The values pass through JSON, because its strict mode accepts an array for a tuple.
    return _Document.model_validate_json(json.dumps(raw)).said


def beside(samples: Measured, others: Measured | None = None) -> tuple[Beside, ...]:
    """Every statement of the paper with our corresponding numbers. Most numbers come from ``samples``, which has the
    samples of one clock and one storage model.

    For a statement that names storage models, the numbers come from ``others`` instead, and there is one line of text
    for each profile and clock.
    """
    return tuple(
        Beside(each, tuple(_lines(samples, others or {}, each.ours)) if each.ours else ())
        for each in statements()
    )


def _lines(samples: Measured, others: Measured, wanted: Ours) -> Iterator[str]:
    return _by_storage(others, wanted) if wanted.storages else _ours(samples, wanted)


def _by_storage(samples: Measured, wanted: Ours) -> Iterator[str]:
    """One line of text for each profile and clock, for a statement that names one configuration and some storage
    models. A line compares the times of the configuration on these storage models. Only runs with the stock command
    line are used.
    """
    (configuration,) = wanted.configurations
    for profile, clock in itertools.product(wanted.profiles, CLOCKS):
        places = [
            {cell: runs for cell, runs in samples.items() if (cell.storage, cell.clock) == (storage, clock)}
            for storage in wanted.storages
        ]
        sides = [_runs(place, wanted, profile, configuration, "stock") for place in places]
        if all(sides):
            words = _METRICS[wanted.metric](sides)
            yield f"{profile} on {', '.join(wanted.storages)}, {on_clock(clock)}: {words}"


def _ours(samples: Measured, wanted: Ours) -> Iterator[str]:
    """One line of text for each profile and kernel command line. A line has our numbers for the configurations that the
    statement of the paper names.
    """
    for profile in wanted.profiles:
        for line in COMMAND_LINES:
            sides = [_runs(samples, wanted, profile, name, line) for name in wanted.configurations]
            if all(sides) and (words := _METRICS[wanted.metric](sides)):
                with_ours = f", {LINE_NAMES[line]}" if line in LINE_NAMES else ""
                yield f"{profile}{with_ours}: {words}"
                # The options are the boot loader's: the archive is the same.
                if wanted.metric == "initramfs":
                    break


def _runs(samples: Measured, wanted: Ours, profile: str, configuration: str, line: str) -> Sequence[Sample]:
    """The runs of the cell with ``profile``, ``configuration`` and the kernel command line ``line``. A stock boot (the
    distribution's own boot) may have been measured only with the stock command line, which has no additional options.
    When ``line`` is another command line, these runs of the stock boot are used, too.
    """
    stands = configuration in STOCK_CONFIGURATIONS and len(wanted.configurations) > 1
    for each in (line, "stock") if stands else (line,):
        for cell, runs in samples.items():
            named = (profile_name(cell.profile), cell.configuration, cell.command_line, cell.size)
            # The paper has no boot loader.
            if named == (profile, configuration, each, wanted.size) and runs and not cell.firmware:
                return runs
    return ()


Sides = Sequence[Sequence[Sample]]


def _medians(sides: Sides, metric: Metric) -> list[int] | None:
    found = [summarise(side, metric).median for side in sides]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _times(sides: Sides, metric: Metric) -> str:
    medians = _medians(sides, metric)
    if medians is None:
        return "censored"
    text = " → ".join(f"{each / 1e9:.2f} s" for each in medians)
    # As in the paper's statement about Minimal, the first time is given as a multiple of the last.
    return f"{text} ({medians[0] / medians[-1]:.2f} times)" if len(medians) > 1 and medians[-1] else text


def _order(sides: Sides) -> str:
    """A text that says whether our medians have the same order as in the paper. The text says this for T_app (from the
    start of the guest's kernel until ready) and for T_total (from the launch until ready). T_total includes the fetch
    of kernel and initramfs.
    """
    return "; ".join(
        f"{name} {_falling(sides, metric)}" for name, metric in (("T_app", T_APP), ("T_total", T_TOTAL))
    )


def _falling(sides: Sides, metric: Metric) -> str:
    medians = _medians(sides, metric)
    if medians is None:
        return "censored"
    text = f"{' / '.join(f'{each / 1e9:.2f}' for each in medians)} s"
    if any(slow <= fast for slow, fast in itertools.pairwise(medians)):
        return f"{text}, another order"
    # For runs that differ by chance, only the medians are given, because three runs are too few for a test.
    virtual = sides[0][0].cell.clock == "virtual"
    if virtual and not all(
        claim_faster(fast, slow, metric).holds for slow, fast in itertools.pairwise(sides)
    ):
        return f"{text}, the same order, but not with the overlap added"
    return f"{text}, the same order"


def _saved(sides: Sides) -> str:
    medians = _medians(sides, T_APP)
    return "censored" if medians is None else f"{1 - medians[-1] / medians[0]:.0%}"


def _reads(sides: Sides) -> str:
    medians = _medians(sides, lambda sample: sample.guest.requests)
    if not medians or not medians[-1]:
        return ""
    return f"{medians[0]} → {medians[-1]} requests ({medians[0] / medians[-1]:.1f} times)"


def _initramfs(sides: Sides) -> str:
    medians = _medians(sides, lambda sample: sample.initramfs_bytes)
    return "" if not medians else f"{medians[-1] / _MEGABYTE:.1f} MB"


_METRICS: Mapping[str, Callable[[Sides], str]] = {
    "t_app": lambda sides: _times(sides, T_APP),
    "t_total": lambda sides: _times(sides, T_TOTAL),
    "saved": _saved,
    "reads": _reads,
    "initramfs": _initramfs,
    "order": _order,
}
