"""The figures of a report (matplotlib, no display): the same results make the same bytes.

`times` is the paper's Figure 1: provisioning below, application above. `timeline` shows where the time goes.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from quickstart.measure.results import CONFIGURATIONS, Cell, Phase, Sample
from quickstart.measure.statistics import demand_one_clock, summarise

# Ink and paper are colours that nothing else has, so that a page can put its own in their place.
INK, PAPER = "#1c1d1e", "#fdfdfc"
# Okabe and Ito's colours, which colour-blind readers can tell apart, and that show on white and on black.
_COLOURS = dict(zip(CONFIGURATIONS, ("#999999", "#56b4e9", "#e69f00", "#cc79a7", "#009e73"), strict=True))
_PHASE_COLOURS: Mapping[str, str] = {
    "before kernel": "#bbbbbb",
    "kernel": "#999999",
    "initramfs": "#e69f00",
    "systemd": "#d55e00",
    "init": "#56b4e9",
    "modules": "#7a93c8",
    "network": "#cc79a7",
    "root mount": "#8c6d31",
    "application start": "#009e73",
    "ready": "#66c2a5",
}
_OTHER_COLOUR = "#b3a100"
_PR_COLOUR = "#d0d0d0"
_OURS_HATCH = "///"
# rc_context wants a dict whose keys are matplotlib's own literals.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "quickstart",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_BAR_IN = 0.34
_ROW_BARS = 28
# Fewer bars leave room beside them instead of growing.
_LEAST_BARS = 9
_PANEL_IN = 3.6


@dataclass(frozen=True)
class Drawn:
    """A figure as bytes of both kinds; ``title`` says what is in it, ``text`` in one sentence what to see."""

    name: str
    title: str
    text: str
    svg: str
    png: bytes


def times(name: str, samples: Mapping[Cell, Sequence[Sample]], title: str) -> Drawn:
    """Bars of T_pr (below) and T_app (above) by their medians, in seconds; one group for each application and size.

    ``samples`` has all planned cells of one clock and one storage model, with no sample where none was run. A cell whose median is
    not known shows as censored or as not run, never as a bar. Raises MixedClocksError for several clocks.
    """
    demand_one_clock(samples)
    text = "; ".join(_bar_words(cell, samples[cell]) for cell in sorted(samples, key=_bar_order))
    with style():
        return _drawn(times_figure(samples), name, title, text)


def style() -> AbstractContextManager[None]:
    """The settings under which figures are made and drawn."""
    return mpl.rc_context(_STYLE)


def times_figure(samples: Mapping[Cell, Sequence[Sample]]) -> Figure:
    """What `times` draws."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(samples, key=_bar_order):
        groups.setdefault((cell.profile, cell.size), []).append(cell)
    rows = _rows(list(groups.items()))
    widest = max(_LEAST_BARS, *(sum(len(cells) + 1 for _, cells in row) for row in rows))
    inches = (max(7.2, 1.2 + _BAR_IN * widest), 0.9 + _PANEL_IN * len(rows))
    figure = Figure(figsize=inches, facecolor=PAPER, layout="constrained")
    panels = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
    for axes, row in zip(panels, rows, strict=True):
        _panel(axes, row, samples, widest)
    tops = [patch.get_y() + patch.get_height() for axes in panels for patch in axes.patches]
    panels[0].set_ylim(0, max(tops, default=1.0) * 1.12)
    figure.legend(
        handles=_bar_legend(samples),
        loc="outside upper left",
        ncols=3 if inches[0] < 9 else 4,
        frameon=False,
        fontsize=8,
    )
    return figure


def _rows(
    groups: Sequence[tuple[tuple[str, str], list[Cell]]],
) -> list[list[tuple[tuple[str, str], list[Cell]]]]:
    """The groups in rows that stay readable on paper."""
    rows: list[list[tuple[tuple[str, str], list[Cell]]]] = [[]]
    for group in groups:
        if rows[-1] and sum(len(cells) + 1 for _, cells in rows[-1]) + len(group[1]) > _ROW_BARS:
            rows.append([])
        rows[-1].append(group)
    return rows


