"""`quickstart verify`: show every request that reached the root volume before ready, and how to avoid the request."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click
from rich.console import Console

from quickstart.artefact import directory as artefacts
from quickstart.artefact import output
from quickstart.artefact.manifest import Manifest, read_manifest
from quickstart.artefact.wholedisk import demand_root_volume
from quickstart.cli.completion import artefacts_here
from quickstart.cli.options import (
    APPEND,
    JSON,
    KEEP,
    TIMEOUT,
    VERBOSE,
    guest_package_option,
    profile_option,
    rootfs_option,
)
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines import boot as pipeline
from quickstart.errors import BadInputError, TraceFullError
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.serving import Delivery
from quickstart.model import Artefact, Profile, RootBudget
from quickstart.model.words import KernelOptions, Payload
from quickstart.parse.printable import command
from quickstart.profile import load_ours, load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from quickstart.verify import boot, shown
from quickstart.verify.untilclean import Round, include_list, read_own_includes, until_clean, write_includes


@dataclass(frozen=True)
class _Building:
    """The inputs of the builds that `quickstart verify --until-clean` makes."""

    profile: Profile
    rootfs: Path | None
    guest_package: bool


@click.command()
@click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@click.option(
    "--until-clean",
    is_flag=True,
    help="Build again with the files that the ledger names, until the ledger names no new file.",
)
@profile_option(
    "With --until-clean: the profile to build [the profile that comes with QuickStart and has the name in OUT]."
)
@rootfs_option("With --until-clean: the root file system from which OUT was built.")
@guest_package_option("With --until-clean: OUT was built without the Debian package quickstart-guest.")
@TIMEOUT
@APPEND
@KEEP
@VERBOSE
@JSON
def verify(
    out: Path,
    until_clean: bool,
    profile_name: str | None,
    rootfs: Path | None,
    guest_package: bool,
    timeout_s: float | None,
    append: str,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Boot OUT and account for every request that reached its root volume before the application was ready.

    For each request, the output says which data the request read or wrote, which process and system call caused
    it, and how to avoid it. The output also lists failed look-ups of names, directories that were listed, writes,
    and packed files that were not used. The machine's writes are thrown away. The exit status is 1 when the
    requests exceed the root budget, which the profile sets in its table [budget].
    """
    options = boot.Options(timeout_s, append, keep)

    def work(verb: Verb) -> int:
        directory = verb.place
        with Store(default_root(), verb.display().note) as store:
            if until_clean:
                artefact = artefacts.load(directory)
                demand_root_volume(artefact, "verify --until-clean")
                profile = load_profile(profile_name) if profile_name else load_ours(artefact.profile_name)
                building = _Building(profile, rootfs, guest_package)
                rounds = _until_clean(verb, directory, building, options, store)
            else:
                found = _booted(verb, directory, options, store)
                if isinstance(found, boot.Counted):
                    return _counted(verb, directory, found)
                rounds = (Round((), found),)
        budget = read_manifest(directory).root_budget
        result = shown.document(rounds[-1].verified, budget)
        result["rounds"] = [_round(each) for each in rounds]
        verb.result(result, lambda console: _show(console, directory, rounds, budget))
        return 0 if result["clean"] else 1

    sys.exit(run_verb("verify", as_json, work, verbose, as_root=until_clean, out=lambda: out))


def _verified(verb: Verb, out: Path, options: boot.Options, store: Store) -> boot.Verified:
    found = _booted(verb, out, options, store)
    if isinstance(found, boot.Counted):
        raise found.error
    return found


def _booted(verb: Verb, out: Path, options: boot.Options, store: Store) -> boot.Verified | boot.Counted:
    """The result of a boot of the artefact in ``out``. When the kernel's trace buffer was full before ready, the guest
    boots a second time with a larger buffer. There is no second boot if the user has chosen the size of the buffer, or
    if init has given up the early start.

    Raises TraceFullError when the buffer was full before ready in the last boot, too. Then the user can choose another
    size, for example with the option --append trace_buf_size=256M.
    """
    with output.settled(out):
        # Its disk would change while we read it.
        output.check_unused(out)
    with output.in_use(out):
        artefact = artefacts.load(out)
        found = boot.accounted_with_room(artefact, options, Context(store, verb.display()))
    if isinstance(found, boot.Counted) and isinstance(found.error, TraceFullError):
        raise found.error
    return found


def _counted(verb: Verb, out: Path, found: boot.Counted) -> int:
    """Print the result for a guest whose kernel cannot trace requests. The result is the number of reads of the root
    volume, compared with the limit in the profile (the root budget). Return the exit status.
    """
    budget = read_manifest(out).root_budget
    result = shown.counted_document(found, budget)

    def show(console: Console) -> None:
        for line in shown.counted_lines(found, budget):
            say(console, line)

    verb.result(result, show)
    return 0 if result["clean"] else 1


def same_options(
    artefact: Artefact, manifest: Manifest, tracing: pipeline.TraceOptions
) -> pipeline.BuildOptions:
    """The options of the build that made ``artefact``. ``tracing`` are the options for the traces of the build."""
    return pipeline.BuildOptions(
        out=artefact.directory,
        disk_format=artefact.disk_format,
        tracing=tracing,
        hand_off=HandOff(manifest.hand_off),
        delivery=Delivery(manifest.delivery),
        payload=Payload(manifest.payload),
        kernel_options=KernelOptions(manifest.kernel_options),
    )


def _until_clean(
    verb: Verb, out: Path, building: _Building, options: boot.Options, store: Store
) -> tuple[Round, ...]:
    artefact = artefacts.load(out)
    manifest = read_manifest(out)
    kind = manifest.reference.kind if manifest.reference else ""
    if kind == artefacts.USED_DISK:
        raise BadInputError(f"{out} was rebuilt for a used disk, which no build makes again")
    if building.rootfs is None and kind != "debootstrap":
        raise BadInputError(f"{out} was built from a root file system of yours", hint="name it by --rootfs")
    listed = include_list(out)
    traces = max(1, len(manifest.trace_hashes))
    tracing = pipeline.TraceOptions(traces, building.rootfs, options.keep, building.guest_package)
    how = same_options(artefact, manifest, tracing)

    def build(profile: Profile) -> None:
        pipeline.build(profile, how, Context(store, verb.display()))

    def keep(files: Sequence[PurePosixPath]) -> None:
        write_includes(listed, files)
        verb.display().note(f"{len(files)} files to be packed, too: {listed}")

    before = read_own_includes(listed)
    return until_clean(building.profile, before, build, lambda: _verified(verb, out, options, store), keep)


def _round(each: Round) -> dict[str, Any]:
    charged = each.verified.ledger.charged
    return {
        "added": [str(path) for path in each.added],
        "requests": len(charged),
        "bytes": sum(entry.length_bytes for entry in charged),
    }


def _show(console: Console, out: Path, rounds: tuple[Round, ...], budget: RootBudget) -> None:
    for line in shown.lines(rounds[-1].verified, budget):
        say(console, line)
    for number, each in enumerate(rounds[1:], 2):
        names = ", ".join(str(path) for path in each.added)
        say(console, f"round {number} packed {names}")
    if len(rounds) > 1:
        option = command("--include", str(include_list(out))) or "--include with the list beside OUT"
        say(console, f"the same build again: quickstart build … {option}")
