"""Make the page report.html and its figures from the results of a bench. The page has no scripts and needs no network.
On the page, the conclusions come first, and all numbers follow.
"""

from __future__ import annotations

import operator
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from quickstart.artefact.output import check_into
from quickstart.errors import BadInputError
from quickstart.measure.phases import all_phases
from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    PATTERNS,
    SIZES,
    STORAGES,
    Cell,
    Results,
    Sample,
    cloud_of,
    on_clock,
    words_of,
)
from quickstart.measure.statistics import (
    Metric,
    Summary,
    by_cell,
    claim_faster,
    median_interval,
    ratios,
    summarise,
)
from quickstart.parse.printable import LINES, shown
from quickstart.report import launch_report
from quickstart.report.conclusions import OURS, conclusions, headline, overview, planned_samples, rival_of
from quickstart.report.figures import Drawn, inline, phase_numbers, timeline, times
from quickstart.report.paper import beside
from quickstart.report.rows import NONE, Row, begin_of, count, head, loaders, mib, seconds
from quickstart.report.summary import summary
from quickstart.report.wholefile import FIGURES, distinct, file_name, replace_file

_TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Timeline:
    figure: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """The section of the page for one clock and one storage model. Because each section has only one clock, no table of
    the page has times of two clocks.
    """

    title: str
    name: str
    clock: str
    rows: tuple[Row, ...]
    loaders: tuple[Row, ...]
    claims: tuple[Row, ...]
    timelines: tuple[Timeline, ...]


def write_report(results: Results, faults: Sequence[str], directory: Path) -> None:
    """Write report.html, figures/*.svg and figures/*.png into ``directory``. ``faults`` are the reasons why
    the measurement is not valid, if there are any.

    The same results give the same bytes. Raises BadInputError when the directory ``figures`` is a link or another user
    could replace this directory. Raises HostLacksError when the disk is full.
    """
    figures = directory / FIGURES
    if figures.is_symlink():
        raise BadInputError(f"{figures} is a link, and the report writes into it", hint="remove the link")
    figures.mkdir(parents=True, exist_ok=True)
    # In a directory with the sticky bit, another user may have made the name before us.
    check_into(figures)
    sections, timelines = _sections(results)
    pictures = _pictures(results)
    launches = launch_report.figures(results)
    for each in (*pictures, *timelines, *launches):
        replace_file(figures / f"{each.name}.svg", each.svg.encode())
        replace_file(figures / f"{each.name}.png", each.png)
    replace_file(directory / "report.html", page(results, pictures, sections, faults, launches).encode())