def _bar_order(cell: Cell) -> tuple[str, bool, int, bool]:
    return (
        cell.profile,
        cell.size != "small",
        CONFIGURATIONS.index(cell.configuration),
        cell.command_line != "stock",
    )


def _panel(
    axes: Axes,
    row: Sequence[tuple[tuple[str, str], list[Cell]]],
    samples: Mapping[Cell, Sequence[Sample]],
    widest: int,
) -> None:
    axes.set_facecolor(PAPER)
    places: list[float] = []
    labels: list[str] = []
    at = 0.0
    for (profile, size), cells in row:
        middle = at + (len(cells) - 1) / 2
        axes.text(
            middle,
            1.03,
            f"{profile}, {size}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            fontweight="bold",
        )
        for cell in cells:
            _bar(axes, at, cell, samples[cell])
            places.append(at)
            labels.append(
                cell.configuration if cell.command_line == "stock" else f"{cell.configuration}, ours"
            )
            at += 1
        at += 1
    axes.set_xticks(places, labels, rotation=90, fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.8, max(widest - 1.2, at - 1.2))
    axes.set_ylabel("seconds (median)")
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.5)
    axes.set_axisbelow(True)


def _bar(axes: Axes, at: float, cell: Cell, runs: Sequence[Sample]) -> None:
    app = summarise(runs, lambda sample: sample.t_app_ns)
    provisioning = summarise(runs, lambda sample: sample.t_pr_ns)
    if app.median is None or provisioning.median is None:
        words = f"censored {app.censored} of {len(runs)}" if runs else "not run"
        axes.text(
            at,
            0.02,
            words,
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=7.5,
            style="italic",
        )
        return
    below_s, above_s = provisioning.median / 1e9, app.median / 1e9
    hatch = "" if cell.command_line == "stock" else _OURS_HATCH
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6, "width": 0.8}
    axes.bar(at, below_s, color=_PR_COLOUR, **edge)
    axes.bar(at, above_s, bottom=below_s, color=_COLOURS[cell.configuration], hatch=hatch, **edge)
    number = f"{below_s + above_s:.1f}" + (f"\n({app.censored} c.)" if app.censored else "")
    axes.annotate(
        number,
        (at, below_s + above_s),
        (0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7.5,
    )


def _bar_legend(samples: Mapping[Cell, Sequence[Sample]]) -> list[Patch]:
    shown = [name for name in CONFIGURATIONS if any(cell.configuration == name for cell in samples)]
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
    handles = [Patch(facecolor=_PR_COLOUR, label="T_pr, provisioning (below)", **edge)]
    handles += [Patch(facecolor=_COLOURS[name], label=f"T_app, {name}", **edge) for name in shown]
    if any(cell.command_line == "ours" for cell in samples):
        handles.append(Patch(facecolor=PAPER, hatch=_OURS_HATCH, label="our kernel command line", **edge))
    if any(each.censored for runs in samples.values() for each in runs):
        handles.append(Patch(alpha=0, label="(1 c.): 1 run censored"))
    return handles


def _bar_words(cell: Cell, runs: Sequence[Sample]) -> str:
    total = summarise(runs, lambda sample: sample.t_total_ns)
    value = "not run" if not runs else "censored" if total.median is None else f"{total.median / 1e9:.2f} s"
    return f"{cell.profile} {cell.size} {cell.configuration} {cell.command_line}: {value}"


def timeline(name: str, rows: Sequence[tuple[str, Sample]], title: str) -> Drawn:
    """Where the time of one run goes, in seconds of the guest's uptime; one row for each label and run.

    Phases that run beside others are in a lane of their own below them. Raises MixedClocksError for several clocks.
    """
    demand_one_clock(sample.cell for _, sample in rows)
    text = "; ".join(f"{label}: ready at {sample.ready_uptime_ns / 1e9:.2f} s" for label, sample in rows)
    with style():
        return _drawn(timeline_figure(rows), name, title, text)


def timeline_figure(rows: Sequence[tuple[str, Sample]]) -> Figure:
    """What `timeline` draws."""
    begin_s = min((phase.begin_ns for _, sample in rows for phase in sample.phases), default=0) / 1e9
    end_s = max(sample.ready_uptime_ns for _, sample in rows) / 1e9
    numbers, lanes = phase_numbers(rows), [_lanes(sample.phases) for _, sample in rows]
    height = sum(max(len(each), 1) + 0.6 for each in lanes)
    figure = Figure(figsize=(9.6, 1.5 + 0.32 * height), facecolor=PAPER, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(PAPER)
    at, ticks = 0.0, []
    for each, (_, sample) in zip(lanes, rows, strict=True):
        ticks.append(at)
        for lane, phases in enumerate(each):
            for phase in phases:
                _phase(axes, at + lane, phase, numbers[phase.name], end_s - begin_s)
        ready_s = sample.ready_uptime_ns / 1e9
        words = f"ready {ready_s:.2f} s"
        axes.annotate(words, (ready_s, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
        at += max(len(each), 1) + 0.6
    axes.set_yticks(ticks, [label for label, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(at - 0.9, -0.8)
    axes.set_xlim(begin_s, end_s + 0.14 * (end_s - begin_s))
    axes.set_xlabel("guest's uptime in seconds; the machine starts before 0")
    axes.axvline(0, color=INK, linewidth=0.6, linestyle=":")
    legend = [_phase_patch(phase, f"{number} {phase}") for phase, number in numbers.items()]
    figure.legend(handles=legend, loc="outside upper left", ncols=5, frameon=False, fontsize=8)
    return figure


def _phase_patch(name: str, label: str) -> Patch:
    colour = _PHASE_COLOURS.get(name, _OTHER_COLOUR)
    return Patch(facecolor=colour, edgecolor=INK, linewidth=0.6, label=label)


def _lanes(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Phases that follow each other in the first lane; one that begins before its lane is free in the next."""
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
    """The number that a phase has in figure and table."""
    names = {phase.name: None for _, sample in rows for phase in sample.phases}
    known = [name for name in _PHASE_COLOURS if name in names]
    return {
        name: index for index, name in enumerate([*known, *(n for n in names if n not in known)], start=1)
    }


def _phase(axes: Axes, at: float, phase: Phase, number: int, span_s: float) -> None:
    begin_s, length_s = phase.begin_ns / 1e9, (phase.end_ns - phase.begin_ns) / 1e9
    colour = _PHASE_COLOURS.get(phase.name, _OTHER_COLOUR)
    axes.barh(at, length_s, left=begin_s, height=0.9, color=colour, edgecolor=INK, linewidth=0.6)
    # A narrower bar has no room for its number; the table beneath has its times.
    if length_s > 0.018 * span_s:
        axes.text(
            begin_s + length_s / 2, at, str(number), ha="center", va="center", fontsize=8, color="black"
        )


def _drawn(figure: Figure, name: str, title: str, text: str) -> Drawn:
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Drawn(name, title, text, svg.getvalue().decode(), png.getvalue())


def inline(drawn: Drawn) -> str:
    """The SVG for a page that has other figures: ink and paper as the page's, ids of its own, said to be a picture."""
    svg = drawn.svg[drawn.svg.index("<svg ") :]
    svg = svg.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    for before in ('id="', "url(#", 'href="#'):
        svg = re.sub(rf"(?<![a-z]){re.escape(before)}", f"{before}{drawn.name}-", svg)
    words = f"<title>{html.escape(drawn.title)}</title><desc>{html.escape(drawn.text)}</desc>"
    return re.sub(r"<svg ([^>]*)>", rf'<svg role="img" \1>{words}', svg, count=1)
