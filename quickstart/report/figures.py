"""Draw the figures of a report (with matplotlib, without a display). The same results always give the same files.

The function `times` draws horizontal bars of total times, a figure like Figure 1 of the paper. The function `timeline`
draws how long each phase of a boot takes.
"""

from __future__ import annotations

import html
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from quickstart.measure.drawing import dots_per_inch, styled
from quickstart.measure.phases import all_phases
from quickstart.measure.results import (
    COMMAND_LINES,
    CONFIGURATIONS,
    DELIVERIES,
    LINE_NAMES,
    PAYLOADS,
    SIZES,
    STORAGES,
    Cell,
    Phase,
    Sample,
    on_clock,
    words_of,
)
from quickstart.measure.statistics import demand_one_clock, summarise
from quickstart.parse.printable import LINES, shown
from quickstart.report.comparable import profile_name
from quickstart.report.rows import before_the_kernel, begin_of

# Nothing else has the colours of ink and paper, so a page can replace them by its own colours.
INK, PAPER = "#1c1d1e", "#fdfdfc"
# Okabe and Ito's colours, which colour-blind readers can tell apart, and which are visible on white and on black.
COLOURS = dict(zip(CONFIGURATIONS, ("#999999", "#56b4e9", "#e69f00", "#cc79a7", "#009e73"), strict=True))
_PHASE_COLOURS: Mapping[str, str] = {
    "firmware": "#f4f4f2",
    "fetch": "#e4e4e4",
    "loader": "#bbbbbb",
    "before kernel": "#bbbbbb",
    "kernel": "#999999",
    "initramfs": "#e69f00",
    "systemd": "#d55e00",
    "init": "#56b4e9",
    "modules": "#7a93c8",
    "network": "#cc79a7",
    "root mount": "#8c6d31",
    "integrity": "#f0e442",
    "enter root": "#c49c5a",
    "application start": "#009e73",
    "ready": "#66c2a5",
}
_OTHER_COLOUR, _PR_COLOUR = "#b3a100", "#d0d0d0"
_HATCHES = {"stock": "", "boot": "...", "ours": "///"}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "quickstart",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    # A dollar sign is one: names and phases come from anywhere.
    "text.parse_math": False,
    "hatch.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# Sizes in inches: a bar with its space, a panel's headings, the names of the configurations, and a panel's width.
