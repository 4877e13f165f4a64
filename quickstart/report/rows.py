"""Write numbers of a bench as texts for the tables of a report. Make the rows of the table about boot loaders."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quickstart.measure.results import Cell, Sample
from quickstart.measure.statistics import Metric, summarise
from quickstart.model import MIB

NONE = "-"


@dataclass(frozen=True)
class Row:
    """One row of a table of the page, as texts. ``head`` has the first columns, such as the application and the
    configuration. ``values`` has a text for each further column.
    """

    head: tuple[str, ...]
    values: tuple[str, ...]
    censored: bool


def before_the_kernel(cells: Iterable[Cell]) -> str:
    """What T_pr is: a machine with a boot loader of its own is provisioned before its loader reads anything."""
    words = {bool(cell.firmware): "boot loader" if cell.firmware else "provisioning" for cell in cells}
    return " or ".join(words[each] for each in sorted(words))


def begin_of(cells: Iterable[Cell]) -> str:
    """The moment at which the times of ``cells`` begin. For disks that boot by themselves, the firmware's time before
    this moment does not count.
    """
    return "the boot loader's first read" if all(cell.firmware for cell in cells) else "launch"


def seconds(ns: int | None) -> str:
    return NONE if ns is None else f"{ns / 1e9:.2f} s"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value}"


def mib(size_bytes: int | None) -> str:
    return NONE if size_bytes is None else f"{size_bytes / MIB:.1f}"


def head(cell: Cell) -> tuple[str, ...]:
    return cell.machine, cell.called, cell.command_line


def loaders(samples: Mapping[Cell, Sequence[Sample]]) -> Iterator[Row]:
    """The rows of the table about boot loaders, with medians. Only disks that boot by themselves have a row."""
    for cell, runs in samples.items():
        if not cell.firmware:
            continue

        def middle(metric: Metric, runs: Sequence[Sample] = runs) -> int | None:
            return summarise(runs, metric).median

        values = (
            seconds(middle(operator.attrgetter("firmware_ns"))),
            count(middle(lambda sample: sample.loader.requests)),
            mib(middle(lambda sample: sample.loader.read_bytes)),
            seconds(middle(operator.attrgetter("fetch_ns"))),
            seconds(middle(operator.attrgetter("before_kernel_ns"))),
            seconds(middle(operator.attrgetter("t_pr_ns"))),
        )
        yield Row(head(cell), values, middle(operator.attrgetter("t_pr_ns")) is None)
