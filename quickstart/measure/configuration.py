"""Describe the configurations that the bench compares (paper section 4.1): what each configuration boots, and
its kernel command line (pure).

``quickstart.bench.prepare`` makes the files that a `Boot` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.image.extents import Extent
from quickstart.image.kerneloptions import chosen, with_options
from quickstart.measure.results import COMMAND_LINES, STOCK_CONFIGURATIONS
from quickstart.model import Profile, Readiness
from quickstart.model.machine import Machine, machine
from quickstart.model.words import KernelOptions


@dataclass(frozen=True, kw_only=True)
class Boot:
    """All that a machine needs to boot one configuration, and the readiness request of the application. All
    paths are paths on the host.

    ``command_line`` is one of results.COMMAND_LINES, and ``cmdline`` has the words themselves. ``initrds``
    are joined in order. ``volume`` is a raw image, which is only read. ``fetched`` says where on the volume
    the kernel and the initramfs are (image.extents). When ``attached`` is false, the machine has no root
    volume, and only its kernel and initramfs are read from the volume. ``delivery`` is how the start set
    reaches the guest, one of results.DELIVERIES, or empty. ``unit`` is the application's unit. ``unit_lines``
    (the unit's [Service] assignments) and ``packages`` (the image's packages with versions) are only recorded
    in results.
    """

    configuration: str
    command_line: str
    kernel: Path
    initrds: tuple[Path, ...]
    volume: Path
    fetched: tuple[Extent, ...]
    attached: bool
    cmdline: str
    memory_mib: int
    mac: str
    ready: Readiness
    unit: str
    unit_lines: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    delivery: str = ""

    @property
    def initramfs_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.initrds)


def with_command_line(boot: Boot, command_line: str) -> Boot:
    """``boot`` with the given command line in place of the stock command line. Raises BadInputError for an
    unknown command line.
    """
    if command_line not in COMMAND_LINES:
        raise BadInputError(
            f"no such command line: {command_line}", hint=f"known: {', '.join(COMMAND_LINES)}"
        )
    if boot.command_line != "stock" or command_line == "stock":
        return boot
    cmdline = with_options(boot.cmdline, KernelOptions(command_line))
    return replace(boot, command_line=command_line, cmdline=cmdline)


def built_with(configuration: str, profile: Profile) -> str:
    """The command line (a word in results.COMMAND_LINES) of a configuration, when the matrix names no command
    line.

    A configuration with a distribution's own initramfs gets the stock command line. Our configurations get
    the command line that ``build`` chooses for ``profile``, so that they differ only in what is packed.
    """
    return "stock" if configuration in STOCK_CONFIGURATIONS else chosen(profile, None).value


def machine_of(boot: Boot) -> Machine:
    """The machine that boots ``boot``. Its writes to the disk are discarded, and no port is forwarded to it."""
    return machine(
        boot.configuration,
        memory_mib=boot.memory_mib,
        kernel=boot.kernel,
        initrds=boot.initrds,
        cmdline=boot.cmdline,
        disk=boot.volume if boot.attached else None,
        mac=boot.mac,
    )
