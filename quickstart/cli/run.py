"""`quickstart run`: boot an artefact, wait until it is ready, and show the times."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import click
from rich.console import Console
from rich.table import Table

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.cli.completion import artefacts_here
from quickstart.cli.firmware import FIRMWARE, RunOptions, free_port, run_by_firmware, shut_down, stay
from quickstart.cli.followed import followed
from quickstart.cli.guarded import Kept, guarded
from quickstart.cli.moment import (
    SETTLE_TIMEOUT,
    WHEN,
    When,
    demand_settling,
    moment,
    settle,
    settled_cell,
    settled_facts,
)
from quickstart.cli.options import JSON, boot_options
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_of
from quickstart.errors import BadInputError, GuestEndedError
from quickstart.guest import Executes, Guest, Launcher, executing, powered, with_console
from quickstart.launch.forward import status_line
from quickstart.launch.settled import Settled
from quickstart.measure.times import Measurement, measure
from quickstart.model import MIB, Artefact, Network
from quickstart.model.words import Early, Firmware, ReadyKind
from quickstart.parse.printable import brief, in_full
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

_POWER_OFF_S = 120.0
_EXEC_S = 3600.0
# The limit for each of the command's two streams, which are kept in memory for the JSON.
_EXEC_BYTES = 32 * MIB
# This happens with an emulated machine on a busy host, when the kernel measures its processor's counter
# against a timer that stands still.
_FAST_CLOCK = "the guest's clock ran faster than this host's: only T_total and the numbers of reads say something of this boot"
_FETCH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One boot of a guest that became ready. ``page`` is the HTTP status line of the answer to a GET request that this
    host sent to ``url``. ``page`` is empty without an answer. ``fallback`` says why a stock boot (the distribution's
    own boot) took the place of the fast start. After a fast start, ``fallback`` is empty.

    ``settled`` is None when the run did not wait until the machine had settled. The fields ``exec_*`` are the result of
    the command of `--exec`. ``exec_truncated`` says that the command's output was cut off.
    """

    measurement: Measurement
    url: str
    page: str
    fallback: str = ""
    settled: Settled | None = None
    exec_status: int | None = None
    exec_stdout: bytes = b""
    exec_stderr: bytes = b""
    exec_truncated: bool = False


