"""`quickstart build`: build an artefact from a profile."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from quickstart.cli.options import (
    JSON,
    KEEP_ALL,
    TRACES,
    VERBOSE,
    guest_package_option,
    kernel_options_option,
    profile_option,
    rootfs_option,
)
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines import boot as pipeline
from quickstart.engines.image import ImageOptions, build_image
from quickstart.engines.owndisk import OwnDiskOptions, build_own_disk
from quickstart.engines.trial import Trial, Tried, build_tried, build_untried
from quickstart.errors import BadInputError
from quickstart.image.kerneloptions import added
from quickstart.initramfs.guestconfig import HandOff
from quickstart.initramfs.serving import Delivery
from quickstart.inspect.firstboot import FIRST_BOOT
from quickstart.model import MIB, Profile
from quickstart.model.words import DiskFormat, Early, KernelOptions, Payload, Target
from quickstart.parse.printable import brief
from quickstart.profile import load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from quickstart.verify.untilclean import read_includes, with_includes

# By the names of the parameters.
_NOT_OF_DISKS = {
    "disk_format": "--format",
    "traces": "--traces",
    "stay": "--no-hand-off",
    "release": "--release",
    "guest_package": "--no-guest-package",
    "delivery": "--delivery",
    "payload": "--payload",
    "dry_run": "--dry-run",
}
_NOT_OF_IMAGES = {
    "rootfs": "--rootfs",
    "target": "--target",
    "bios": "--bios",
    "include": "--include",
    **_NOT_OF_DISKS,
}


@click.command()
@profile_option("The application to build for.", required=True)
@rootfs_option()
@click.option(
    "--image",
    type=click.Path(path_type=Path),
    metavar="DISK",
    help="Make a copy of this raw disk, which has its own boot loader and system, start the application early. "
    "The options --rootfs, --target, --bios, --format, --traces, --include, --no-hand-off, --release, "
    "--no-guest-package, --delivery, --payload and --dry-run are not for --image.",
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="The directory of the artefact [quickstart-NAME]."
)
@click.option(
    "--format",
    "disk_format",
    type=click.Choice([each.value for each in DiskFormat]),
    default="raw",
    show_default=True,
    help="The format of the root disk.",
)
@click.option(
    "--target",
    type=click.Choice([each.value for each in Target]),
    default=Target.QEMU.value,
    show_default=True,
    help="qemu: kernel, initramfs and root disk are separate files, for QEMU's -kernel. disk: a disk with a partition "
    "table and a boot loader, which boots by itself. The options --format, --traces, --no-hand-off, --release, "
    "--no-guest-package, --delivery, --payload and --dry-run are not for disk.",
)
@click.option(
    "--bios",
    is_flag=True,
    help="Let machines with a BIOS boot the disk of --target disk, too. Its boot loader is then GRUB, and otherwise "
    "systemd-boot, for UEFI only.",
)
@TRACES
@click.option(
    "--include",
    "include",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also pack the files that this list names (quickstart verify --until-clean writes one).",
)
@click.option(
    "--no-hand-off",
    "stay",
    is_flag=True,
    help="Let init stay PID 1 and run only the application: the paper's minimal system.",
)
@click.option("--release", is_flag=True, help="Free /fast once the distribution's boot is complete.")
@guest_package_option("Leave the Debian package quickstart-guest out of the image.")
@click.option(
    "--delivery",
    type=click.Choice([each.value for each in Delivery]),
    default=Delivery.OVERLAY.value,
    show_default=True,
    help="The way in which packed files reach the application. fast: programs and libraries are found by PATH, "
    "LD_LIBRARY_PATH and the loader's name. overlay: a unit with its own mount namespace also gets the files below "
    "/usr that it opens by absolute path.",
)
@click.option(
    "--payload",
    type=click.Choice([each.value for each in Payload]),
    help="The form of the initramfs. A compressed one is fetched faster, but unpacking it takes time [the profile's].",
)
@kernel_options_option("the profile's")
@click.option(
    "--no-trial",
    "untried",
    is_flag=True,
    help="Do not boot the result. Otherwise, it boots once beside a stock boot, and if the early start is not ready "
    "sooner, every boot of OUT is a stock boot.",
)
@click.option("--force", is_flag=True, help="Replace OUT even when its root disk has been used.")
@click.option("--dry-run", is_flag=True, help="Print which stages would run, and run none of them.")
@KEEP_ALL
@VERBOSE
@JSON
def build(verbose: bool, as_json: bool, **given: Any) -> None:
    """Build an image whose application starts from memory.

    The build makes the reference image (by debootstrap, or from --rootfs), boots it under strace (once, unless
    --traces says more), computes the start set, and writes the root disk, kernel and initramfs to OUT. Results
    of earlier builds are taken from the store. When OUT is complete, the build boots it twice on trial: once with
    the early start, and once the stock way.
    """
    asked = _Asked(**given)
    sys.exit(
        run_verb(
            "build",
            as_json,
            lambda verb: _build(verb, asked),
            verbose,
            as_root=True,
            out=lambda: asked.out or _default_out(asked.profile_name),
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options of the command line, by the names of their parameters."""

    profile_name: str
    rootfs: Path | None
    image: Path | None
    out: Path | None
    disk_format: str
    target: str
    bios: bool
    traces: int
    include: Path | None
    stay: bool
    release: bool
    guest_package: bool
    delivery: str
    payload: str | None
    kernel_options: str | None
    untried: bool
    force: bool
    dry_run: bool
    keep: bool

    @property
    def options_of_kernel(self) -> KernelOptions | None:
        return KernelOptions(self.kernel_options) if self.kernel_options else None