_BAR_IN, _HEADING_IN, _NAMES_IN = 0.19, 0.62, 1.1
_PANEL_IN, _SINGLE_IN = 2.5, 5.6
_COLUMNS = 3
# Between the bars of two configurations, in bars.
_GAP = 0.5
# In a timeline, in rows: the bar, and one of what runs beside it. Rows shorter than this share of the longest are enlarged.
_LANE, _BESIDE = 0.56, 0.2
_SHORT = 0.45
# The longest text of a figure in characters.
_TEXT_MAX = 120


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure as SVG and PNG. ``title`` is the title of the figure, and ``text`` describes its content in words."""

    name: str
    title: str
    text: str
    svg: str
    png: bytes


def times(name: str, samples: Mapping[Cell, Sequence[Sample]], title: str) -> Drawn:
    """A figure with bars of the median T_pr (launch to kernel start) and T_app (kernel start to ready) in seconds. All
    bars have the same scale. There is a row for each application and machine size, and a column for each storage model.

    ``samples`` has all planned cells of one clock. A cell that was not run has no samples. A cell without a median has
    the text "censored" or "not run" in place of a bar. Raises MixedClocksError for cells of several clocks.
    """
    demand_one_clock(samples)
    text = "; ".join(f"{words_of(cell)}: {_total_words(samples[cell])}" for cell in samples)
    with style():
        return drawn(times_figure(samples), name, title, text)


def style() -> AbstractContextManager[None]:
    """A context in which matplotlib has our settings. Make and draw figures within this context."""
    return styled(_STYLE)


def times_figure(samples: Mapping[Cell, Sequence[Sample]]) -> Figure:
    """The figure that the function `times` draws, as an object of matplotlib."""
    rows = _rows(samples)
    columns = max(len(row.storages) for row in rows)
    heights = [_HEADING_IN + _BAR_IN * row.places[-1] + _BAR_IN for row in rows]
    width = _NAMES_IN + (_SINGLE_IN if columns == 1 else _PANEL_IN * columns)
    figure = Figure(figsize=(width, 0.5 + sum(heights)), facecolor=PAPER, layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True, height_ratios=heights)
    ends_s = []
    for row, panels in zip(rows, grid, strict=True):
        for axes in panels[len(row.storages) :]:
            axes.set_axis_off()
        for axes, storage in zip(panels, row.storages, strict=False):
            ends_s += [
                _bar(axes, at, cell, samples.get(cell))
                for at, cell in zip(row.places, row.cells(storage), strict=True)
            ]
            _furnish(axes, row, storage, first=axes is panels[0])
    grid[0, 0].set_xlim(0, max(ends_s, default=0) * 1.16 or 1)
    clock = next(iter(samples)).clock
    figure.supxlabel(
        f"seconds from {begin_of(samples)} to ready: the first correct answer (median, {on_clock(clock)})",
        fontsize=8.5,
    )
    legend = _bar_legend(samples)
    figure.legend(
        handles=list(legend.values()),
        labels=list(legend),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside upper left",
        ncols=4 if columns == _COLUMNS else 2,
        frameon=False,
        fontsize=8,
        handlelength=3,
    )
    return figure


@dataclass(frozen=True)
class _Row:
    """A row of panels for one application and machine size. Each of ``storages`` has a panel with the same ``bars``."""

    one: Cell
    storages: tuple[str, ...]
    bars: tuple[tuple[str, str, str, str], ...]

    @property
    def places(self) -> tuple[float, ...]:
        """The vertical position of each bar. The bars of one configuration are close together."""
        new = [before[:3] != bar[:3] for before, bar in itertools.pairwise(self.bars)]
        return tuple(itertools.accumulate((1 + _GAP * each for each in new), initial=0.0))

    def cells(self, storage: str) -> tuple[Cell, ...]:
        return tuple(
            replace(
                self.one,
                storage=storage,
                configuration=name,
                delivery=delivery,
                payload=payload,
                command_line=line,
            )
            for name, delivery, payload, line in self.bars
        )


def _rows(samples: Mapping[Cell, Sequence[Sample]]) -> list[_Row]:
    rows = []
    storages = [each for each in STORAGES if any(cell.storage == each for cell in samples)]
    machines = dict.fromkeys(cell.place for cell in samples)
    for place in sorted(machines, key=lambda each: (each[0], SIZES.index(each[1]), each[2])):
        here = [cell for cell in samples if cell.place == place]
        found = {(cell.configuration, cell.delivery, cell.payload, cell.command_line) for cell in here}
        known = itertools.product(CONFIGURATIONS, ("", *DELIVERIES), ("", *PAYLOADS), COMMAND_LINES)
        bars = tuple(each for each in known if each in found)
        rows += [
            _Row(here[0], tuple(storages[begin : begin + _COLUMNS]), bars)
            for begin in range(0, len(storages), _COLUMNS)
        ]
    return rows


def _furnish(axes: Axes, row: _Row, storage: str, *, first: bool) -> None:
    axes.set_facecolor(PAPER)
    axes.set_title(
        f"{replace(row.one, profile=profile_name(row.one.profile)).machine}, {storage}",
        fontsize=9,
        fontweight="bold",
        loc="left",
    )
    names: dict[str, list[float]] = {}
    for at, cell in zip(row.places, row.cells(storage), strict=True):
        names.setdefault(cell.called, []).append(at)
    ticks = [sum(places) / len(places) for places in names.values()]
    axes.set_yticks(ticks, list(names) if first else [""] * len(names), fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8, labelbottom=True)
    axes.set_ylim(row.places[-1] + 0.7, -0.7)
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.5)
    axes.set_axisbelow(True)


def _bar(axes: Axes, at: float, cell: Cell, runs: Sequence[Sample] | None) -> float:
    """Draw the bar of ``cell`` at the position ``at``. Return the end of the bar in seconds."""
    words: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
    total = summarise(runs or (), lambda sample: sample.t_total_ns)
    provisioning = summarise(runs or (), lambda sample: sample.t_pr_ns)
    if total.median is None or provisioning.median is None or total.minimum is None or total.maximum is None:
        said = "not in the matrix" if runs is None else _total_words(runs)
        axes.annotate(said, (0, at), (3, 0), style="italic", **words)
        return 0.0
    # T_pr may be below 0, because the guest's uptime runs ahead at first (docs/users/times.md), but a bar may not.
    below_s, whole_s = max(0, provisioning.median) / 1e9, total.median / 1e9
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6, "height": 0.84}
    hatch = _HATCHES[cell.command_line]
    axes.barh(at, below_s, color=_PR_COLOUR, **edge)
    axes.barh(at, whole_s - below_s, left=below_s, color=COLOURS[cell.configuration], hatch=hatch, **edge)
    axes.plot(
        [total.minimum / 1e9, total.maximum / 1e9], [at, at], color=INK, linewidth=1.4, solid_capstyle="butt"
    )
    number = f"{whole_s:.2f}" + (f" ({total.censored} c.)" if total.censored else "")
    end_s = max(whole_s, total.maximum / 1e9)
    axes.annotate(number, (end_s, at), (3, 0), **words)
    return end_s


def _bar_legend(samples: Mapping[Cell, Sequence[Sample]]) -> dict[str, Any]:
    """matplotlib's artist for each entry of the legend. The keys of the result are the texts of the entries."""
    shown = [name for name in CONFIGURATIONS if any(cell.configuration == name for cell in samples)]
    used = [each for each in LINE_NAMES.items() if any(cell.command_line == each[0] for cell in samples)]
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
    found: dict[str, Any] = {
        f"T_pr: {before_the_kernel(samples)}": Patch(facecolor=_PR_COLOUR, **edge),
        "T_app: application": tuple(Patch(facecolor=COLOURS[name], **edge) for name in shown),
        "first … last of the runs": Line2D([], [], color=INK, linewidth=1.4),
        **{f"with {said}": Patch(facecolor=PAPER, hatch=_HATCHES[line], **edge) for line, said in used},
    }
    if any(each.censored for runs in samples.values() for each in runs):
        found["(1 c.): 1 run censored"] = Patch(alpha=0)
    return found


