"""`quickstart bench`: measure a matrix of profiles, configurations, storage models and clocks. Write the results and a
report.
"""

from __future__ import annotations

import dataclasses
import datetime
import operator
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from quickstart.artefact.output import make_into
from quickstart.bench import series as benching
from quickstart.bench.runner import QemuRunner
from quickstart.bench.series import RESULTS, Bench, Runner, invalid
from quickstart.cli.cloud.benching import (
    CloudArguments,
    bench_cleanup,
    check_backend,
    cloud_block,
    cloud_options,
    cloud_runner,
)
from quickstart.cli.compare import compare_command
from quickstart.cli.completion import profile_names
from quickstart.cli.options import JSON, VERBOSE, VerbAndGroup
from quickstart.cli.output import Verb, run_verb, say
from quickstart.errors import BadInputError
from quickstart.host.cpulimit import (
    REPORT_LIMIT_S,
    REPORT_PLACE_LIMIT_S,
    RESULTS_HINT,
    RESULTS_LIMIT_S,
    cpu_limit,
)
from quickstart.measure.drawing import unconfigured
from quickstart.measure.matrix import Matrix, load_matrix, matrix_of_options, order, singular
from quickstart.measure.patterns import launched, places
from quickstart.measure.results import (
    CLOCKS,
    COMMAND_LINES,
    CONFIGURATIONS,
    DELIVERIES,
    FETCHES,
    FIRMWARES,
    INSTANCES_MAX,
    PATTERNS,
    PAYLOADS,
    SIZES,
    STORAGES,
    Cell,
    Results,
    Sample,
    on_clock,
    words_of,
)
from quickstart.measure.statistics import Summary, by_cell, summarise
from quickstart.parse.printable import in_full
from quickstart.profile import known_profiles, spelled
from quickstart.report import document
from quickstart.report.wholefile import FIGURES
from quickstart.store.store import Store, default_root

_NOT_VALID = 4
# The options whose names are not those of the matrix's keys in the singular.
_OPTIONS = {"runs": "--runs", "timeout_s": "--timeout"}
# The name of a matrix of options, as matrix_of_options gives it.
_OPTIONS_NAME = "options"
_TIMES = ("t_pr_ns", "t_app_ns", "t_total_ns")


