"""The command-line options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from quickstart.cli.completion import profile_names
from quickstart.image.kerneloptions import BUILDABLE
from quickstart.model import Network

_P = ParamSpec("_P")
_R = TypeVar("_R")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

TIMEOUT: Option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    help="The time limit until ready, in seconds [the profile's].",
)
APPEND: Option = click.option(
    "--append", default="", metavar="WORDS", help="Add these words to the kernel's command line."
)
NETWORK: Option = click.option(
    "--network",
    type=click.Choice([each.value for each in Network]),
    default=Network.CLOSED.value,
    show_default=True,
    help="closed: the machine can reach no other machine. open: it can reach everything that this host can reach, "
    "including the host's loopback.",
)
TRACES: Option = click.option(
    "--traces",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="The number of traced boots; the start set has the files that at least one of them used.",
)
KEEP: Option = click.option("--keep", is_flag=True, help="Keep the guest's workspace.")
KEEP_ALL: Option = click.option("--keep", is_flag=True, help="Keep the workspaces of guests for inspection.")
VERBOSE: Option = click.option("-v", "--verbose", is_flag=True, help="Name every program that is started.")
JSON: Option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
_BOOT: tuple[Option, ...] = (
    click.option("--snapshot", is_flag=True, help="Discard everything that the machine writes to its disk."),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="The port of 127.0.0.1 that is forwarded to the application [a free port].",
    ),
    TIMEOUT,
    APPEND,
    NETWORK,
    KEEP,
    VERBOSE,
)


def profile_option(text: str, *, required: bool = False) -> Option:
    """The option ``--profile``. The value of the option, a profile's name or directory, becomes the parameter
    ``profile_name`` of the command's function.
    """
    return click.option(
        "--profile",
        "profile_name",
        required=required,
        metavar="NAME|DIR",
        help=text,
        shell_complete=profile_names,
    )


def rootfs_option(text: str = "Your own root file system, in place of debootstrap.") -> Option:
    return click.option("--rootfs", type=click.Path(path_type=Path), metavar="DIR|TAR", help=text)


def guest_package_option(text: str) -> Option:
    """The option ``--no-guest-package``. This option sets the parameter ``guest_package`` of the command's function to
    False. Without the option, the parameter is True.
    """
    return click.option(
        "--no-guest-package", "guest_package", is_flag=True, flag_value=False, default=True, help=text
    )


def kernel_options_option(default: str) -> Option:
    """The option ``--kernel-options``. Its value becomes the parameter ``kernel_options`` of the command's function.
    Without the option, this parameter is None. ``default`` is the part of the help text that says what None means.
    """
    return click.option(
        "--kernel-options",
        type=click.Choice([each.value for each in BUILDABLE]),
        help="The kernel options of the fast entry. boot: those that shorten a virtual machine's boot "
        f"(docs/users/command-line.md). stock: none. The stock entry never has these options [{default}].",
    )


def boot_options(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the options for a boot to a command. The values of these options become the parameters ``snapshot``,
    ``port``, ``timeout_s``, ``append``, ``network``, ``keep`` and ``verbose`` of the command's function.
    """
    for option in reversed(_BOOT):
        call = option(call)
    return call


_IS_BELOW = "quickstart.cli.options.below"


class VerbAndGroup(click.Group):
    """A command such as `bench`, which is a verb and also a group of sub-verbs. If the first argument is a sub-verb, such as
    `compare`, click calls the sub-verb with all options after it. Otherwise, `bench` makes a measurement.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        below = bool(args) and args[0] in self.commands
        ctx.meta[_IS_BELOW] = below
        ctx.allow_interspersed_args = not below
        ctx.allow_extra_args = below
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [] if ctx.meta.get(_IS_BELOW) else super().get_params(ctx)
