"""The report as its reader gets it: one complete page, reproducible bytes, and figures in which nothing overlaps or is cut off."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from quickstart.errors import MixedClocksError
from quickstart.measure.results import COMMAND_LINES, CONFIGURATIONS, PAYLOADS, SIZES, Cell, Results, Sample
from quickstart.measure.statistics import by_cell
from quickstart.report import document
from quickstart.report.conclusions import headline
from quickstart.report.figures import style, timeline_figure, times, times_figure
from quickstart.report.report import write_report
from tests.unit.benchdata import CELL, censored, realistic, sample

PROFILES = ("apache", "mysql", "nginx")
VOID = {"meta", "br", "hr", "link", "img"}


class Page(HTMLParser):
    """What a page has: tags that are not closed, addresses, identifiers, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [
            v or "" for k, v in attributes if k in ("href", "src", "xlink:href", "action", "data")
        ]
        self.ids += [value or "" for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def written(directory: Path, results: Results, faults: tuple[str, ...] = ()) -> Page:
    write_report(results, faults, directory)
    return Page((directory / "report.html").read_text())


def said(page: Page) -> str:
    return " ".join(page.text.split())


@pytest.fixture(name="two_clocks", scope="module")
def _two_clocks() -> Results:
    return realistic(clocks=("virtual", "wall"), runs=7, holes=True)


def test_the_page_is_whole_and_alone(tmp_path: Path, two_clocks: Results) -> None:
    page = written(tmp_path, two_clocks)
    assert page.open == []
    assert "script" not in page.tags
    assert [each for each in page.addresses if not each.startswith("#")] == []
    assert {each[1:] for each in page.addresses} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"@import|url\((?!#)", text)


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(realistic(holes=True), (), tmp_path / name)
    files = [
        path.relative_to(tmp_path / "a") for path in sorted((tmp_path / "a").rglob("*")) if path.is_file()
    ]
    assert {path.suffix for path in files} == {".html", ".png", ".svg"}
    assert [
        path for path in files if (tmp_path / "a" / path).read_bytes() != (tmp_path / "b" / path).read_bytes()
    ] == []


def test_what_is_censored_or_missing_shows(tmp_path: Path, two_clocks: Results) -> None:
    text = said(written(tmp_path, two_clocks))
    assert "nginx standard stock ebs-warm virtual small, run 1: not ready in 600 s" in text
    assert "nginx quickstart stock ebs-warm wall small: 7 of 7 runs" in text
    assert re.search(r"nginx, small standard stock 0 7 - censored", text)
    assert re.search(r"nginx, small quickstart stock 0 0 - not run", text)
    assert not re.search(r"\b0\.00 s (censored|not run)", text)


def test_what_makes_it_again_is_on_the_page(tmp_path: Path) -> None:
    text = said(written(tmp_path, realistic()))
    for words in (
        "quickstart bench 'a matrix.toml' -o out",
        "6.1.0 <synthetic>",
        "0" * 64,
        "every 10 ms",
        "storage: local, nfs-cached, hdd, ebs-cold, nfs-100m",
    ):
        assert words in text


def test_a_measurement_that_is_not_valid_says_so_first(tmp_path: Path) -> None:
    text = said(written(tmp_path, realistic(), ("the guest read <much>",)))
    assert (
        0
        < text.index("This measurement is not valid.")
        < text.index("the guest read <much>")
        < text.index("quickstart beside standard")
    )


def test_the_headline_carries_the_overlap() -> None:
    found = headline(realistic(configurations=("standard", "quickstart")))
    assert found is not None
    assert found.rows == (
        (("nginx, small", "launch to ready (T_total)"), ("17.50 s → 4.25 s, 4.1 times",)),
        (("nginx, small", "kernel to ready (T_app)"), ("15.60 s → 2.75 s, 5.7 times",)),
    )
    assert headline(realistic(configurations=("quickstart",))) is None
    lost = headline(realistic(holes=True, configurations=("standard", "minimal", "quickstart", "ramboot")))
    assert lost is not None
    assert [values for _, values in lost.rows] == [("censored: standard",)] * 2


def test_nothing_ready_is_still_a_page(tmp_path: Path) -> None:
    results = realistic()
    dead = tuple(censored(each.cell, each.number) for each in results.samples)
    text = said(written(tmp_path, dataclasses.replace(results, samples=dead)))
    assert "9 runs did not get ready" in text
    assert "Where the time goes" not in text


def test_figures_are_well_formed_and_have_no_date(tmp_path: Path) -> None:
    write_report(realistic(), (), tmp_path)
    for file in (tmp_path / "figures").glob("*.svg"):
        ET.fromstring(file.read_text())  # noqa: S314 - made here
        assert "<dc:date>" not in file.read_text()
    assert (tmp_path / "figures/overview.png").read_bytes()[:4] == b"\x89PNG"


def test_a_profile_of_a_directory_has_a_figure(tmp_path: Path) -> None:
    cell = dataclasses.replace(CELL, profile="./my profiles/App")
    results = realistic(configurations=("quickstart",), runs=1)
    moved = [dataclasses.replace(each, cell=cell) for each in results.samples]
    plan = tuple(dataclasses.replace(each, cell=cell) for each in results.plan)
    write_report(dataclasses.replace(results, plan=plan, samples=tuple(moved)), (), tmp_path)
    assert (tmp_path / "figures/phases-my-profiles-app-small-virtual-ebs-warm.svg").exists()


