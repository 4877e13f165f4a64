"""`quickstart run --firmware`: boot a disk by the disk's own boot loader, in a machine with a BIOS or UEFI."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.cli.followed import followed
from quickstart.cli.moment import When
from quickstart.cli.options import Option
from quickstart.cli.output import Verb, say
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_of
from quickstart.errors import BadInputError, GuestEndedError, GuestError
from quickstart.guest import Guest, Powered, powered, with_console
from quickstart.launch.forward import status_of
from quickstart.model import Artefact, Network
from quickstart.model.machine import by_firmware
from quickstart.model.words import Firmware, ReadyKind, Target
from quickstart.parse.printable import brief
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

_POWER_OFF_S = 120.0
_PAUSE_S = 0.1

FIRMWARE: Option = click.option(
    "--firmware",
    type=click.Choice([each.value for each in Firmware]),
    help="Boot the disk by its own boot loader, as a machine with this firmware does. Only for an OUT of `build --image` or "
    "`build --target disk`.",
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The command-line options of `quickstart run`. ``when`` is None when the user did not give the option --when. Then
    the function moment in moment.py chooses the moment for which the run waits.
    """

    stock: bool
    beside_stock: bool
    snapshot: bool
    check: bool
    command: str | None
    when: When | None
    settle_timeout_s: float | None
    console: bool
    port: int | None
    timeout_s: float | None
    append: str
    network: Network
    keep: bool


def run_by_firmware(verb: Verb, out: Path, firmware: Firmware, options: RunOptions) -> int:
    """Boot the disk of ``out`` by the disk's own boot loader, and wait until this host gets the application's answer.
    The machine runs only code that is on the disk, so no agent of QuickStart measures times in the machine. The times
    are measured on this host's clock.
    """
    with output.in_use(out), Store(default_root(), verb.display().note) as store:
        artefact = artefacts.load(out)
        _check(artefact, options)
        machine = by_firmware(
            pipeline.machine_of(
                artefact,
                stock=False,
                snapshot=options.snapshot,
                port=options.port or free_port(),
                network=options.network,
            ),
            firmware,
        )
        launcher = launcher_of(artefact, Context(store, verb.display()), keep=options.keep)
        with launcher.launch(machine, None) as guest:
            try:
                ready_ns = _answered(verb, artefact, guest, options)
                facts = _facts(artefact, guest, firmware, ready_ns)
                verb.result(facts, lambda console: _show(console, facts))
                if not options.check:
                    stay(verb, guest)
            finally:
                if not options.snapshot and guest.is_running():
                    shut_down(verb, powered(guest))
    return 0


def _check(artefact: Artefact, options: RunOptions) -> None:
    if artefact.target is not Target.DISK:
        raise BadInputError(
            f"{artefact.directory} has no boot loader",
            hint="only an OUT of `build --image` or `build --target disk` boots by firmware",
        )
    if artefact.ready.kind is not ReadyKind.HTTP:
        raise BadInputError(
            "only an application whose readiness request is HTTP can be asked from this host",
            hint="leave --firmware out",
        )
    wrong = {
        "--stock": options.stock,
        "--beside-stock": options.beside_stock,
        "--exec": options.command is not None,
        "--when": options.when is not None,
        "--append": bool(options.append),
    }
    for name, is_given in wrong.items():
        if is_given:
            raise BadInputError(
                f"{name} is not for --firmware: the disk boots by itself", hint=f"leave {name} out"
            )


def _answered(verb: Verb, artefact: Artefact, guest: Guest, options: RunOptions) -> int:
    """Wait for the application's first correct answer. Return the time from the launch until this answer, in ns of this
    host's clock.
    """
    limit_s = options.timeout_s or artefact.ready.timeout_s
    begin_ns = time.monotonic_ns()
    with (
        followed(with_console(guest).console) if options.console else nullcontext(),
        verb.display().step(f"boot {artefact.profile_name} by its own boot loader"),
    ):
        while time.monotonic_ns() < begin_ns + int(limit_s * 1e9):
            if guest.wait(0):
                raise GuestEndedError(
                    "the machine ended before it was ready", console_tail=with_console(guest).console_tail()
                )
            if status_of(guest.url_port or 0, artefact.ready.path) == artefact.ready.status:
                return time.monotonic_ns() - begin_ns
            time.sleep(_PAUSE_S)
    raise GuestError(
        f"the machine was not ready after {limit_s:g} s", console_tail=with_console(guest).console_tail()
    )


def _facts(artefact: Artefact, guest: Guest, firmware: Firmware, ready_ns: int) -> Mapping[str, object]:
    return {
        "ready": True,
        "profile": artefact.profile_name,
        "firmware": firmware.value,
        "url": f"http://127.0.0.1:{guest.url_port}{artefact.ready.path}",
        "ready_ns": ready_ns,
        "fallback": guest.fallback() or None,
    }


def _show(console: Console, facts: Mapping[str, object]) -> None:
    seconds = int(str(facts["ready_ns"])) / 1e9
    say(console, f"ready: {facts['url']} answers {seconds:.1f} s after the launch, by this host's clock")
    if facts["fallback"]:
        say(console, f"the fast start did not happen: {brief(str(facts['fallback']))}")


def stay(verb: Verb, guest: Guest) -> None:
    """Wait until the user presses Ctrl-C, or until the guest ends by itself."""
    verb.display().note("Ctrl-C shuts the machine down")
    try:
        while not guest.wait(1.0):
            guest.demand_running()
    except KeyboardInterrupt:
        verb.console.print()


def shut_down(verb: Verb, guest: Powered) -> None:
    """Ask the guest for an orderly shutdown. If the guest does not end in time, print a message that the guest was
    switched off.
    """
    with verb.display().step("shut the machine down"):
        ended = guest.power_off(_POWER_OFF_S)
    if not ended:
        verb.display().note(f"the machine did not shut down in {_POWER_OFF_S:g} s and was switched off")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