@click.command()
@click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@click.option("--check", is_flag=True, help="Shut the machine down once it is ready.")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run CMD as root in the guest once the machine has settled, then end with the status of CMD.",
)
@WHEN
@SETTLE_TIMEOUT
@click.option(
    "--stock", is_flag=True, help="Boot the ordinary way, with the distribution's own initramfs and init."
)
@click.option(
    "--beside-stock",
    is_flag=True,
    help="Boot the fast and the stock way, each from the disk as it is now; print both times.",
)
@click.option("--console", is_flag=True, help="Show the guest's console on stderr.")
@FIRMWARE
@boot_options
@JSON
def run(
    out: Path,
    check: bool,
    command: str | None,
    when: str | None,
    settle_timeout_s: float | None,
    stock: bool,
    beside_stock: bool,
    snapshot: bool,
    console: bool,
    firmware: str | None,
    port: int | None,
    timeout_s: float | None,
    append: str,
    network: str,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Boot the artefact OUT, wait until its application answers, and print the URL and the times.

    By default, the machine runs until Ctrl-C, which shuts it down, or until the guest ends by itself. The disk
    keeps what the machine writes, unless --snapshot is given.
    """
    options = RunOptions(
        stock=stock,
        beside_stock=beside_stock,
        snapshot=snapshot or beside_stock,
        check=check,
        command=command,
        when=When(when) if when else None,
        settle_timeout_s=settle_timeout_s,
        console=console,
        port=port,
        timeout_s=timeout_s,
        append=append,
        network=Network(network),
        keep=keep,
    )

    def work(verb: Verb) -> int:
        if firmware is None:
            return _work(verb, out.absolute(), options)
        return run_by_firmware(verb, out.absolute(), Firmware(firmware), options)

    sys.exit(run_verb("run", as_json, work, verbose))


def _work(verb: Verb, out: Path, options: RunOptions) -> int:
    if options.stock and options.beside_stock:
        raise BadInputError("--stock and --beside-stock exclude each other")
    if options.check and options.command is not None:
        raise BadInputError("--check and --exec exclude each other", hint="leave --check out")
    with output.in_use(out), Store(default_root(), verb.display().note) as store:
        artefact = artefacts.load(out)
        if artefact.early is Early.NEVER and not options.beside_stock:
            options = dataclasses.replace(options, stock=True)
        demand_settling(artefact, options.when, options.stock, options.append)
        ran = _boots(verb, artefact, store, options)
    if options.check or options.beside_stock or options.command is not None:
        verb.result(_result(artefact, ran), lambda console: _show(console, ran, options.command is None))
    return ran[-1].exec_status or 0


def _boots(verb: Verb, artefact: Artefact, store: Store, options: RunOptions) -> list[Ran]:
    launcher = launcher_of(artefact, Context(store, verb.display()), keep=options.keep)
    ran: list[Ran] = []
    for stock in (False, True) if options.beside_stock else (options.stock,):
        try:
            ran.append(_boot(verb, artefact, launcher, options, stock))
        except GuestEndedError as error:
            if stock:
                raise
            # A boot loader does the same when the first entry does not boot.
            why = f"fallback 2: {error.message}; booted the stock way"
            verb.display().note(why)
            for line in error.details:
                verb.display().note(f"| {in_full(line)}")
            ran.append(dataclasses.replace(_boot(verb, artefact, launcher, options, True), fallback=why))
    return ran


def _boot(verb: Verb, artefact: Artefact, launcher: Launcher, options: RunOptions, stock: bool) -> Ran:
    machine = pipeline.machine_of(
        artefact,
        stock=stock,
        snapshot=options.snapshot,
        port=options.port or free_port(),
        extra_cmdline=options.append,
        network=options.network,
    )
    with launcher.launch(machine, artefact.ready) as guest:
        return _one_boot(verb, artefact, guest, stock, options, launcher.name)


def _one_boot(
    verb: Verb, artefact: Artefact, guest: Guest, stock: bool, options: RunOptions, accelerator: str
) -> Ran:
    name = "standard" if stock else "quickstart"
    with followed(with_console(guest).console) if options.console else nullcontext():
        with verb.display().step(f"boot {artefact.profile_name} ({name})"):
            readied = guest.wait_ready(options.timeout_s or artefact.ready.timeout_s)
        try:
            when = moment(artefact, options.when, stock, options.append, options.command is not None)
            ran = _while_ready(verb, artefact, guest, measure(readied, name, accelerator), options, when)
        finally:
            # Whatever ended the run, also Ctrl-C, the guest's writes must reach the disk.
            if not options.snapshot and guest.is_running():
                shut_down(verb, powered(guest))
    return ran


def _while_ready(
    verb: Verb,
    artefact: Artefact,
    guest: Guest,
    measurement: Measurement,
    options: RunOptions,
    when: When,
) -> Ran:
    url = (
        f"http://127.0.0.1:{guest.url_port}{artefact.ready.path}"
        if artefact.ready.kind == ReadyKind.HTTP
        else ""
    )
    page = _page(guest.url_port, artefact.ready.path) if url and guest.url_port else ""
    ran = Ran(measurement=measurement, url=url, page=page, fallback=guest.fallback())
    if ran.fallback:
        verb.display().note(_fallback_text(ran.fallback))
    where = f" at {url}" if url else ""
    verb.display().note(
        f"ready: {artefact.profile_name} answers{where}, {measurement.ready_uptime_ns / 1e9:.2f} s after the machine's start"
    )
    if when is When.SETTLED:
        ran = dataclasses.replace(
            ran, settled=settle(verb, executing(guest), options.settle_timeout_s or options.timeout_s)
        )
    if options.command is not None:
        return _execute(verb, executing(guest), options.command, ran)
    if not options.check and not options.beside_stock:
        verb.result(_result(artefact, [ran]), lambda console: _show(console, [ran], True))
        stay(verb, guest)
    return ran


def _execute(verb: Verb, guest: Executes, command: str, ran: Ran) -> Ran:
    if not verb.json:
        out, err = guarded(sys.stdout), guarded(sys.stderr)
        return dataclasses.replace(ran, exec_status=guest.execute(command, out, err, _EXEC_S))
    kept_out, kept_err = Kept(_EXEC_BYTES), Kept(_EXEC_BYTES)
    status = guest.execute(command, cast(BinaryIO, kept_out), cast(BinaryIO, kept_err), _EXEC_S)
    if left_out := kept_out.left_out_bytes + kept_err.left_out_bytes:
        verb.display().note(f"the last {left_out} bytes that the command said are left out")
    return dataclasses.replace(
        ran,
        exec_status=status,
        exec_stdout=bytes(kept_out.data),
        exec_stderr=bytes(kept_err.data),
        exec_truncated=left_out > 0,
    )


def _page(port: int, path: str) -> str:
    """Send an HTTP request GET for ``path`` to the guest, through the host's port ``port``. Return the HTTP status
    line of the answer. The result is empty when no answer arrived within _FETCH_S seconds.
    """
    deadline = time.monotonic() + _FETCH_S
    while time.monotonic() < deadline:
        if line := status_line(port, path):
            return line
        time.sleep(0.1)
    return ""


def _fallback_text(fallback: str) -> str:
    # A console's line may have any length.
    return f"the fast start did not happen, these are the times of the stock boot: {brief(fallback)}"


def _result(artefact: Artefact, ran: list[Ran]) -> Mapping[str, object]:
    runs = [_run_result(artefact, each) for each in ran]
    return runs[0] if len(runs) == 1 else {"runs": runs}


def _run_result(artefact: Artefact, ran: Ran) -> Mapping[str, object]:
    facts: dict[str, object] = {
        "ready": True,
        "profile": artefact.profile_name,
        **dataclasses.asdict(ran.measurement),
        "url": ran.url,
        "page": ran.page,
        "fallback": ran.fallback or None,
        **settled_facts(ran.settled),
        "initramfs_bytes": artefact.initramfs_bytes,
        "start_set_files": artefact.start_set_files,
        "start_set_bytes": artefact.start_set_bytes,
    }
    if ran.exec_status is not None:
        facts["exec_status"] = ran.exec_status
        facts["exec_stdout"] = ran.exec_stdout.decode(errors="replace")
        facts["exec_stderr"] = ran.exec_stderr.decode(errors="replace")
        facts["exec_truncated"] = ran.exec_truncated
    return facts


def _show(console: Console, ran: list[Ran], table_wanted: bool) -> None:
    if not table_wanted:
        return
    for each in ran:
        if each.url:
            page = in_full(each.page) if each.page else "no answer to this host"
            say(console, f"{each.measurement.configuration}: {each.url}  {page}")
    table = Table(
        title=f"from launch to ready ({ran[0].measurement.accelerator}, {ran[0].measurement.clock} clock)"
    )
    table.add_column("")
    for each in ran:
        table.add_column(each.measurement.configuration, justify="right")

    def row(label: str, *values: str) -> None:
        table.add_row(label, *values)

    times = [each.measurement for each in ran]
    row("provisioning T_pr", *(f"{m.t_pr_ns / 1e9:.2f} s" for m in times))
    row("application T_app", *(f"{m.t_app_ns / 1e9:.2f} s" for m in times))
    row("total T_total", *(f"{m.t_total_ns / 1e9:.2f} s" for m in times))
    row("guest's uptime at ready", *(f"{m.ready_uptime_ns / 1e9:.2f} s" for m in times))
    row("root reads before ready", *(str(m.root_reads) for m in times))
    row("root bytes read before ready", *(f"{m.root_read_bytes / MIB:.1f} MiB" for m in times))
    if any(each.settled for each in ran):
        row("guest's uptime when settled", *(settled_cell(each.settled) for each in ran))
    console.print(table)
    if any(m.t_pr_ns < 0 for m in times):
        say(console, _FAST_CLOCK)
