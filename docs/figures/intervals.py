"""Draws docs/figures/intervals.svg: every interval of docs/users/measuring.md, on both kinds of clocks.

.venv/bin/python docs/figures/intervals.py [FILE]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, PAPER = "#1c1d1e", "#fdfdfc"
GREY, BLUE, GREEN, PINK, DARK = "#d8d8d8", "#a9d3ec", "#8fd0bb", "#e3b5cf", "#9a9a9a"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "quickstart",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
}
# Not to scale: launch, fetched, uptime 0, address up (beacon), ready.
LAUNCH, FETCHED, ZERO, BEACON, READY = 0.0, 1.7, 3.6, 6.4, 9.4


def drawn() -> str:
    """The picture as SVG: the same bytes each time."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 7.2), facecolor=PAPER, layout="constrained")
        real, virtual = figure.subplots(2, 1, height_ratios=(1, 1.1))
        _real(real)
        _virtual(virtual)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue().decode()


def _real(axes: Axes) -> None:
    instants = {
        LAUNCH: "T_launch",
        FETCHED: "machine starts",
        ZERO: "uptime 0",
        BEACON: "T_beacon\naddress is up",
        READY: "T_probe\nready",
    }
    _frame(axes, "wall and kvm: the client's clock", instants, 4)
    _bar(axes, 0, LAUNCH, FETCHED, "fetch_ns", GREY)
    _bar(axes, 0, FETCHED, ZERO, "before_kernel_ns:\nQEMU, firmware", DARK)
    _bar(axes, 0, ZERO, BEACON, "kernel, init", BLUE)
    _bar(axes, 0, BEACON, READY, "application", GREEN)
    _span(axes, 1, ZERO, BEACON, "uptime_ns, by the guest's clock")
    _span(axes, 2, LAUNCH, ZERO, "T_pr = (T_beacon - T_launch) - uptime")
    _span(axes, 2, ZERO, READY, "T_app = (T_probe - T_launch) - T_pr")
    _span(axes, 3, LAUNCH, READY, "T_total = T_probe - T_launch")


def _virtual(axes: Axes) -> None:
    instants = {
        LAUNCH: "launch",
        FETCHED: "machine starts",
        ZERO: "uptime 0",
        BEACON: "beacon\naddress is up",
        READY: "ready",
    }
    _frame(axes, "virtual: the storage model's time, then the guest's clock", instants, 5)
    _bar(axes, 0, LAUNCH, FETCHED, "fetch_ns,\nby the model", GREY)
    _bar(axes, 0, FETCHED, ZERO, "before_kernel_ns:\ntime stamp counter", DARK)
    _bar(axes, 0, ZERO, BEACON, "uptime_ns", BLUE)
    _bar(axes, 0, BEACON, READY, "application", GREEN)
    # The guest waits for some requests (charged), and computes while others are in flight (charged too little).
    for begin, end in ((4.3, 4.8), (5.5, 6.0), (7.2, 8.3)):
        _bar(axes, 1, begin, end, "", PINK)
    for begin, end in ((4.3, 4.55), (5.5, 6.0), (7.2, 7.6)):
        _bar(axes, 1, begin, end, "", DARK)
    axes.text(
        ZERO - 0.1,
        -1,
        "root requests in flight: dark while\nthe guest waits, else overlap_ns",
        ha="right",
        va="center",
        fontsize=8,
    )
    axes.text(8.38, -1, "overlap_ns", va="center", fontsize=8)
    _span(axes, 2, LAUNCH, ZERO, "T_pr = fetch_ns + before_kernel_ns")
    _span(axes, 2, ZERO, READY, "T_app = ready_uptime_ns")
    _span(axes, 3, LAUNCH, READY, "T_total = T_pr + T_app")
    _span(axes, 4, ZERO, READY, "what a claim takes of the one called faster: T_app + overlap_ns")
    _bar(axes, 4, READY, READY + 0.95, "+ overlap", PINK)


def _frame(axes: Axes, title: str, instants: dict[float, str], rows: int) -> None:
    axes.set_xlim(-0.15, READY + 1.1)
    axes.set_ylim(-rows + 0.4, 1.75)
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    for at, name in instants.items():
        axes.plot([at, at], [-rows + 0.5, 0.75], color=INK, linewidth=0.6, linestyle=":", zorder=0)
        axes.text(at, 0.85, name, ha="center" if at else "left", va="bottom", fontsize=8.5, color=INK)


def _bar(axes: Axes, row: int, begin: float, end: float, words: str, colour: str) -> None:
    axes.barh(-row, end - begin, left=begin, height=0.62, color=colour, edgecolor=INK, linewidth=0.6)
    axes.text((begin + end) / 2, -row, words, ha="center", va="center", fontsize=8, color=INK)


def _span(axes: Axes, row: int, begin: float, end: float, words: str) -> None:
    arrow = {"arrowstyle": "<->", "color": INK, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (begin, -row), (end, -row), arrowprops=arrow)
    if words:
        above = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
        at = (begin + end) / 2
        axes.text(at, -row + 0.14, words, ha="center", va="bottom", fontsize=8.5, color=INK, bbox=above)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    target.write_text(drawn(), encoding="utf-8")