def page(
    results: Results,
    pictures: Sequence[Drawn],
    sections: Sequence[Section],
    faults: Sequence[str],
    launches: Sequence[Drawn] = (),
) -> str:
    """The page as HTML. If there are ``pictures``, the first picture is at the top of the page."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    singles = planned_samples(results)
    chosen = overview(singles) if singles else {}
    one = next(iter(chosen), None)
    # Every text is escaped, because reasons and facts come from guests and hosts, and the results may be a
    # stranger's.
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    return environment.get_template(_TEMPLATE).render(
        results=results,
        cloud=next(filter(None, (cloud_of(each.cell.clock) for each in results.plan)), ""),
        run_count=len({(sample.cell, sample.number) for sample in results.samples}),
        command=shlex.join(results.command),
        summary=(*summary(results), *launch_report.sentences(results)),
        headline=headline(results),
        paper=beside(chosen, planned_samples(results)),
        paper_on=f"{one.storage}, {one.size} machine, {on_clock(one.clock)} (medians)" if one else "",
        conclusions=conclusions(results),
        real=any(planned.cell.clock != "virtual" for planned in results.plan),
        pictures=[(each.title, inline(each)) for each in pictures],
        sections=sections,
        launches=launch_report.table(results),
        launch_figures=[(each.title, inline(each)) for each in launches],
        faults=faults,
        missing=tuple(_missing(results)),
        censored=tuple(_censored(results)),
        left_out=tuple(_left_out(results)),
        poll_ms=results.circumstances.poll_interval_ms,
    )


def _printable(value: object) -> object:
    """``value``, if it is a text, without the characters that a page must not contain. The markup of a figure is
    returned unchanged, because the markup already has no such characters.
    """
    return shown(value, LINES) if isinstance(value, str) and not hasattr(value, "__html__") else value


def first_picture(results: Results) -> Drawn | None:
    """The first picture of the page, overview.svg. The result is None when no cell of the bench launches a single
    machine (the launch pattern `single`).
    """
    samples = planned_samples(results)
    if not samples:
        return None
    chosen = overview(samples)
    one = next(iter(chosen))
    return times(
        "overview",
        chosen,
        f"From {begin_of(chosen)} to ready: {one.storage}, {one.size} machine, {on_clock(one.clock)}",
    )


def _pictures(results: Results) -> tuple[Drawn, ...]:
    """The first picture of the page, and then one picture for each clock with all cells of this clock. The picture of a
    clock is left out when it would have the same cells as the first picture.
    """
    first = first_picture(results)
    if first is None:
        return ()
    samples = planned_samples(results)
    chosen = overview(samples)
    clocks = _in_order([cell.clock for cell in samples], CLOCKS)
    cells = {clock: {c: runs for c, runs in samples.items() if c.clock == clock} for clock in clocks}
    others = (
        times(f"times-{clock}", here, f"From {begin_of(here)} to ready: all cells, {on_clock(clock)}")
        for clock, here in cells.items()
        if here.keys() != chosen.keys()
    )
    return (first, *others)


def _sections(results: Results) -> tuple[tuple[Section, ...], tuple[Drawn, ...]]:
    samples = planned_samples(results)
    sections: list[Section] = []
    drawn: list[Drawn] = []
    for clock in _in_order([cell.clock for cell in samples], CLOCKS):
        for storage in _in_order([cell.storage for cell in samples if cell.clock == clock], STORAGES):
            here = {c: runs for c, runs in samples.items() if (c.clock, c.storage) == (clock, storage)}
            title, name = f"{storage}, {on_clock(clock)}", f"{clock}-{storage}"
            lines = list(_timelines(here, name, title))
            drawn += [figure for figure, _ in lines]
            timelines = tuple(each for _, each in lines)
            sections.append(
                Section(
                    title=title,
                    name=name,
                    clock=clock,
                    rows=tuple(_rows(here)),
                    loaders=tuple(loaders(here)),
                    claims=tuple(_claims(here)),
                    timelines=timelines,
                )
            )
    return tuple(sections), tuple(drawn)


def _rows(samples: Mapping[Cell, Sequence[Sample]]) -> Iterator[Row]:
    """The rows of the table with all cells of a section. The headings of the table are in the page's template."""
    app = {cell: summarise(runs, operator.attrgetter("t_app_ns")) for cell, runs in samples.items()}
    versus = ratios(app, "configuration", "standard")
    for cell, runs in samples.items():
        time, ratio = app[cell], versus.get(cell)

        def middle(metric: Metric, runs: Sequence[Sample] = runs) -> int | None:
            return summarise(runs, metric).median

        values = (
            str(time.n),
            str(time.censored),
            seconds(middle(operator.attrgetter("t_pr_ns"))),
            _median(time, runs),
            _range(time),
            _spread(time),
            seconds(middle(operator.attrgetter("t_total_ns"))),
            NONE if ratio is None else f"{ratio:.2f}",
            seconds(middle(operator.attrgetter("overlap_ns")))
            if cell.clock == "virtual"
            else _interval(runs),
            count(middle(lambda sample: sample.guest.requests)),
            mib(middle(lambda sample: sample.guest.read_bytes)),
            mib(middle(lambda sample: sample.initramfs_bytes)),
        )
        yield Row(head(cell), values, time.median is None)


def _claims(samples: Mapping[Cell, Sequence[Sample]]) -> Iterator[Row]:
    """One row for each comparison of a cell of the configuration quickstart with the corresponding cell of another
    configuration (see rival_of in conclusions.py, which finds the corresponding cell).
    """
    for cell, runs in samples.items():
        if cell.configuration != OURS or not runs:
            continue
        for name in CONFIGURATIONS:
            other = rival_of(samples, cell, name)
            rival = samples.get(other, ())
            if name == OURS or not rival:
                continue
            claim = claim_faster(runs, rival)
            said = "yes" if claim.holds else "no"
            factor = f"{claim.factor:.2f}" if claim.factor else NONE
            times_of = (seconds(claim.ours_ns), seconds(claim.rival_ns))
            p = NONE if claim.p is None else f"{claim.p:.4f}"
            lines = " beside ".join(dict.fromkeys((cell.command_line, other.command_line)))
            line = ", ".join(word for word in (lines, cell.delivery, cell.payload) if word)
            head = (cell.machine, name, line)
            yield Row(head, (*times_of, factor, p, said), not claim.holds)


