"""The command `quickstart`, a group with all verbs as its subcommands."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from quickstart import __version__
from quickstart.cli.audit import audit
from quickstart.cli.bench import bench
from quickstart.cli.build import build
from quickstart.cli.cache import cache
from quickstart.cli.cloud.ami import ami
from quickstart.cli.cloud.ec2 import ec2
from quickstart.cli.completion import completion
from quickstart.cli.doctor import doctor
from quickstart.cli.inside import cat, diff, list_members, why
from quickstart.cli.inspect import inspect
from quickstart.cli.profile import profile
from quickstart.cli.rebuild import rebuild
from quickstart.cli.run import run
from quickstart.cli.shell import shell
from quickstart.cli.trace import trace
from quickstart.cli.verify import verify

_FIRST = """\
QuickStart makes a VM and its application start faster.

  quickstart doctor                    what this host lacks, and which command fixes it
  quickstart build --profile nginx     build an image (a few minutes the first time)
  quickstart run quickstart-nginx      boot it, wait until nginx answers, print the URL

quickstart --help lists every verb.
"""


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quickstart")
@click.pass_context
def group(context: click.Context) -> None:
    """Start a VM and its application faster, from an image that stays an ordinary Debian image."""
    if context.invoked_subcommand is None:
        click.echo(_FIRST, nl=False)


group.add_command(doctor)
group.add_command(build)
group.add_command(run)
group.add_command(verify)
group.add_command(rebuild)
group.add_command(trace)
group.add_command(profile)
group.add_command(bench)
group.add_command(shell)
group.add_command(list_members)
group.add_command(cat)
group.add_command(why)
group.add_command(diff)
group.add_command(audit)
group.add_command(inspect)
group.add_command(ami)
group.add_command(ec2)
group.add_command(cache)
group.add_command(completion)


def entry_point() -> None:
    """The entry point of the installed command `quickstart`. When the user's command line is wrong, click exits with
    status 2. QuickStart also uses status 2 for any other bad input.
    """
    handle_signals()
    sys.exit(group())


def handle_signals() -> None:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt. Context managers clean up after an exception such as
    KeyboardInterrupt, but cannot clean up when a signal kills the process.
    """
    # nohup(1) lets its program ignore SIGHUP, so such a signal stays ignored.
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        # More than one SIGHUP may come: from the terminal, and from a shell or session that ends. Neither
        # further SIGHUPs nor a terminal that is gone, where every write fails, may keep us from shutting
        # down a machine in order.
        if signal.SIGHUP in numbers:
            signal.signal(signal.SIGHUP, mute)
        if number == signal.SIGHUP:
            mute(number, frame)
        raise KeyboardInterrupt

    def mute(number: int, frame: FrameType | None) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in terminals:
            os.dup2(null, fd)
        os.close(null)

    for each in numbers:
        signal.signal(each, interrupt)
