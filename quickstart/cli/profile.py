"""`quickstart profile new|check`: write a profile for any Debian service, and check whether a profile is valid."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from quickstart.cli.completion import profile_names
from quickstart.cli.firmware import free_port
from quickstart.cli.options import JSON, KEEP_ALL, VERBOSE, rootfs_option
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines.boot import TraceOptions
from quickstart.errors import BadInputError
from quickstart.model import MIB, Profile
from quickstart.newprofile.check import Checked, check
from quickstart.newprofile.findings import Findings
from quickstart.newprofile.ground import of_disk, of_packages, packages_of
from quickstart.newprofile.make import PROFILE, Place, check_place, make
from quickstart.newprofile.readme import command, request
from quickstart.newprofile.request import UNKNOWN_READY, first_draft, wanted_ready
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root

# Stands for the packages that the disk of `--image` will name.
_ANY = ("dpkg",)


@click.group()
def profile() -> None:
    """Write a profile for a service, or check a profile."""


@profile.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="P",
    help="A Debian package; may be given several times [with --image: the packages of the units].",
)
@click.option(
    "--unit",
    "units",
    multiple=True,
    required=True,
    metavar="U",
    help="The service that starts early; several times for a stack, and the one that answers is the last.",
)
@click.option(
    "--ready",
    metavar="http:PORT/PATH|tcp:PORT|exec:CMD",
    help="The readiness request; its first correct answer is ready [what a boot of the stock image shows].",
)
@click.option("--status", type=click.IntRange(100, 599), metavar="N", help="The correct HTTP status [200].")
@click.option("--suite", default="bookworm", show_default=True, metavar="SUITE", help="The Debian suite.")
@rootfs_option()
@click.option(
    "--image",
    type=click.Path(path_type=Path),
    metavar="DISK",
    help="A disk that somebody else has made, in place of debootstrap; it is not changed (docs/users/image.md).",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(1, 7200),
    default=600,
    show_default=True,
    metavar="S",
    help="The time limit until ready, in seconds, for each boot.",
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="The directory of the profile [NAME]."
)
@click.option("--force", is_flag=True, help="Replace an earlier profile in DIR.")
@KEEP_ALL
@VERBOSE
@JSON
def new(
    name: str,
    packages: tuple[str, ...],
    units: tuple[str, ...],
    ready: str | None,
    status: int | None,
    suite: str,
    rootfs: Path | None,
    image: Path | None,
    timeout_s: int,
    out: Path | None,
    force: bool,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Write a profile for any Debian service, from its unit and from boots that are watched and traced.

    profile.toml and README.md are written to DIR. When the service cannot be started early or does not become
    ready, nothing is written, and the message says why. The image and the trace stay in the store, where a later
    build finds them.
    """

    def work(verb: Verb) -> int:
        asked = wanted_ready(ready, status)
        _check_image_options(packages, rootfs, image)
        *companions, unit = units

        def draft(names: Sequence[str]) -> Profile:
            wanted = asked or UNKNOWN_READY
            return first_draft(name, names, unit, wanted, suite, timeout_s, companions=companions)

        place = Place(verb.place, free_port(), force)
        options = TraceOptions(rootfs=rootfs, keep=keep)
        # A fault of the options is shown before the long steps.
        profile = draft(packages or _ANY)
        with Store(default_root(), verb.display().note) as store, ExitStack() as stack:
            context = Context(store, verb.display())
            check_place(place)
            if image is None:
                ground = of_packages(profile, options, context)
            else:
                ground = stack.enter_context(of_disk(image.absolute(), options, context))
                profile = draft(packages or packages_of(ground.root, profile.units))
            found = make(profile, place, ground, options, context, finds_ready=asked is None)
        verb.result(_written(found, place.out), lambda console: _show_written(console, found, place.out))
        return 0

    sys.exit(run_verb("profile new", as_json, work, verbose, as_root=True, out=lambda: out or Path(name)))


def _check_image_options(packages: Sequence[str], rootfs: Path | None, image: Path | None) -> None:
    """Raise BadInputError for `--rootfs` together with `--image`, and when nothing names the packages."""
    if image is not None and rootfs is not None:
        raise BadInputError("--rootfs and --image each name an image", hint="leave one of them out")
    if image is None and not packages:
        raise BadInputError(
            "no package is named", hint="--package P, or give a disk that has the service: --image"
        )


