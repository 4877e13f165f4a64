"""`quickstart completion`: print a script for a shell. With this script, the shell completes QuickStart's verbs and
options, and the names of profiles and artefacts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from quickstart.profile import known_profiles

_SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "quickstart"
_VARIABLE = "_QUICKSTART_COMPLETE"
# bash puts the completions into the line unchanged. It could run a part of any other name, or read the name
# as an option.
_PLAIN = re.compile(r"(?:[\w.+@%:,=/-]*/)?[\w.+@%:,][\w.+@%:,=-]*")


def profile_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The completions for a profile. These are profiles that come with QuickStart and directories that contain a
    profile.toml, if their name or path begins with ``incomplete``. When no profile matches, the shell completes
    directory names.
    """
    known = [CompletionItem(name) for name in known_profiles() if name.startswith(incomplete)]
    return [*known, *_holders("profile.toml", incomplete)] or [CompletionItem(incomplete, type="dir")]


def artefacts_here(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The completions for an artefact. These are directories that contain a manifest.json, if their path begins with
    ``incomplete``. When no artefact matches, the shell completes directory names.
    """
    return _holders("manifest.json", incomplete) or [CompletionItem(incomplete, type="dir")]


def _holders(file: str, incomplete: str) -> list[CompletionItem]:
    """The completions for a directory with a file named ``file``. These are the paths of such directories that begin
    with ``incomplete``.

    In a directory such as /tmp, another user may choose the names of subdirectories. So names with a character that a
    shell may interpret are left out. When the result is empty, the callers let the shell complete and quote the names.
    """
    parent, _, start = incomplete.rpartition("/")
    place = Path(f"{parent}/") if "/" in incomplete else Path()
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        names = sorted(
            each.name
            for each in os.scandir(place)
            if each.name.startswith(start) and _PLAIN.fullmatch(f"{prefix}{each.name}")
        )
    except OSError:
        names = []
    return [CompletionItem(f"{prefix}{name}") for name in names if (place / name / file).is_file()]


@click.command()
@click.argument("shell_name", metavar="bash|zsh|fish", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell_name: str) -> None:
    """Print the script by which a shell completes the verbs, options, profiles and artefacts of quickstart.

    For bash, put this line into ~/.bashrc: eval "$(quickstart completion bash)"
    """
    kind = get_completion_class(shell_name)
    root = context.find_root().command
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell_name}")
    # bash's own source() is not used, because it starts bash to find its version.
    click.echo(ShellComplete.source(kind(root, {}, _PROGRAM, _VARIABLE)))
