"""Launches in a report: together with single runs, alone, and with machines that did not get ready. Nothing is cut off."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from quickstart.measure.results import Cell, Planned, Results, Sample
from quickstart.measure.statistics import by_cell
from quickstart.report.figures import style
from quickstart.report.launch_report import launch_figure
from quickstart.report.report import write_report
from tests.contract.test_report import said, written
from tests.unit.benchdata import S, censored, results_of, sample

PATTERNS = (("single", (1,), 0), ("one-by-one", (4,), 0), ("staggered", (4, 16), 500), ("burst", (2, 16), 0))
FIGURE = "launches-wall-ebs-cold-small-nginx"


def cells() -> list[Cell]:
    ones = [
        Cell(
            profile="nginx",
            configuration=name,
            command_line=line,
            storage="ebs-cold",
            clock="wall",
            size="small",
        )
        for name, line in (("standard", "stock"), ("quickstart", "stock"), ("quickstart", "ours"))
    ]
    return [
        dataclasses.replace(one, pattern=pattern, instances=count, stagger_ms=stagger_ms)
        for one in ones
        for pattern, counts, stagger_ms in PATTERNS
        for count in counts
    ]


def machine(cell: Cell, number: int, instance: int) -> Sample:
    slow = {"standard": 30, "quickstart": 4}[cell.configuration]
    made = sample(cell, number, (slow + cell.instances) * S + instance * S // 10, fetch_ns=S // 2)
    if cell.configuration == "standard" and instance == 16:
        made = censored(cell, number)
    return dataclasses.replace(made, instance=instance, dilation_percent=max(100, 50 * cell.instances))


def whole(*, alone: bool = True) -> Results:
    asked = [cell for cell in cells() if alone or cell.instances > 1]
    samples = [
        machine(cell, number, instance)
        for number in (1, 2)
        for cell in asked
        for instance in range(1, cell.instances + 1)
    ]
    return results_of([Planned(cell, 2, 600) for cell in asked], samples)


def test_launches_have_a_section_of_their_own_and_single_runs_are_as_without_them(tmp_path: Path) -> None:
    page = written(tmp_path / "all", whole())
    text = said(page)
    assert page.open == []
    assert {each[1:] for each in page.addresses} <= set(page.ids)
    assert "36 runs in 18 cells" in text
    assert "burst of 16 2 30 of 32 47.85 s censored 1.49" in text
    assert "nginx standard stock ebs-cold wall small burst of 16, run 2, machine 16: not ready" in text
    assert {path.stem for path in (tmp_path / "all/figures").iterdir()} >= {FIGURE, "overview"}
    singles = [cell for cell in cells() if cell.instances == 1]
    without = results_of(
        [Planned(cell, 2, 600) for cell in singles],
        [each for each in whole().samples if each.cell in singles],
    )
    other = written(tmp_path / "singles", without)
    assert "launches" not in other.ids
    for name in ("overview.svg", "overview.png"):
        assert (tmp_path / "all/figures" / name).read_bytes() == (
            tmp_path / "singles/figures" / name
        ).read_bytes()


def test_a_bench_of_launches_alone_has_a_page(tmp_path: Path) -> None:
    page = written(tmp_path, whole(alone=False))
    assert page.open == []
    assert {each[1:] for each in page.addresses} <= set(page.ids)
    assert "16 machines at one moment from one volume (ebs-cold, wall clock), nginx, standard" in said(page)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        f"{FIGURE}.png",
        f"{FIGURE}.svg",
    ]


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(whole(), (), tmp_path / name)
    for file in ("report.html", f"figures/{FIGURE}.svg", f"figures/{FIGURE}.png"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_nothing_in_the_figure_is_cut_or_overlaps() -> None:
    found = by_cell(whole().samples)
    launches = {cell: runs for cell, runs in found.items() if cell.instances > 1}
    alone = {cell: runs for cell, runs in found.items() if cell.instances == 1}
    with style():
        figure = launch_figure(launches, alone)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
        boxes = [
            (text.get_text(), text.get_window_extent(renderer))
            for text in figure.findobj(Text)
            if isinstance(text, Text) and text.get_text() and text.get_visible()
        ]
    width, height = canvas.get_width_height()
    assert [
        words for words, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ] == []
    titles = [box for words, box in boxes if words.startswith(("one by one", "staggered", "burst"))]
    assert len(titles) == 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(titles, 2))