@click.group(cls=VerbAndGroup, invoke_without_command=True)
@click.argument(
    "matrix_file", metavar="MATRIX.toml", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of the results [bench-NAME].",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME|DIR",
    shell_complete=profile_names,
    help="The profile of an application.",
)
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="OUT",
    type=click.Path(file_okay=False),
    help="An OUT of `build --image` or `build --target disk`, whose disk boots by its own boot loader.",
)
@click.option(
    "--firmware",
    "firmwares",
    multiple=True,
    type=click.Choice(FIRMWARES),
    help="The firmware of the machine that boots a disk.",
)
@click.option(
    "--configuration",
    "configurations",
    multiple=True,
    type=click.Choice(CONFIGURATIONS),
    help="A configuration, which is one of the ways to boot that the bench compares.",
)
@click.option(
    "--command-line",
    "command_lines",
    multiple=True,
    type=click.Choice(COMMAND_LINES),
    help="The set of kernel options [the options of build; stock for the standard configurations].",
)
@click.option(
    "--storage",
    "storages",
    multiple=True,
    type=click.Choice(STORAGES),
    help="The storage model of the volume to boot from.",
)
@click.option(
    "--clock",
    "clocks",
    multiple=True,
    type=click.Choice(CLOCKS),
    help="The clock by which times are measured.",
)
@click.option(
    "--size", "sizes", multiple=True, type=click.Choice(SIZES), help="The size of the machine [small]."
)
@click.option(
    "--payload",
    "payloads",
    multiple=True,
    type=click.Choice(PAYLOADS),
    help="The form of the initramfs of the configuration quickstart [the profile's].",
)
@click.option(
    "--delivery",
    "deliveries",
    multiple=True,
    type=click.Choice(DELIVERIES),
    help="The delivery of the start set in the configuration quickstart [the default of build].",
)
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    type=click.Choice(PATTERNS),
    help="The pattern in which several machines are launched from one volume [single].",
)
@click.option(
    "--instance",
    "instances",
    multiple=True,
    type=click.IntRange(1, INSTANCES_MAX),
    help="The number of machines that a pattern launches.",
)
@click.option(
    "--stagger-ms",
    type=click.IntRange(1, 3_600_000),
    help="Milliseconds from one staggered launch to the next.",
)
@click.option("--fetch", type=click.Choice(FETCHES), help="How kernel and initramfs are read [boot-loader].")
@click.option("--runs", type=click.IntRange(1, 1000), help="The number of runs of each cell [5].")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(1, 86400),
    help="The time limit for each run, in seconds [600].",
)
@click.option(
    "--report",
    "report_only",
    is_flag=True,
    help="Make the report from DIR/results.json again, without a measurement.",
)
@click.option("--dry-run", is_flag=True, help="Print which runs would be made, and make none of them.")
@VERBOSE
@JSON
@click.pass_context
@cloud_options
def bench(
    context: click.Context,
    /,
    cloud: CloudArguments,
    matrix_file: Path | None = None,
    out: Path | None = None,
    report_only: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
    as_json: bool = False,
    **options: Sequence[str] | Sequence[int] | int,
) -> None:
    """Measure a matrix, and write results.json, report.html and figures.

    The matrix is the list of everything to measure. It comes from MATRIX.toml or from options. An option such as
    --profile or --storage may be given several times; every combination of the values is measured. The results
    of a run are written to results.json as soon as the run ends. After an interruption, the same command
    continues the measurement.
    """

    def work(verb: Verb) -> int:
        if report_only:
            return _report_again(verb, out)
        matrix = _matrix(matrix_file, cloud_block(cloud, options) if matrix_file is None else options)
        check_backend(cloud, matrix)
        if dry_run:
            return _show_plan(verb, matrix)
        return _measure(verb, matrix, directory(matrix).absolute(), cloud)

    def directory(matrix: Matrix | None = None) -> Path:
        # Without one, --report is refused later.
        if out or report_only:
            return out or Path("bench")
        name = _OPTIONS_NAME if matrix_file is None else (matrix or _matrix(matrix_file, options)).name
        return Path(f"bench-{name}")

    def figures() -> Path:
        # The deepest one that is written into.
        place = directory() / FIGURES
        if not dry_run and (not report_only or (directory() / RESULTS).exists()):
            make_into(place)
        return place

    # A verb below comes next.
    if context.invoked_subcommand is None:
        sys.exit(run_verb("bench", as_json, work, verbose, as_root=True, into=figures))


bench.add_command(compare_command)
bench.add_command(bench_cleanup)


def _matrix(file: Path | None, options: Mapping[str, Sequence[str] | Sequence[int] | int]) -> Matrix:
    given = [name for name, value in options.items() if value]
    if file is None and not given:
        raise BadInputError(
            "nothing to measure: neither a matrix nor options",
            hint="for example --profile nginx --configuration standard --configuration quickstart "
            "--storage ebs-warm --clock virtual",
        )
    if file is None:
        named = options.get("profiles", ())
        profiles = [spelled(str(name)) for name in named] if not isinstance(named, int) else []
        return matrix_of_options({**options, "profiles": profiles}, known_profiles())
    if given:
        names = ", ".join(_OPTIONS.get(name, f"--{singular(name).replace('_', '-')}") for name in given)
        raise BadInputError(f"both a matrix and options for one ({names})", hint="write them into the matrix")
    return load_matrix(file, known_profiles())


def _measure(verb: Verb, matrix: Matrix, directory: Path, cloud: CloudArguments) -> int:
    display = verb.display()
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = Bench(matrix, directory, ("quickstart", *sys.argv[1:]), began)
    with ExitStack() as stack:
        store = stack.enter_context(Store(default_root(), display.note))
        try:
            runner: Runner = (
                cloud_runner(matrix, cloud, directory, store, display, stack)
                if matrix.is_of_cloud
                else QemuRunner(matrix=matrix, store=store, progress=display)
            )
            results = benching.run_matrix(asked, runner, display)
        except KeyboardInterrupt:
            if (directory / RESULTS).exists():
                display.note(
                    f"what was measured is in {directory / RESULTS}; the same command goes on from there"
                )
            raise
    return _finish(verb, results, directory)


def _report_again(verb: Verb, out: Path | None) -> int:
    if out is None:
        raise BadInputError("--report needs -o DIR, the directory that has results.json")
    # The results may be a stranger's.
    with cpu_limit("the results", RESULTS_LIMIT_S, RESULTS_HINT):
        results = document.load(out / RESULTS)
    limit_s = REPORT_LIMIT_S + REPORT_PLACE_LIMIT_S * places(planned.cell for planned in results.plan)
    with cpu_limit("the results", limit_s, RESULTS_HINT):
        return _finish(verb, results, out.absolute())


