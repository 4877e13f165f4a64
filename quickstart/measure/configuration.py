"""What is compared (paper section 4.1): how each configuration boots, and the two command lines of its kernel (pure).

``quickstart.prepare`` makes what a `Boot` names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.measure.results import COMMAND_LINES
from quickstart.model import Machine

# Options of the distribution's own kernel that make it faster on a virtual machine (docs/command-line.md says what each costs).
OUR_OPTIONS = (
    "cryptomgr.notests",
    "tsc=reliable",
    "no_timer_check",
    "i8042.noaux",
    "i8042.nomux",
    "i8042.dumbkbd",
    "8250.nr_uarts=1",
)


@dataclass(frozen=True)
class Boot:
    """What a machine needs to boot one configuration.

    ``command_line`` is one of results.COMMAND_LINES, ``cmdline`` the words themselves. ``disk`` is a raw image that is read and
    never written, or None for a machine without a root volume; ``volume`` is where the boot loader finds kernel and initramfs all
    the same. ``initrds`` are joined in this order; ``stock_initrd`` says that they are the image's own in /boot.
    """

    configuration: str
    command_line: str
    kernel: Path
    initrds: tuple[Path, ...]
    disk: Path | None
    cmdline: str
    memory_mib: int
    volume: Path
    stock_initrd: bool


def with_command_line(boot: Boot, command_line: str) -> Boot:
    """``boot``, which has the stock one, with another command line; raises BadInputError for one that is not known."""
    if command_line not in COMMAND_LINES:
        raise BadInputError(
            f"no such command line: {command_line}", hint=f"known: {', '.join(COMMAND_LINES)}"
        )
    if boot.command_line != "stock" or command_line == "stock":
        return boot
    return replace(boot, command_line=command_line, cmdline=" ".join((boot.cmdline, *OUR_OPTIONS)))


def machine(boot: Boot, *, mac: str, forward_port: int | None, guest_port: int) -> Machine:
    """The machine that boots it; what it writes to its disk is thrown away."""
    return Machine(
        name=f"quickstart-{boot.configuration}",
        memory_mib=boot.memory_mib,
        kernel=boot.kernel,
        initrds=boot.initrds,
        cmdline=boot.cmdline,
        disk=boot.disk,
        disk_format="raw",
        snapshot=True,
        mac=mac,
        forward_port=forward_port,
        guest_port=guest_port,
    )