def _build(verb: Verb, asked: _Asked) -> int:
    """Do what ``asked`` says. Returns the exit status."""
    profile = load_profile(asked.profile_name)
    if asked.image is not None:
        return _build_image(verb, profile, asked.image, asked)
    if asked.include is not None:
        profile = with_includes(profile, read_includes(asked.include))
    if asked.target == Target.DISK:
        return _build_own_disk(verb, profile, asked)
    if asked.bios:
        raise BadInputError("--bios is for --target disk only", hint="leave it out, or add --target disk")
    tracing = pipeline.TraceOptions(asked.traces, asked.rootfs, asked.keep, asked.guest_package)
    if asked.dry_run:
        return _show_plan(verb, profile, tracing, Store(default_root()))
    options = pipeline.BuildOptions(
        out=verb.place,
        disk_format=DiskFormat(asked.disk_format),
        target=Target(asked.target),
        force=asked.force,
        tracing=tracing,
        hand_off=_hand_off(asked.stay, asked.release),
        delivery=Delivery(asked.delivery),
        payload=Payload(asked.payload) if asked.payload else None,
        kernel_options=asked.options_of_kernel,
    )
    building = build_untried if asked.untried else build_tried
    return _built(verb, lambda context: building(profile, options, context))


def _default_out(profile_name: str) -> Path:
    return Path(f"quickstart-{load_profile(profile_name).name}")


def _build_image(verb: Verb, profile: Profile, image: Path, asked: _Asked) -> int:
    _refuse_beside("--image", _NOT_OF_IMAGES)
    options = ImageOptions(
        image=image.absolute(),
        out=verb.place,
        force=asked.force,
        keep=asked.keep,
        kernel_options=asked.options_of_kernel,
    )
    return _built(verb, lambda context: Tried(build_image(profile, options, context), None))


def _build_own_disk(verb: Verb, profile: Profile, asked: _Asked) -> int:
    _refuse_beside("--target disk", _NOT_OF_DISKS)
    options = OwnDiskOptions(
        out=verb.place,
        rootfs=asked.rootfs,
        bios=asked.bios,
        force=asked.force,
        keep=asked.keep,
        kernel_options=asked.options_of_kernel,
    )
    return _built(verb, lambda context: Tried(build_own_disk(profile, options, context), None))


def _built(verb: Verb, building: Callable[[Context], Tried]) -> int:
    """Call ``building`` with the store, and show its result. Returns the exit status."""
    with Store(default_root(), verb.display().note) as store:
        tried = building(Context(store, verb.display()))
    verb.result(_result(tried), lambda console: _show(console, tried))
    return 0


def _refuse_beside(kind: str, unsuitable: Mapping[str, str]) -> None:
    """Raise BadInputError when the user has given an option that is not for builds of this ``kind``. ``unsuitable`` has
    these options by the names of their parameters.
    """
    context = click.get_current_context()
    for name, option in unsuitable.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise BadInputError(f"{option} is not for {kind}", hint="leave it out")


def _result(tried: Tried) -> dict[str, object]:
    built, artefact = tried.built, tried.built.artefact
    return {
        "out": str(artefact.directory),
        "made": built.made,
        "profile": artefact.profile_name,
        "initramfs_bytes": artefact.initramfs_bytes,
        "start_set_files": artefact.start_set_files,
        "start_set_bytes": artefact.start_set_bytes,
        "cloud_init": artefact.cloud_init,
        "early": artefact.early,
        "kernel_options": list(added(artefact.cmdline, artefact.stock_cmdline)),
        "trial": dataclasses.asdict(tried.trial) if tried.trial else None,
    }


def _hand_off(stay: bool, release: bool) -> HandOff:
    if stay and release:
        raise BadInputError("--no-hand-off and --release exclude each other")
    if stay:
        return HandOff.STAY
    return HandOff.RELEASE if release else HandOff.KEEP


def _show(console: Console, tried: Tried) -> None:
    artefact = tried.built.artefact
    state = "built" if tried.built.made else "up to date"
    say(console, f"{state}: {artefact.directory}")
    say(
        console,
        f"  start set {artefact.start_set_files} files, {artefact.start_set_bytes / MIB:.1f} MiB; "
        f"initramfs {artefact.initramfs_bytes / MIB:.1f} MiB",
    )
    if tried.trial is not None:
        say(console, f"  {_trial_text(tried.trial)}")
    elif artefact.early == Early.NEVER or artefact.cloud_init:
        say(console, f"  {FIRST_BOOT[artefact.early]}")
    if words := added(artefact.cmdline, artefact.stock_cmdline):
        say(console, f"  kernel options: {' '.join(words)}")
    say(console, f"  next: quickstart run {artefact.directory}")


def _trial_text(trial: Trial) -> str:
    stock = (
        f"the stock boot {trial.stock_ns / 1e9:.2f} s"
        if trial.stock_ns
        else "the stock boot was not ready in time"
    )
    if trial.fallback:
        return (
            f"trial: the early start did not happen ({brief(trial.fallback)}), so every boot is a stock boot"
        )
    times = f"ready {trial.early_ns / 1e9:.2f} s after the machine's start, {stock}"
    if trial.is_sooner:
        return f"trial: {times}"
    return f"trial: {times}; the early start brings nothing, so every boot is a stock boot"


def _show_plan(verb: Verb, profile: Profile, tracing: pipeline.TraceOptions, store: Store) -> int:
    plan = pipeline.plan(profile, tracing, store)
    result = {"stages": [{"stage": stage, "key": key, "stored": have} for stage, key, have in plan.stages]}

    def text(console: Console) -> None:
        for stage, key, have in plan.stages:
            say(console, f"  {stage:10} {key}  {'in the store' if have else 'to be made'}")

    verb.result(result, text)
    return 0
