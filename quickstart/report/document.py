"""Convert the results of a bench to results.json and back (docs/users/results.md). The code that reads results.json
refuses unknown keys and wrong types. The file results.json is always replaced as a whole. Samples of two measurements
are never mixed in one file.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from quickstart.errors import OtherResultsError, ResultsError
from quickstart.measure.patterns import cell_problem, launch_problems, picture_problems
from quickstart.measure.results import (
    DELIVERIES,
    DISK_CONFIGURATIONS,
    RUNS_MAX,
    SCHEMA,
    Booted,
    Cell,
    Circumstances,
    Facts,
    Phase,
    Planned,
    Reads,
    Results,
    Sample,
    words_of,
)
from quickstart.parse import jsondoc
from quickstart.parse.faults import faults, first_ones
from quickstart.report.entries import CellEntry, Document, PhaseEntry, PlannedEntry, RunEntry
from quickstart.report.wholefile import read_text, replace_file

_HINT = "docs/users/results.md has every field"
# Enough for some seven thousand runs. Every value of a document may be a fault, and each fault takes a KiB before the
# first fault can be shown.
_MAX_BYTES = 16 << 20
_MAX_VALUES = 250_000
_SURROGATE = re.compile(r"\\u[dD]")
# A figure and a section of the report for each.
_PROFILES_MAX = 64

# The numbers that only a machine with a boot loader has.
_OF_A_LOADER = ("firmware_ns", "loader_reads", "loader_read_bytes")
_PLACE = ("number", "instance", "launched_ns", "dilation_percent", "censored")
# The numbers of a run, apart from its place in the matrix and its duration. A censored run has none of them.
_NUMBERS = (
    *("t_pr_ns", "t_app_ns", "t_total_ns", "uptime_ns", "ready_uptime_ns", "fetch_ns", "before_kernel_ns"),
    *("overlap_ns", "volume_reads", "volume_read_bytes", "root_reads", "root_read_bytes", "initramfs_bytes"),
    *_OF_A_LOADER,
)


def text_of(results: Results) -> str:
    """The results as JSON text. The text has one line for each run, so that the output of diff(1) for two results is
    readable.
    """
    circumstances = results.circumstances
    head = {
        "schema": SCHEMA,
        "name": results.name,
        "command": list(results.command),
        "began": results.began,
        "host": dict(circumstances.host),
        "versions": dict(circumstances.versions),
        "artefacts": dict(circumstances.artefacts),
        "poll_interval_ms": circumstances.poll_interval_ms,
    }
    members = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    members += _fact_members(circumstances.facts)
    members.append(f' "plan": {_lines([_planned_entry(each) for each in results.plan])}')
    members.append(f' "runs": {_lines([_run_entry(each) for each in results.samples])}')
    return "{\n" + ",\n".join(members) + "\n}\n"


def parse(text: str, source: str) -> Results:
    """The results in ``text``, the content of results.json. Raises ResultsError when ``text`` has faults. The error
    lists the faults and their places.
    """
    if len(text) > _MAX_BYTES or text.count(",") >= _MAX_VALUES:
        raise ResultsError(
            source, [f"it has more than {_MAX_BYTES} bytes, or {_MAX_VALUES} values"], hint=_HINT
        )
    try:
        # model_validate_json is not used, because it takes KiB for each object, and each fault has a copy of its
        # table.
        document = Document.model_validate(_tables(text))
    except ValidationError as error:
        raise ResultsError(source, faults(error, Document), hint=_HINT) from error
    except ValueError as error:
        raise ResultsError(source, [f"the whole: {error}"], hint=_HINT) from error
    results = _results(document)
    problems = [*_plan_problems(results.plan), *_run_problems(document, results)]
    if problems:
        raise ResultsError(source, first_ones(problems), hint=_HINT)
    return results


def _tables(text: str) -> object:
    """The JSON value in ``text``. Raises ValueError for invalid JSON. Also raises ValueError for a string with one
    half of a surrogate pair, because UTF-8 cannot represent the half.
    """
    found = jsondoc.parse(text.encode(), keep_long_numbers=True)
    if _SURROGATE.search(text):
        # Encoding raises UnicodeEncodeError, a ValueError, for a half of a pair.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def load(path: Path) -> Results:
    """The results in the file ``path``. Raises ResultsError when the results are invalid or the file cannot be read,
    and BadInputError when the file is not regular or is too large.
    """
    try:
        text = read_text(path, _MAX_BYTES)
    except OSError as error:
        raise ResultsError(str(path), [f"cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ResultsError(str(path), [f"not UTF-8 at byte {error.start}"], hint=_HINT) from error
    return parse(text, str(path))


def save(results: Results, path: Path) -> None:
    """Write the results to ``path`` in one step. At any moment, ``path`` is either the complete old file or the
    complete new file, even if our process is killed.
    """
    replace_file(path, text_of(results).encode())


def remaining(results: Results, order: Sequence[tuple[Cell, int]]) -> tuple[tuple[Cell, int], ...]:
    """The runs in ``order`` that have no sample in ``results``. A run whose guest did not become ready (a censored
    run) also has a sample.
    """
    have = {(sample.cell, sample.number) for sample in results.samples}
    return tuple(each for each in order if each not in have)


def demand_same(results: Results, plan: Sequence[Planned], circumstances: Circumstances, source: str) -> None:
    """Raise OtherResultsError when new samples must not be added to ``results``. ``plan`` has the cells of the new
    measurement, and ``circumstances`` has facts such as the host, the versions and the artefacts. New samples may be
    added only if ``results`` has the same plan and the same circumstances. The error's message lists every difference.
    """
    differences = [*_plan_differences(results.plan, plan)]
    then, now = results.circumstances, circumstances
    differences += _differences("host", then.host, now.host)
    differences += _differences("version of", then.versions, now.versions)
    differences += _differences("artefact", then.artefacts, now.artefacts)
    if then.poll_interval_ms != now.poll_interval_ms:
        differences.append(f"poll interval: {then.poll_interval_ms} ms there, {now.poll_interval_ms} ms now")
    if differences:
        raise OtherResultsError(source, differences, hint="measure into another directory: -o DIR")


def _plan_differences(then: Sequence[Planned], now: Sequence[Planned]) -> Iterator[str]:
    there, here = {each.cell: each for each in then}, {each.cell: each for each in now}
    yield from (f"matrix: {words_of(cell)} is only there" for cell in there if cell not in here)
    yield from (f"matrix: {words_of(cell)} is only in the new one" for cell in here if cell not in there)
    for cell in there:
        if cell in here and there[cell] != here[cell]:
            old, new = there[cell], here[cell]
            yield (
                f"matrix: {words_of(cell)}: {old.runs} runs of at most {old.timeout_s} s there, "
                f"{new.runs} of at most {new.timeout_s} s now"
            )


def _differences(what: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*then, *now}):
        if then.get(key) != now.get(key):
            yield f"{what} {key}: {then.get(key, 'nothing')} there, {now.get(key, 'nothing')} now"


def _lines(entries: Sequence[Mapping[str, object]]) -> str:
    if not entries:
        return "[]"
    return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"


def _cell_entry(cell: Cell) -> dict[str, object]:
    return {name: getattr(cell, name) for name in CellEntry.model_fields}


def _planned_entry(planned: Planned) -> Mapping[str, object]:
    return {
        **_cell_entry(planned.cell),
        "delivery": planned.cell.delivery,
        "runs": planned.runs,
        "timeout_s": planned.timeout_s,
    }


def _run_entry(sample: Sample) -> Mapping[str, object]:
    same = (*_PLACE, *_NUMBERS[:8])
    return {
        **_cell_entry(sample.cell),
        "delivery": sample.delivery,
        **{name: getattr(sample, name) for name in same},
        "volume_reads": sample.volume.requests,
        "volume_read_bytes": sample.volume.read_bytes,
        "root_reads": sample.guest.requests,
        "root_read_bytes": sample.guest.read_bytes,
        "initramfs_bytes": sample.initramfs_bytes,
        "phases": _phase_entries(sample.phases),
        "units": _phase_entries(sample.units),
        "took_ns": sample.took_ns,
        "firmware_ns": sample.firmware_ns,
        "loader_reads": sample.loader.requests,
        "loader_read_bytes": sample.loader.read_bytes,
    }


def _phase_entries(phases: Sequence[Phase]) -> list[Mapping[str, object]]:
    return [{"name": each.name, "begin_ns": each.begin_ns, "end_ns": each.end_ns} for each in phases]


def _fact_members(facts: Facts) -> Iterator[str]:
    """The members ``boots``, ``contents`` and ``packages`` of results.json. These members have one line of JSON for
    each configuration, initramfs and image. An initramfs has a separate line, because several configurations often
    share an initramfs.
    """
    boots = {name: dataclasses.asdict(booted) for name, booted in facts.boots.items()}
    for key, table in (("boots", boots), ("contents", facts.contents), ("packages", facts.packages)):
        lines = [f"  {json.dumps(name)}: {json.dumps(dict(each))}" for name, each in table.items()]
        yield f" {json.dumps(key)}: " + ("{\n" + ",\n".join(lines) + "\n }" if lines else "{}")


def _cell(entry: CellEntry) -> Cell:
    return Cell(**{name: getattr(entry, name) for name in CellEntry.model_fields})


def _planned(entry: PlannedEntry) -> Planned:
    return Planned(dataclasses.replace(_cell(entry), delivery=entry.delivery), entry.runs, entry.timeout_s)


def _sample(run: RunEntry, asked: set[Cell]) -> Sample:
    """The sample for a run in results.json. ``asked`` are the cells of the plan. The cell of the sample has a
    delivery only if the plan's cell has a delivery. The delivery is the way in which packed files reach the
    application.
    """
    cell = _cell(run)
    delivered = dataclasses.replace(cell, delivery=run.delivery)
    return Sample(
        cell=delivered if delivered in asked else cell,
        delivery=run.delivery,
        **{name: getattr(run, name) for name in (*_PLACE, *_NUMBERS[:8])},
        volume=Reads(run.volume_reads, run.volume_read_bytes),
        guest=Reads(run.root_reads, run.root_read_bytes),
        initramfs_bytes=run.initramfs_bytes,
        phases=_phases(run.phases),
        units=_phases(run.units),
        took_ns=run.took_ns,
        firmware_ns=run.firmware_ns,
        loader=Reads(run.loader_reads, run.loader_read_bytes),
    )


def _phases(entries: Sequence[PhaseEntry]) -> tuple[Phase, ...]:
    return tuple(Phase(each.name, each.begin_ns, each.end_ns) for each in entries)


def _facts(document: Document) -> Facts:
    boots = {name: Booted(**dict(each)) for name, each in document.boots.items()}
    return Facts(boots, document.contents, document.packages)


def _results(document: Document) -> Results:
    plan = tuple(_planned(each) for each in document.plan)
    asked = {each.cell for each in plan}
    return Results(
        name=document.name,
        command=document.command,
        began=document.began,
        circumstances=Circumstances(
            host=document.host,
            versions=document.versions,
            artefacts=document.artefacts,
            poll_interval_ms=document.poll_interval_ms,
            facts=_facts(document),
        ),
        plan=plan,
        samples=tuple(_sample(each, asked) for each in document.runs),
    )


def _plan_problems(plan: Sequence[Planned]) -> Iterator[str]:
    first: dict[Cell, int] = {}
    if (profiles := len({each.cell.profile for each in plan})) > _PROFILES_MAX:
        yield f"plan: {profiles} applications, and at most {_PROFILES_MAX} are shown together"
    yield from (f"plan: {problem}" for problem in picture_problems(each.cell for each in plan))
    if (runs := sum(each.runs for each in plan)) > RUNS_MAX:
        yield f"plan: {runs} runs, and at most {RUNS_MAX} are planned together"
    for index, planned in enumerate(plan):
        if first.setdefault(planned.cell, index) != index:
            yield f"plan[{index}]: the cell of plan[{first[planned.cell]}] again"
        if planned.cell.firmware and planned.cell.configuration not in DISK_CONFIGURATIONS:
            known = " and ".join(DISK_CONFIGURATIONS)
            yield f"plan[{index}].configuration: a disk has {known} (got {planned.cell.configuration})"
        if problem := cell_problem(planned.cell):
            yield f"plan[{index}].{problem}"


def _run_problems(document: Document, results: Results) -> Iterator[str]:
    planned = {each.cell: each.runs for each in results.plan}
    first: dict[tuple[Cell, int, int], int] = {}
    yield from launch_problems(results.samples)
    for index, (run, sample) in enumerate(zip(document.runs, results.samples, strict=True)):
        place = f"runs[{index}]"
        key = sample.cell, sample.number, sample.instance
        if first.setdefault(key, index) != index:
            yield f"{place}: run {sample.number} of the cell of runs[{first[key]}] again"
        if sample.cell not in planned:
            yield f"{place}: its cell is not in plan ({words_of(sample.cell)})"
        elif sample.number > planned[sample.cell]:
            yield f"{place}.number: the plan has {planned[sample.cell]} runs of this cell (got {sample.number})"
        known = DELIVERIES if run.configuration == "quickstart" else ("",)
        if run.delivery not in known:
            yield f"{place}.delivery: {run.configuration} has {' or '.join(map(repr, known))} (got {run.delivery!r})"
        if run.payload and run.configuration != "quickstart":
            yield f"{place}.payload: {run.configuration} has none (got {run.payload!r})"
        yield from _censored_problems(place, run) if run.censored else _ready_problems(place, run)


def _censored_problems(place: str, run: RunEntry) -> Iterator[str]:
    for name in _NUMBERS:
        if getattr(run, name):
            yield f"{place}.{name}: a censored run has no number (got {getattr(run, name)})"
    for name in ("phases", "units"):
        if getattr(run, name):
            yield f"{place}.{name}: a censored run has none (got {len(getattr(run, name))})"


def _ready_problems(place: str, run: RunEntry) -> Iterator[str]:
    if run.t_total_ns <= 0:
        yield f"{place}.t_total_ns: a run that is not censored takes time (got {run.t_total_ns})"
    if run.t_app_ns <= 0:
        yield f"{place}.t_app_ns: from the kernel's start to ready takes time (got {run.t_app_ns})"
    if run.t_pr_ns + run.t_app_ns != run.t_total_ns:
        yield f"{place}.t_total_ns: not t_pr_ns + t_app_ns (got {run.t_total_ns}, not {run.t_pr_ns + run.t_app_ns})"
    if run.overlap_ns and run.clock != "virtual":
        yield f"{place}.overlap_ns: 0 on the {run.clock} clock (got {run.overlap_ns})"
    if not run.firmware:
        for name in _OF_A_LOADER:
            if getattr(run, name):
                yield f"{place}.{name}: only a machine with a firmware has one (got {getattr(run, name)})"
    for name in ("phases", "units"):
        for index, phase in enumerate(getattr(run, name)):
            if phase.end_ns < phase.begin_ns:
                yield f"{place}.{name}[{index}].end_ns: before begin_ns (got {phase.end_ns})"