def _total_words(runs: Sequence[Sample]) -> str:
    if not runs:
        return "not run"
    total = summarise(runs, lambda sample: sample.t_total_ns)
    lost = f"censored: {total.censored} of {len(runs)}"
    return lost if total.median is None else f"{total.median / 1e9:.2f} s"


def timeline(name: str, rows: Sequence[tuple[str, Sample]], title: str) -> Drawn:
    """A timeline in seconds of the guest's uptime. ``rows`` has a label and a run for each row of the figure.

    A phase that overlaps another phase is a narrow bar below the other phase. Time without a known phase stays empty.
    Rows much shorter than the longest row are drawn again, enlarged. Raises MixedClocksError for several clocks.
    """
    demand_one_clock(sample.cell for _, sample in rows)
    text = "; ".join(f"{label}: ready at {sample.ready_uptime_ns / 1e9:.2f} s" for label, sample in rows)
    with style():
        return drawn(timeline_figure(rows), name, title, text)


def timeline_figure(rows: Sequence[tuple[str, Sample]]) -> Figure:
    """The figure that the function `timeline` draws, as an object of matplotlib."""
    longest_ns = max(sample.ready_uptime_ns for _, sample in rows)
    short = [row for row in rows if row[1].ready_uptime_ns < _SHORT * longest_ns]
    parts = [rows, short] if short else [rows]
    heights = [0.5 + 0.36 * len(part) for part in parts]
    figure = Figure(figsize=(9.6, 0.9 + sum(heights)), facecolor=PAPER, layout="constrained")
    numbers = phase_numbers(rows)
    panels = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, part in zip(panels, parts, strict=True):
        _timelines(axes, part, numbers)
    if short:
        panels[1].set_title("the short ones, enlarged", fontsize=9, loc="left")
    panels[-1].set_xlabel("guest's uptime in seconds; launch is before 0")
    legend = [_phase_patch(phase, f"{number} {phase}") for phase, number in numbers.items()]
    figure.legend(handles=legend, loc="outside upper left", ncols=6, frameon=False, fontsize=8)
    return figure