def _timelines(
    samples: Mapping[Cell, Sequence[Sample]], name: str, title: str
) -> Iterator[tuple[Drawn, Timeline]]:
    spelled = distinct(cell.profile for cell in samples)
    for place in dict.fromkeys(cell.place for cell in samples):
        rows = [
            (_label(cell), middle)
            for cell, runs in samples.items()
            if cell.place == place and (middle := _middle_run(runs)) is not None
        ]
        if not any(sample.phases for _, sample in rows):
            continue
        profile, size, firmware = place
        machine = ", ".join(word for word in place if word)
        heading = f"Where the time goes: {machine}, {title}"
        parts = (spelled[profile], size, *((firmware,) if firmware else ()), name)
        figure = timeline(file_name("phases", *parts), rows, heading)
        numbers = phase_numbers(rows)
        table = tuple(
            Row((label,), _phase_times(sample, list(numbers)), censored=False) for label, sample in rows
        )
        headings = tuple(f"{number} {phase}" for phase, number in numbers.items())
        yield figure, Timeline(inline(figure), heading, headings, table)


def _label(cell: Cell) -> str:
    return cell.called if cell.command_line == "stock" else f"{cell.called}, {cell.command_line}"


def _middle_run(runs: Sequence[Sample]) -> Sample | None:
    """The run with the median T_app, the time from the start of the guest kernel's clock until ready. For an even
    number of runs, the result is the faster of the two middle runs. A timeline shows only this run, because the phases
    of several runs have no common median.
    """
    ready = sorted((sample for sample in runs if not sample.censored), key=lambda sample: sample.t_app_ns)
    return ready[(len(ready) - 1) // 2] if ready else None


def _phase_times(sample: Sample, names: Sequence[str]) -> tuple[str, ...]:
    spans = {phase.name: phase for phase in all_phases(sample)}
    return tuple(
        f"{(spans[name].end_ns - spans[name].begin_ns) / 1e9:.2f} s" if name in spans else NONE
        for name in names
    )


def _missing(results: Results) -> Iterator[str]:
    found = by_cell(results.samples)
    for planned in results.plan:
        lacking = planned.runs - len({sample.number for sample in found.get(planned.cell, ())})
        if lacking:
            yield f"{words_of(planned.cell)}: {lacking} of {planned.runs} runs"


def _censored(results: Results) -> Iterator[str]:
    for sample in results.samples:
        if sample.censored:
            machine = f", machine {sample.instance}" if sample.cell.instances > 1 else ""
            yield f"{words_of(sample.cell)}, run {sample.number}{machine}: {sample.censored}"


def _left_out(results: Results) -> Iterator[str]:
    """Lines that list the known values that the matrix of this bench does not have. There is one line for
    configurations, one line for storage models, and one line for each other kind of value.
    """
    # A bench of single machines has always been silent about patterns.
    patterns = (("pattern", PATTERNS),) if launch_report.several(results) else ()
    for axis, known in (
        ("configuration", CONFIGURATIONS),
        ("command_line", COMMAND_LINES),
        ("storage", STORAGES),
        ("clock", CLOCKS),
        ("size", SIZES),
        *patterns,
    ):
        asked = {getattr(planned.cell, axis) for planned in results.plan}
        if absent := [word for word in known if word not in asked]:
            yield f"{axis.replace('_', ' ')}: {', '.join(absent)}"


def _in_order(words: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in known if each in words)


def _median(time: Summary, runs: Sequence[Sample]) -> str:
    return "not run" if not runs else "censored" if time.median is None else seconds(time.median)


def _range(time: Summary) -> str:
    if time.minimum is None or time.maximum is None:
        return NONE
    return f"{time.minimum / 1e9:.2f} … {time.maximum / 1e9:.2f}"


def _spread(time: Summary) -> str:
    share = "" if time.spread_share is None else f" ({time.spread_share:.1%})"
    return NONE if time.spread is None or time.n == 1 else f"{time.spread / 1e6:.0f} ms{share}"


def _interval(runs: Sequence[Sample]) -> str:
    """The confidence interval of the median, as text. In a censored run, the guest did not become ready, so its time is
    not known. The text is a dash when a run is censored. The text is also a dash when there are too few runs for an
    interval.
    """
    found = None if any(s.censored for s in runs) else median_interval([s.t_app_ns for s in runs])
    return NONE if found is None else f"{found[0] / 1e9:.2f} … {found[1] / 1e9:.2f} s"
