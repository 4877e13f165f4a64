"""`quickstart rebuild`: make a new kernel and initramfs for an artefact whose disk has changed since the build."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click
from rich.console import Console

from quickstart.artefact import directory as artefacts
from quickstart.cli.completion import artefacts_here
from quickstart.cli.options import JSON, KEEP_ALL, VERBOSE, kernel_options_option, profile_option
from quickstart.cli.output import Verb, run_verb, say
from quickstart.engines import rebuild as rebuilding
from quickstart.image.kerneloptions import added
from quickstart.model import MIB, Artefact, Profile
from quickstart.model.words import Early, KernelOptions, Target
from quickstart.profile import load_ours, load_profile
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root


@click.command()
@click.argument("out", type=click.Path(path_type=Path), shell_complete=artefacts_here)
@profile_option("The profile [the profile that comes with QuickStart and has the name in OUT].")
@kernel_options_option("those that OUT has")
@KEEP_ALL
@VERBOSE
@JSON
def rebuild(
    out: Path,
    profile_name: str | None,
    kernel_options: str | None,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Make the kernel and initramfs of OUT again, so that they match the present state of its root disk.

    Use this command after the machine's packages were upgraded, while the machine is off. The command traces a
    boot from the disk, and then writes the new kernel and initramfs to OUT. The root disk is not changed, because
    everything that the traced boot writes is thrown away. An OUT of `build --image` gets a copy of its disk, in which
    the new initramfs is installed.
    """

    def work(verb: Verb) -> int:
        directory = verb.place
        profile = load_profile(profile_name) if profile_name else _profile_of(artefacts.load(directory))
        with Store(default_root(), verb.display().note) as store:
            built = rebuilding.rebuild(
                directory,
                profile,
                Context(store, verb.display()),
                keep=keep,
                kernel_options=KernelOptions(kernel_options) if kernel_options else None,
            )
        artefact = built.artefact
        result = {
            "out": str(artefact.directory),
            "made": built.made,
            "profile": artefact.profile_name,
            "initramfs_bytes": artefact.initramfs_bytes,
            "start_set_files": artefact.start_set_files,
            "start_set_bytes": artefact.start_set_bytes,
            "kernel_options": list(added(artefact.cmdline, artefact.stock_cmdline)),
        }

        def text(console: Console) -> None:
            say(console, f"{'rebuilt' if built.made else 'up to date'}: {artefact.directory}")
            say(
                console,
                f"  start set {artefact.start_set_files} files, {artefact.start_set_bytes / MIB:.1f} MiB; "
                + (
                    "the disk is a new copy"
                    if artefact.target is Target.DISK
                    else "the root disk is as it was"
                ),
            )

        verb.result(result, text)
        return 0

    sys.exit(run_verb("rebuild", as_json, work, verbose, as_root=True, out=lambda: out))


def _profile_of(artefact: Artefact) -> Profile:
    """The profile of ``artefact``, which must be a profile that comes with QuickStart. When ``artefact`` never starts
    early, the returned profile has ``early = "never"``. For example, an artefact never starts early if the test boots
    at the end of its build have shown no benefit.
    """
    profile = load_ours(artefact.profile_name)
    return dataclasses.replace(profile, early=Early.NEVER) if artefact.early is Early.NEVER else profile
