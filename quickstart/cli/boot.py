"""The options of a boot, which `run` and `shell` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

_P = ParamSpec("_P")
_R = TypeVar("_R")
_OPTIONS = (
    click.option("--snapshot", is_flag=True, help="Throw away what the machine writes to its disk."),
    click.option("--port", type=click.IntRange(1, 65535), help="The port on 127.0.0.1 [a free one]."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        help="Seconds to wait for ready [the profile's].",
    ),
    click.option("--append", default="", metavar="WORDS", help="More words for the kernel's command line."),
    click.option("--keep", is_flag=True, help="Keep the guest's workspace."),
    click.option("-v", "--verbose", is_flag=True, help="Name every program that is started."),
)


def boot_options(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Gives a command ``snapshot``, ``port``, ``timeout_s``, ``append``, ``keep`` and ``verbose``."""
    for option in reversed(_OPTIONS):
        call = option(call)
    return call