def _timelines(axes: Axes, rows: Sequence[tuple[str, Sample]], numbers: Mapping[str, int]) -> None:
    axes.set_facecolor(PAPER)
    begin_s = min(phase.begin_ns for _, sample in rows for phase in all_phases(sample)) / 1e9
    end_s = max(sample.ready_uptime_ns for _, sample in rows) / 1e9
    for at, (_, sample) in enumerate(rows):
        ready_s = sample.ready_uptime_ns / 1e9
        edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6, "linestyle": ":"}
        axes.barh(at, ready_s, height=_LANE, facecolor="none", **edge)
        for lane, phases in enumerate(_lanes(all_phases(sample))):
            for phase in phases:
                _phase(axes, at, lane, phase, numbers[phase.name], (begin_s, end_s))
        words = f"ready {ready_s:.2f} s"
        axes.annotate(words, (ready_s, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.3, -0.5)
    axes.set_xlim(begin_s - 0.01 * (end_s - begin_s), end_s + 0.14 * (end_s - begin_s))
    axes.axvline(0, color=INK, linewidth=0.6, linestyle=":")


def _phase_patch(name: str, label: str) -> Patch:
    colour = _PHASE_COLOURS.get(name, _OTHER_COLOUR)
    return Patch(facecolor=colour, edgecolor=INK, linewidth=0.6, label=label)


def _lanes(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Assign overlapping phases to lanes. Each phase gets the first lane that is free when the phase begins."""
    lanes: list[list[Phase]] = []
    # The network comes up beside everything else: its own lane in every configuration.
    for phase in sorted(phases, key=lambda each: (each.name == "network", each.begin_ns, each.end_ns)):
        free = [lane for lane in lanes if lane[-1].end_ns <= phase.begin_ns and lane[-1].name != "network"]
        if free and phase.name != "network":
            free[0].append(phase)
        else:
            lanes.append([phase])
    return lanes


def phase_numbers(rows: Sequence[tuple[str, Sample]]) -> dict[str, int]:
    """A number for each phase, which is the label of the phase in the figure and in the table below the figure."""
    names = {phase.name: None for _, sample in rows for phase in all_phases(sample)}
    known = [name for name in _PHASE_COLOURS if name in names]
    return {
        name: index for index, name in enumerate([*known, *(n for n in names if n not in known)], start=1)
    }


def _phase(axes: Axes, at: float, lane: int, phase: Phase, number: int, shown_s: tuple[float, float]) -> None:
    begin_s, length_s = phase.begin_ns / 1e9, (phase.end_ns - phase.begin_ns) / 1e9
    colour = _PHASE_COLOURS.get(phase.name, _OTHER_COLOUR)
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
    if lane:
        below = at + _LANE / 2 + (lane - 0.5) * _BESIDE
        axes.barh(below, length_s, left=begin_s, height=_BESIDE, color=colour, **edge)
        return
    axes.barh(at, length_s, left=begin_s, height=_LANE, color=colour, **edge)
    # A narrower bar, or one that ends elsewhere, has no room for its number. The table below has its times.
    if length_s > 0.02 * (shown_s[1] - shown_s[0]) and begin_s + length_s / 2 < shown_s[1]:
        axes.text(
            begin_s + length_s / 2, at, str(number), ha="center", va="center", fontsize=7.5, color="black"
        )


def drawn(figure: Figure, name: str, title: str, text: str) -> Drawn:
    """``figure`` as SVG and PNG. The caller must have made the figure in the context that `style` returns."""
    for each in figure.findobj(Text):
        if isinstance(each, Text):
            each.set_text(_short(each.get_text()))
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(
        png, format="png", dpi=dots_per_inch(*figure.get_size_inches()), metadata={"Software": None}
    )
    return Drawn(name=name, title=title, text=text, svg=svg.getvalue().decode(), png=png.getvalue())


def _short(text: str) -> str:
    """``text`` without characters that XML does not allow. A text of more than _TEXT_MAX characters is cut off."""
    return shown(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…", "\n")


def inline(drawn: Drawn) -> str:
    """The figure's SVG for a page with several figures, with the page's colours, unique ids and role="img"."""
    svg = drawn.svg[drawn.svg.index("<svg ") :]
    svg = svg.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    for before in ('id="', "url(#", 'href="#'):
        svg = re.sub(rf"(?<![a-z]){re.escape(before)}", f"{before}{drawn.name}-", svg)
    words = "".join(
        f"<{tag}>{html.escape(shown(text, LINES))}</{tag}>"
        for tag, text in (("title", drawn.title), ("desc", drawn.text))
    )
    # The words are no template of re's: they may have backslashes.
    return re.sub(r"<svg ([^>]*)>", lambda found: f'<svg role="img" {found[1]}>{words}', svg, count=1)
