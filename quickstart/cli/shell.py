"""`quickstart shell`: run a root shell in the reference image, in the initramfs, or in a guest that is ready."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import read_manifest
from quickstart.cli.completion import artefacts_here
from quickstart.cli.firmware import free_port, shut_down
from quickstart.cli.options import boot_options, profile_option
from quickstart.cli.output import Verb, run_verb
from quickstart.cli.shells import places, terminal
from quickstart.cli.shells.reference import find_tree, run_shell
from quickstart.engines import boot as pipeline
from quickstart.engines.launching import launcher_of
from quickstart.errors import BadInputError, GuestError
from quickstart.guest import Exit, Guest, Output, executing, powered, with_terminal
from quickstart.model import Artefact, Network, ReadyStamp
from quickstart.profile import load_profile
from quickstart.reference.confine import confiner
from quickstart.reference.debootstrap import reference_inputs
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

_SESSION_S = 3600.0
_POLL_S = 0.001
_START_S = 120.0
_SAID_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ShellOptions:
    """The command-line options of `quickstart shell` for a shell in a guest."""

    stock: bool
    snapshot: bool
    port: int | None
    timeout_s: float | None
    append: str
    network: Network
    keep: bool


@click.command()
@click.argument("out", required=False, type=click.Path(path_type=Path), shell_complete=artefacts_here)
@click.option(
    "--at",
    "place",
    type=click.Choice(["reference", "initramfs", "guest"]),
    default="guest",
    show_default=True,
    help="The place in which the shell runs.",
)
@profile_option("With --at reference: the image of this profile, instead of the one of OUT.")
@click.option("--stock", is_flag=True, help="Boot the ordinary way (with --at guest).")
@boot_options
def shell(
    out: Path | None,
    place: str,
    profile_name: str | None,
    stock: bool,
    snapshot: bool,
    port: int | None,
    timeout_s: float | None,
    append: str,
    network: str,
    keep: bool,
    verbose: bool,
) -> None:
    """Give a root shell at one of three places; the exit status is that of the shell.

    With --at reference, the shell runs in the reference image; its changes are thrown away. With --at initramfs,
    the shell runs in QuickStart's initramfs before init switches to the root volume, which is mounted at
    /newroot; `exit` continues the boot. With --at guest, the shell runs in the guest once the application is
    ready; `exit` shuts the guest down. Ctrl-] leaves the shell in the initramfs or in the guest, and ends the
    guest. Commands may come from a pipe.
    """
    options = ShellOptions(
        stock=stock,
        snapshot=snapshot,
        port=port,
        timeout_s=timeout_s,
        append=append,
        network=Network(network),
        keep=keep,
    )

    def work(verb: Verb) -> int:
        if place == "reference":
            return _at_reference(verb, out, profile_name)
        if out is None or profile_name is not None:
            raise BadInputError(
                f"--at {place} boots an artefact: give OUT, and no --profile",
                hint="quickstart build --profile nginx makes one",
            )
        directory = out.absolute()
        with output.in_use(directory), Store(default_root(), verb.display().note) as store:
            return _in_guest(verb, artefacts.load(directory), store, place, options)

    sys.exit(run_verb("shell", False, work, verbose, as_root=place == "reference"))


def _at_reference(verb: Verb, out: Path | None, profile_name: str | None) -> int:
    if (out is None) == (profile_name is None):
        raise BadInputError("--at reference needs either OUT or --profile NAME")
    # Held until the shell ends: nobody removes the image from under it.
    with Store(default_root(), verb.display().note) as store:
        return run_shell(_tree(store, out, profile_name), confiner(store))


def _tree(store: Store, out: Path | None, profile_name: str | None) -> Path:
    if out is not None:
        return find_tree(store, read_manifest(artefacts.load(out.absolute()).directory).image_hash)
    profile = load_profile(profile_name or "")
    path = store.use("reference", reference_inputs(profile))
    if path is None:
        raise BadInputError(
            f"the store has no reference image of profile {profile.name}",
            hint=f"quickstart build --profile {profile_name} makes it",
        )
    return path / "root"


def _in_guest(verb: Verb, artefact: Artefact, store: Store, place: str, options: ShellOptions) -> int:
    if place == "initramfs" and options.stock:
        raise BadInputError(
            "--at initramfs is a shell in our initramfs, which --stock does not boot",
            hint="leave --stock out, or take --at guest",
        )
    launcher = launcher_of(artefact, Context(store, verb.display()), keep=options.keep)
    machine = pipeline.machine_of(
        artefact,
        stock=options.stock,
        snapshot=options.snapshot,
        port=options.port or free_port(),
        extra_cmdline=f"{places.OURS_ALONE} {options.append}",
        network=options.network,
    )
    side = terminal.local(0, 1)
    size, term = terminal.window_size(side), os.environ.get("TERM", "dumb")
    if place == "guest":
        with launcher.launch(machine, artefact.ready) as guest:
            return _after_ready(verb, artefact, guest, side, options)
    mark = f"quickstart-shell-{secrets.token_hex(8)}"
    # This fits the terminal modes that the hook has set by then.
    newline = "\r\n" if side.terminal else "\n"
    hook = places.initramfs_hook(mark, side.terminal, size, term).encode()
    with launcher.launch(machine, artefact.ready, {places.HOOK: hook}) as guest:
        return _before_root(verb, artefact, guest, side, options, f"{mark}{newline}".encode())


def _after_ready(
    verb: Verb, artefact: Artefact, guest: Guest, side: terminal.Local, options: ShellOptions
) -> int:
    with verb.display().step(f"boot {artefact.profile_name}"):
        guest.wait_ready(options.timeout_s or artefact.ready.timeout_s)
    try:
        return _guest_session(verb, guest, side)
    finally:
        # As after `run`: what the guest wrote is to reach the disk.
        if not options.snapshot and guest.is_running():
            shut_down(verb, powered(guest))


def _guest_session(verb: Verb, guest: Guest, side: terminal.Local) -> int:
    status: list[int] = []

    def ended() -> bool:
        status.extend(each.status for each in guest.messages(_POLL_S) if isinstance(each, Exit))
        return bool(status)

    with terminal.connect(with_terminal(guest).console_socket) as line:
        executing(guest).start(
            places.guest_program(side.terminal, terminal.window_size(side), os.environ.get("TERM", "dumb"))
        )
        said = b""
        for message in guest.messages(_START_S):
            said = (said + (message.data if isinstance(message, Output) else b""))[-_SAID_BYTES:]
            if isinstance(message, Exit) or said.endswith(places.ATTACHED):
                break
        if not said.endswith(places.ATTACHED):
            what = said.decode(errors="replace").strip() or "no answer"
            raise GuestError(
                "no shell came up in the guest",
                console_tail=guest.console_tail(),
                details=what.splitlines(),
            )
        if _talk(verb, guest, line, side, ended, _SESSION_S) is terminal.Outcome.CLOSED:
            verb.display().note("the guest has ended")
    return status[0] if status else 0


def _before_root(
    verb: Verb,
    artefact: Artefact,
    guest: Guest,
    side: terminal.Local,
    options: ShellOptions,
    mark: bytes,
) -> int:
    limit_s = options.timeout_s or artefact.ready.timeout_s
    ready: list[ReadyStamp] = []

    def ended() -> bool:
        ready.extend(each for each in guest.messages(_POLL_S) if isinstance(each, ReadyStamp))
        return bool(ready)

    with terminal.connect(with_terminal(guest).console_socket) as line:
        with verb.display().step("boot to the initramfs"):
            rest = terminal.skip_to(line, mark, limit_s)
        if rest is None:
            raise GuestError("no shell came up in the initramfs", console_tail=guest.console_tail())
        os.write(side.stdout, rest)
        outcome = _talk(verb, guest, line, side, ended, limit_s)
    if outcome is terminal.Outcome.CLOSED:
        raise GuestError("the guest ended before it was ready", console_tail=guest.console_tail())
    if outcome is terminal.Outcome.LEFT:
        return 0
    verb.display().note(f"ready, after {ready[0].uptime_ns / 1e9:.1f} s of the guest's time")
    if not options.snapshot and guest.is_running():
        shut_down(verb, powered(guest))
    return 0


def _talk(
    verb: Verb,
    guest: Guest,
    line: socket.socket,
    side: terminal.Local,
    ended: Callable[[], bool],
    limit_s: float,
) -> terminal.Outcome:
    if side.terminal:
        verb.display().note("Ctrl-] leaves")
    with terminal.raw(side):
        outcome = terminal.join(line, side, ended, limit_s)
    if outcome is terminal.Outcome.LATE:
        raise GuestError(
            f"nothing came of it within {limit_s:g} s of the end of the input",
            console_tail=guest.console_tail(),
        )
    return outcome