def _finish(verb: Verb, results: Results, directory: Path) -> int:
    # Only this verb pays for matplotlib, whose import takes half a second.
    with unconfigured():
        from quickstart.report.report import write_report

    faults = invalid(results)
    with verb.display().step("report"):
        write_report(results, faults, directory)
    for fault in faults:
        verb.display().note(f"not valid: {in_full(fault)}")
    verb.result(_result(results, faults, directory), lambda console: _show(console, results, directory))
    return _NOT_VALID if faults else 0


def _result(results: Results, faults: Sequence[str], directory: Path) -> Mapping[str, object]:
    cells = by_cell(results.samples)
    return {
        "out": str(directory),
        "results": str(directory / RESULTS),
        "report": str(directory / "report.html"),
        "valid": not faults,
        "faults": list(faults),
        "complete": not document.remaining(results, order(results.plan)),
        "cells": [_cell_result(cell, runs) for cell, runs in cells.items()],
    }


def _cell_result(cell: Cell, runs: Sequence[Sample]) -> Mapping[str, object]:
    summaries = {name: summarise(runs, operator.attrgetter(name)) for name in _TIMES}
    some, together = summaries["t_app_ns"], launched(runs, operator.attrgetter("t_total_ns"))
    medians = {f"{name.removesuffix('_ns')}_median_ns": each.median for name, each in summaries.items()}
    return {
        **dataclasses.asdict(cell),
        "delivery": runs[0].delivery,
        "n": some.n,
        "censored": some.censored,
        **medians,
        "t_app_spread_ns": some.spread,
        **({} if cell.instances == 1 else {"t_total_p50_ns": together.p50, "t_total_p100_ns": together.p100}),
    }


def _show(console: Console, results: Results, directory: Path) -> None:
    every = by_cell(results.samples)
    cells = {cell: runs for cell, runs in every.items() if cell.instances == 1}
    for clock in sorted({cell.clock for cell in cells}):
        table = Table(title=f"application time T_app ({on_clock(clock)})")
        for heading in ("application", "configuration", "storage"):
            table.add_column(heading, no_wrap=True)
        for heading in ("median", "spread", "n", "censored"):
            table.add_column(heading, justify="right")
        for cell, runs in cells.items():
            if cell.clock == clock:
                found = summarise(runs, operator.attrgetter("t_app_ns"))
                line = "" if cell.command_line == "stock" else f", {cell.command_line}"
                words = (cell.machine, f"{cell.called}{line}", cell.storage)
                table.add_row(*words, *_figures(found), str(found.n), str(found.censored))
        console.print(table)
    _show_launches(console, {cell: runs for cell, runs in every.items() if cell.instances > 1})
    console.print(f"{directory / 'report.html'}", soft_wrap=True)


def _show_launches(console: Console, cells: Mapping[Cell, Sequence[Sample]]) -> None:
    for cell, runs in cells.items():
        total = launched(runs, operator.attrgetter("t_total_ns"))
        p50, p100 = (
            "censored" if each is None else f"{each / 1e9:.2f} s" for each in (total.p50, total.p100)
        )
        ready = f"{total.machines - total.censored} of {total.machines} ready"
        console.print(f"{words_of(cell)}: T_total p50 {p50}, p100 {p100}, {ready}", soft_wrap=True)


def _figures(found: Summary) -> tuple[str, str]:
    return (
        "censored" if found.median is None else f"{found.median / 1e9:.2f} s",
        "" if found.spread is None else f"{found.spread / 1e9:.2f} s",
    )


def _show_plan(verb: Verb, matrix: Matrix) -> int:
    runs = order(matrix.plan)
    entries = [
        {**dataclasses.asdict(each.cell), "runs": each.runs, "timeout_s": each.timeout_s}
        for each in matrix.plan
    ]

    def text(console: Console) -> None:
        for cell, number in runs:
            say(console, f"  {in_full(words_of(cell))} run {number}")
        say(console, f"{len(runs)} runs of {len(matrix.plan)} cells")

    verb.result({"matrix": matrix.name, "runs": len(runs), "plan": entries}, text)
    return 0
