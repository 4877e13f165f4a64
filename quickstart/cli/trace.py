"""`quickstart trace`: find the start set of any service, that is, the files that the service needs to become ready. No
artefact is built.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact.traced import check_traced_place, keep_traced
from quickstart.cli.options import JSON, KEEP_ALL, TRACES, VERBOSE, profile_option, rootfs_option
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines import boot as pipeline
from quickstart.model import MIB
from quickstart.model.subject import Traced
from quickstart.parse.printable import in_full
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root


@click.command()
@profile_option("The application to trace.", required=True)
@rootfs_option("Your own root instead of a debootstrap'd one.")
@TRACES
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write start-set.json into this directory."
)
@KEEP_ALL
@VERBOSE
@JSON
def trace(
    profile_name: str,
    rootfs: Path | None,
    traces: int,
    out: Path | None,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Boot the reference image under strace until the service answers, and show the service's start set.

    This command works for any unit, including one that `build` cannot start early yet. After `trace -o DIR`,
    `quickstart why DIR PATH` explains why the file PATH is in the start set.
    """

    def work(verb: Verb) -> int:
        profile = load_profile(profile_name)
        options = pipeline.TraceOptions(traces, rootfs, keep)
        directory = verb.out
        if directory is not None:
            check_traced_place(directory)
        with Store(default_root(), verb.display().note) as store:
            traced = pipeline.trace(profile, options, Context(store, verb.display()))
        if directory is not None:
            keep_traced(traced.start_set, traced.traces, directory)
        verb.result(_result(traced), lambda console: _show(console, traced))
        return 0

    sys.exit(run_verb("trace", as_json, work, verbose, as_root=True, out=lambda: out))


def _result(traced: Traced) -> Mapping[str, object]:
    found = traced.start_set
    return {
        "traces": [
            {
                "events": len(each.events),
                "processes": each.processes,
                "log_lines": each.log_lines,
                "ready_uptime_ns": each.ready_uptime_ns,
                "blind": list(each.blind),
                "mapped": sorted({str(mapped.path) for mapped in each.mapped}),
                "modules_loaded": sorted(set(each.modules) - set(each.modules_before)),
            }
            for each in traced.traces
        ],
        "start_set_files": found.regular_files,
        "start_set_bytes": found.size_bytes,
        "excluded": [{"path": str(each.path), "rule": each.rule} for each in found.excluded],
    }


def _show(console: Console, traced: Traced) -> None:
    found = traced.start_set
    for number, each in enumerate(traced.traces, 1):
        say(
            console,
            f"trace {number}: {each.processes} processes, {len(each.events)} events in {each.log_lines} lines, "
            f"{len({mapped.path for mapped in each.mapped})} programs and libraries mapped at ready",
        )
    size_mib = found.size_bytes / MIB
    say(
        console,
        f"start set: {found.regular_files} files, {size_mib:.1f} MiB; `build` may leave some on the volume",
    )
    if found.traces > 1:
        for file in found.files:
            if 0 < file.seen_in < found.traces:
                say(console, f"  only in {file.seen_in} of {found.traces} traces: {in_full(str(file.path))}")
    for excluded in found.excluded:
        say(console, f"  kept out: {in_full(str(excluded.path))}: {in_full(excluded.rule)}")