def _written(found: Findings, out: Path) -> Mapping[str, object]:
    profile = found.profile
    return {
        "out": str(out),
        "profile": profile.name,
        "unit": profile.unit,
        "companions": list(profile.companions),
        "ready": request(profile.ready),
        "start_pre": profile.run_start_pre,
        "data": [str(path) for path in found.written],
        "memory_mib": profile.memory_mib,
        "budget_mib": profile.budget_mib,
        "disk_mib": profile.disk_mib,
        "root_budget": {
            "requests": profile.root_budget.requests,
            "bytes": profile.root_budget.read_bytes,
        },
        "requests": found.reads.requests,
        "bytes": found.reads.bytes,
        "unattributed": found.reads.unattributed,
        "initramfs_bytes": found.initramfs_bytes,
        "start_set_files": found.start_set.regular_files,
        "start_set_bytes": found.start_set.size_bytes,
    }


def _show_written(console: Console, found: Findings, out: Path) -> None:
    start_set = found.start_set
    say(console, f"written: {out / PROFILE}, and README.md with what was found")
    say(console, f"  ready is {request(found.profile.ready)}")
    say(
        console,
        f"  start set {start_set.regular_files} files, {start_set.size_bytes / MIB:.1f} MiB; "
        f"initramfs {found.initramfs_bytes / MIB:.1f} MiB",
    )
    budget = found.profile.root_budget
    say(
        console,
        f"  an early start read {found.reads.requests} requests, {found.reads.bytes / 1e6:.1f} MB of the root volume; "
        f"budget {budget.requests} and {budget.read_bytes / 1e6:.1f} MB",
    )
    say(console, f"  next: quickstart build --profile {out}")


@profile.command("check")
@click.argument("name", metavar="NAME|DIR", shell_complete=profile_names)
@rootfs_option()
@JSON
def check_profile(name: str, rootfs: Path | None, as_json: bool) -> None:
    """Check a profile, and report all its faults at once; nothing is made or booted.

    When the store has the image, this command also checks whether the unit can start early and whether the files
    of `include` exist. When the store also has the trace, this command checks whether the start set fits into the
    memory budget.
    """

    def work(verb: Verb) -> int:
        checked = check(name, TraceOptions(rootfs=rootfs), Store(default_root()))
        verb.result(_checked(checked), lambda console: _show_checked(console, checked))
        return 0

    sys.exit(run_verb("profile check", as_json, work, as_root=lambda: Store(default_root()).holds_trees()))


def _checked(found: Checked) -> Mapping[str, object]:
    unit, start_set = found.unit, found.start_set
    return {
        "file": str(found.file),
        "profile": found.profile.name,
        "ready": request(found.profile.ready),
        "stages": [{"stage": stage, "key": key, "stored": have} for stage, key, have in found.stages],
        "unit": None
        if unit is None
        else {
            "unit": unit.unit,
            "type": unit.type,
            "start": command(unit.start),
            "start_pre": [command(each) for each in unit.start_pre],
            "start_post": [command(each) for each in unit.start_post],
        },
        "start_set_files": start_set.regular_files if start_set else None,
        "start_set_bytes": start_set.size_bytes if start_set else None,
    }


def _show_checked(console: Console, found: Checked) -> None:
    say(console, f"{found.file} holds: ready is {request(found.profile.ready)}")
    if found.unit is None:
        say(console, f"  {found.profile.unit} was not looked at: the store has no image of this profile")
    else:
        pre = [*(f"ExecStartPre {command(each)}" for each in found.unit.start_pre)]
        said = "; ".join([f"{found.unit.unit} (Type={found.unit.type}) can start early", *pre])
        say(console, f"  {said}: {command(found.unit.start)}")
    if found.start_set is not None:
        files, size_mib = found.start_set.regular_files, found.start_set.size_bytes / MIB
        say(
            console,
            f"  start set at most {files} files, {size_mib:.1f} MiB of {found.profile.budget_mib} MiB",
        )
    for stage, key, have in found.stages:
        say(console, f"  {stage:10} {key}  {'in the store' if have else 'to be made'}")