def test_two_clocks_make_no_figure() -> None:
    wall = dataclasses.replace(CELL, clock="wall")
    with pytest.raises(MixedClocksError, match="several clocks"):
        times("x", {CELL: [sample()], wall: [sample(wall)]}, "x")


def misplaced(figure: Figure) -> list[str]:
    """Texts that overlap another one, or are not wholly on the figure."""
    canvas = FigureCanvasAgg(figure)
    figure.draw(canvas.get_renderer())  # type: ignore[no-untyped-call]
    boxes = [(each.get_text(), each.get_window_extent()) for each in shown_texts(figure) if each.get_text()]
    width, height = canvas.get_width_height()
    faults = [
        f"{text!r} is cut"
        for text, box in boxes
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    for (one, left), (two, right) in itertools.combinations(boxes, 2):
        if left.shrunk(0.96, 0.9).overlaps(right.shrunk(0.96, 0.9)):
            faults.append(f"{one!r} overlaps {two!r}")
    return faults


def shown_texts(figure: Figure) -> Iterator[Text]:
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from axes.texts
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            yield axis.label
            # Those beyond the limits are objects too, and are not drawn.
            inside = [each for each in axis.get_major_ticks() if min(limits) <= each.get_loc() <= max(limits)]
            yield from (each.label1 for each in inside)


@pytest.mark.parametrize("holes", [False, True], ids=["whole", "holes"])
@pytest.mark.parametrize("profiles", [PROFILES[:1], PROFILES], ids=["one profile", "three profiles"])
@pytest.mark.parametrize("configurations", [("standard", "quickstart"), CONFIGURATIONS], ids=["two", "five"])
@pytest.mark.parametrize("lines", [("stock",), COMMAND_LINES], ids=["stock", "both"])
def test_nothing_in_the_bars_overlaps(
    holes: bool, profiles: tuple[str, ...], configurations: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    results = realistic(
        profiles=profiles, configurations=configurations, lines=lines, sizes=SIZES, runs=3, holes=holes
    )
    found = by_cell(results.samples)
    with style():
        assert misplaced(times_figure({each.cell: found.get(each.cell, ()) for each in results.plan})) == []


@pytest.mark.parametrize("configurations", [("quickstart",), ("standard", "quickstart"), CONFIGURATIONS])
def test_nothing_in_the_timeline_overlaps(configurations: tuple[str, ...]) -> None:
    results = realistic(configurations=configurations, lines=COMMAND_LINES, runs=1)
    rows = [(f"{each.cell.configuration}, {each.cell.command_line}", each) for each in results.samples]
    with style():
        assert misplaced(timeline_figure(rows)) == []


def test_an_overlap_is_found() -> None:
    figure = Figure()
    for text in ("one", "two"):
        figure.text(0.5, 0.5, text)
    figure.text(0.99, 0.2, "leaves the figure")
    assert misplaced(figure) == ["'leaves the figure' is cut", "'one' overlaps 'two'"]


def test_bars_of_few_and_of_nothing() -> None:
    empty: dict[Cell, list[Sample]] = {CELL: []}
    with style():
        assert misplaced(times_figure(empty)) == []


def test_payloads_have_bars_of_their_own() -> None:
    cells = {dataclasses.replace(CELL, payload=each): [sample(CELL)] for each in ("", *PAYLOADS)}
    with style():
        figure = times_figure(cells)
        assert misplaced(figure) == []
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == [
        "quickstart",
        *(f"quickstart, {each}" for each in PAYLOADS),
    ]


# As of somebody who may write into the directory in which root is: LaTeX with his text, and nothing legible.
HOSTILE_RC = "text.usetex: True\ntext.latex.preamble: \\input{/etc/passwd}\nfigure.dpi: 3\nfont.size: 1\n"


def test_no_configuration_of_anybody_s_has_a_say(tmp_path: Path) -> None:
    """matplotlib reads ./matplotlibrc before all others."""
    made = []
    for name, text in (("plain", None), ("hostile", HOSTILE_RC)):
        place = tmp_path / name
        (place / "out").mkdir(parents=True)
        document.save(realistic(), place / "out" / "results.json")
        variables = {}
        if text is not None:
            (place / "matplotlibrc").write_text(text)
            # PATH may have a directory of somebody else, as HOME may be one.
            (place / "fc-list").write_text(f"#!/bin/sh\ntouch {place}/run\n")
            (place / "fc-list").chmod(0o755)
            variables = {"MATPLOTLIBRC": str(place / "matplotlibrc"), "MPLBACKEND": "nonsense"}
            variables["PATH"] = f"{place}:{os.environ['PATH']}"
        done = subprocess.run(
            [Path(sys.executable).with_name("quickstart"), "bench", "--report", "-o", "out"],
            cwd=place,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, 4), done.stderr
        made.append(
            {each.name: each.read_bytes() for each in sorted((place / "out").rglob("*")) if each.is_file()}
        )
    assert made[0] == made[1]
    assert not (tmp_path / "hostile/run").exists()
    assert {"report.html"} < made[0].keys()


def test_what_was_read_before_us_has_none_either() -> None:
    with rc_context({"text.usetex": True, "font.size": 1}), style():
        assert (rcParams["text.usetex"], rcParams["font.size"]) == (False, 9)
