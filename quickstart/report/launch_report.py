"""Report on launches of several machines from one volume (docs/users/measuring.md). The report consists of a table,
figures and sentences. T_total is the time from the launch until ready. For each number of machines, the report has two
values of T_total: p50, the value of the median machine, and p100, the value of the last machine.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quickstart.measure.patterns import REAL, Launched, launched
from quickstart.measure.results import (
    CLOCKS,
    CONFIGURATIONS,
    LINE_NAMES,
    PATTERNS,
    SIZES,
    STORAGES,
    Cell,
    Results,
    Sample,
)
from quickstart.measure.statistics import Metric, by_cell
from quickstart.report.figures import COLOURS, INK, PAPER, Drawn, drawn, style
from quickstart.report.wholefile import distinct, file_name

T_TOTAL: Metric = operator.attrgetter("t_total_ns")
# The guest's uptime 0 divides T_pr from T_app. A guest that gets too little processor time does not know its uptime
# well (measuring.md).
_FETCH: Metric = operator.attrgetter("fetch_ns")
_NONE = "-"
# Configurations of one colour are told apart by these.
_MARKERS = "osD^vP*X"
# A panel in inches, and how many stand side by side.
_WIDTH_IN, _HEIGHT_IN, _COLUMNS = 3.4, 3.0, 3

Measured = Mapping[Cell, Sequence[Sample]]
# (clock, storage, size, profile): what one figure is of.
_Place = tuple[str, str, str, str]


@dataclass(frozen=True)
class LaunchRow:
    """A row of the report's table of launches. ``head`` has the texts of the columns application, configuration,
    command line, volume and clock, and launch. ``values`` has the numbers of the other columns, as texts.
    """

    head: tuple[str, ...]
    values: tuple[str, ...]
    censored: bool


def several(results: Results) -> dict[Cell, tuple[Sample, ...]]:
    """The cells of the bench that launch several machines, with their samples. The cells are sorted by clock, volume,
    machine size, application, launch pattern, number of machines, and configuration.
    """
    found = by_cell(results.samples)
    cells = [planned.cell for planned in results.plan if planned.cell.instances > 1]
    return {cell: found.get(cell, ()) for cell in sorted(cells, key=_order)}


def _order(cell: Cell) -> tuple[object, ...]:
    return (
        *(CLOCKS.index(cell.clock), STORAGES.index(cell.storage), SIZES.index(cell.size), cell.profile),
        *(PATTERNS.index(cell.pattern), cell.stagger_ms, cell.instances),
        *(CONFIGURATIONS.index(cell.configuration), cell.delivery, cell.payload, cell.command_line),
    )


def _alone(cell: Cell) -> Cell:
    """The cell that launches a single machine and is otherwise like ``cell``."""
    return replace(cell, pattern="single", instances=1, stagger_ms=0)


def table(results: Results) -> tuple[LaunchRow, ...]:
    """The rows of the report's table of launches of several machines. The page's template has the headings."""
    singles = by_cell(results.samples)
    return tuple(_row(cell, runs, singles.get(_alone(cell), ())) for cell, runs in several(results).items())


def _row(cell: Cell, runs: Sequence[Sample], alone: Sequence[Sample]) -> LaunchRow:
    total, fetch = launched(runs, T_TOTAL), launched(runs, _FETCH)
    one = launched(alone, T_TOTAL).p50
    head = (
        f"{cell.profile}, {cell.size}",
        cell.called,
        cell.command_line,
        f"{cell.storage}, {cell.clock}",
        cell.launched,
    )
    if not runs:
        return LaunchRow(head, ("not run", *[_NONE] * 7), censored=True)
    values = (
        str(total.launches),
        f"{total.machines - total.censored} of {total.machines}",
        _seconds(total.p50),
        _seconds(total.p100),
        _NONE if one is None or total.p50 is None else f"{total.p50 / one:.2f}",
        _seconds(fetch.p50),
        _seconds(launched(runs, _all_there_ns).p100),
        f"{runs[0].dilation_percent / REAL:g}",
    )
    return LaunchRow(head, values, total.p50 is None)


def _all_there_ns(sample: Sample) -> int:
    """The time in ns from the launch of the first machine until the machine of ``sample`` is ready."""
    return sample.launched_ns + sample.t_total_ns


def _seconds(time_ns: int | None) -> str:
    return "censored" if time_ns is None else f"{time_ns / 1e9:.2f} s"


def sentences(results: Results) -> tuple[str, ...]:
    """One sentence for each combination of clock, volume, machine size, application, configuration and command line.
    The sentence is about the largest launch with the pattern `burst`, which launches all machines at one moment.
    """
    found: dict[tuple[object, ...], tuple[Cell, Sequence[Sample]]] = {}
    for cell, runs in several(results).items():
        if cell.pattern == "burst" and runs:
            # The largest comes last.
            found[_place(cell), cell.called, cell.command_line] = cell, runs
    return tuple(_sentence(cell, runs) for cell, runs in found.values())


def _sentence(cell: Cell, runs: Sequence[Sample]) -> str:
    total = launched(runs, T_TOTAL)
    line = f" with {LINE_NAMES[cell.command_line]}" if cell.command_line in LINE_NAMES else ""
    last = "not all of them are" if total.p100 is None else f"the last is after {_seconds(total.p100)}"
    return (
        f"{cell.instances} machines at one moment from one volume ({cell.storage}, {cell.clock} clock), {cell.profile}, "
        f"{cell.called}{line}: the one in the middle is ready after {_seconds(total.p50)}, {last}."
    )


def figures(results: Results) -> tuple[Drawn, ...]:
    """One figure for each combination of clock, volume, machine size and application. A figure shows T_total, the time
    from the launch until ready, against the number of machines. The figure has a panel for each launch pattern, that
    is, for each way in which the machines are launched.
    """
    cells, singles = several(results), by_cell(results.samples)
    spelled = distinct(cell.profile for cell in cells)
    drawings = []
    for place in dict.fromkeys(_place(cell) for cell in cells):
        here = {cell: runs for cell, runs in cells.items() if _place(cell) == place}
        alone = {_alone(cell): singles.get(_alone(cell), ()) for cell in here}
        clock, storage, size, profile = place
        title = f"T_total against the number of machines: {profile}, {size}, {storage}, {clock} clock"
        text = "; ".join(f"{cell.called} {cell.launched}: {_words(runs)}" for cell, runs in here.items())
        name = file_name("launches", clock, storage, size, spelled[profile])
        with style():
            drawings.append(drawn(launch_figure(here, alone), name, title, text))
    return tuple(drawings)


def _place(cell: Cell) -> _Place:
    return cell.clock, cell.storage, cell.size, cell.profile


def _words(runs: Sequence[Sample]) -> str:
    total = launched(runs, T_TOTAL)
    return f"p50 {_seconds(total.p50)}, p100 {_seconds(total.p100)}" if runs else "not run"


def launch_figure(cells: Measured, alone: Measured) -> Figure:
    """The figure for ``cells``, which have the same clock, volume, machine size and application. ``alone`` has the
    corresponding cells that launch a single machine. The times of the cells ``alone`` are the first points of the
    curves.
    """
    panels = list(dict.fromkeys((cell.pattern, cell.stagger_ms) for cell in cells))
    kinds = list(dict.fromkeys(_alone(cell) for cell in sorted(cells, key=_kind_order)))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (_WIDTH_IN * columns + 0.8, _HEIGHT_IN * rows + 0.9)
    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    lines = dict(zip(kinds, _looks(kinds), strict=True))
    counts = sorted({cell.instances for cell in cells} | {1 for runs in alone.values() if runs})
    for axes in grid:
        axes.set_axis_off()
    for axes, panel in zip(grid, panels, strict=False):
        axes.set_axis_on()
        for kind in kinds:
            points = {
                cell.instances: launched(runs, T_TOTAL)
                for cell, runs in ((kind, alone[kind]), *cells.items())
                if runs and _alone(cell) == kind and (cell.pattern, cell.stagger_ms) in (panel, ("single", 0))
            }
            _curves(axes, points, lines[kind])
        _furnish(axes, _title(panel), counts)
    ends = [
        found.p100 or found.p50 or 0
        for found in (launched(runs, T_TOTAL) for runs in (*cells.values(), *alone.values()))
    ]
    grid[0].set_ylim(0, max(ends) / 1e9 * 1.1 or 1)
    figure.supxlabel("machines launched from one volume", fontsize=8.5)
    figure.supylabel("seconds from launch to ready", fontsize=8.5)
    _legend(figure, lines, any(each.censored for runs in cells.values() for each in runs))
    return figure


def _kind_order(cell: Cell) -> tuple[object, ...]:
    return (CONFIGURATIONS.index(cell.configuration), cell.delivery, cell.payload, cell.command_line)


def _looks(kinds: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """The style of the curve of each of ``kinds``, in the same order. Curves with the same colour have different
    markers.
    """
    seen: dict[str, int] = {}
    for kind in kinds:
        number = seen[kind.configuration] = seen.get(kind.configuration, -1) + 1
        yield {
            "color": COLOURS[kind.configuration],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linewidth": 1.4,
            "markersize": 5,
        }


def _curves(axes: Axes, points: Mapping[int, Launched], look: Mapping[str, Any]) -> None:
    """Draw p50 as a solid line, and p100 as a dashed line with hollow markers. A value is censored when too few of the
    machines became ready. Draw a censored value as a cross at the top.
    """
    for name, more in (("p50", {}), ("p100", {"linestyle": "--", "markerfacecolor": PAPER})):
        known = {
            count: time_ns / 1e9
            for count, found in sorted(points.items())
            if (time_ns := getattr(found, name)) is not None
        }
        axes.plot(list(known), list(known.values()), **{**look, **more})
        lost = [count for count, found in points.items() if getattr(found, name) is None]
        axes.plot(
            lost,
            [0.97] * len(lost),
            transform=axes.get_xaxis_transform(),
            color=look["color"],
            marker="x",
            linestyle="",
        )


def _title(panel: tuple[str, int]) -> str:
    pattern, stagger_ms = panel
    return {
        "one-by-one": "one by one",
        "staggered": f"staggered: one every {stagger_ms} ms",
        "burst": "burst",
    }[pattern]


def _furnish(axes: Axes, title: str, counts: Sequence[int]) -> None:
    axes.set_facecolor(PAPER)
    axes.set_title(title, fontsize=9, fontweight="bold", loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlim(counts[0] * 0.85, counts[-1] * 1.18)
    axes.tick_params(axis="both", labelsize=8, labelbottom=True, labelleft=True)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.5)
    axes.set_axisbelow(True)


def _legend(figure: Figure, lines: Mapping[Cell, dict[str, Any]], censored: bool) -> None:
    handles = [
        Line2D(
            [],
            [],
            label=", ".join(word for word in (kind.called, LINE_NAMES.get(kind.command_line)) if word),
            **look,
        )
        for kind, look in lines.items()
    ]
    ink: dict[str, Any] = {"color": INK, "linewidth": 1.4, "marker": "o", "markersize": 5}
    handles.append(Line2D([], [], label="p50: the machine in the middle", **ink))
    handles.append(
        Line2D([], [], label="p100: the last", **{**ink, "linestyle": "--", "markerfacecolor": PAPER})
    )
    if censored:
        handles.append(Line2D([], [], label="censored", color=INK, marker="x", linestyle=""))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8, handlelength=3.2
    )
