"""Describe the configurations, which are the ways to boot that the bench compares (section 4.1 of the QuickStart
paper). The description of a configuration names the files that the machine boots, and the kernel command line (pure).

``quickstart.bench.prepare`` makes the files that an object of the class `Boot` names.
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
from quickstart.model.machine import Machine, by_firmware, machine
from quickstart.model.words import Firmware, KernelOptions


@dataclass(frozen=True, kw_only=True)
class Boot:
    """Everything that a machine needs to boot one configuration, and the readiness request of the application. All
    paths are paths on the host.

    ``command_line`` is a name from results.COMMAND_LINES, and ``cmdline`` is the kernel command line itself.
    ``initrds`` are files that together, in this order, are the initramfs. ``volume`` is a raw image, which is only
    read. ``fetched`` says where on the volume the kernel and the initramfs are (see image/extents.py). When
    ``attached`` is false, the machine has no root volume. In this case, the bench reads only the kernel and the
    initramfs from ``volume``. ``delivery`` is the way in which the start set reaches the application. ``delivery`` is
    one of results.DELIVERIES, or empty. ``unit`` is the application's unit. ``unit_lines`` (the unit's [Service]
    assignments) and ``packages`` (the image's packages with versions) have no effect on the boot. The bench only
    records them in its results.

    With ``firmware``, the machine boots ``volume`` by the volume's own boot loader, which reads the kernel and the
    initramfs. Then ``fetched`` is empty. The root file system begins at byte ``root_at_bytes`` of ``volume``. ``uuid``
    is the machine's UUID in SMBIOS, or empty.
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
    firmware: Firmware | None = None
    root_at_bytes: int = 0
    uuid: str = ""

    @property
    def initramfs_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.initrds)


def with_command_line(boot: Boot, command_line: str) -> Boot:
    """Return ``boot`` with the command line ``command_line`` in place of the stock command line. When ``boot`` has
    another command line than the stock command line, or boots by its own boot loader, return it unchanged. Raises
    BadInputError for an unknown command line.
    """
    if command_line not in COMMAND_LINES:
        raise BadInputError(
            f"no such command line: {command_line}", hint=f"known: {', '.join(COMMAND_LINES)}"
        )
    if boot.command_line != "stock" or command_line == "stock" or boot.firmware:
        return boot
    cmdline = with_options(boot.cmdline, KernelOptions(command_line))
    return replace(boot, command_line=command_line, cmdline=cmdline)


def built_with(configuration: str, profile: Profile) -> str:
    """The kernel command line of a configuration when the bench's matrix does not name a command line. The result is a
    name from results.COMMAND_LINES.

    A configuration with the distribution's own initramfs gets the stock command line. All configurations with our
    initramfs get the command line that ``build`` chooses for ``profile``. So these configurations differ only in the
    files that are packed.
    """
    return "stock" if configuration in STOCK_CONFIGURATIONS else chosen(profile, None).value


def machine_of(boot: Boot) -> Machine:
    """The description of the machine that boots ``boot``. QEMU discards the writes of this machine to its disk, and
    forwards no port to the machine.
    """
    plain = machine(
        boot.configuration,
        memory_mib=boot.memory_mib,
        kernel=boot.kernel,
        initrds=boot.initrds,
        cmdline=boot.cmdline,
        disk=boot.volume if boot.attached else None,
        mac=boot.mac,
        uuid=boot.uuid,
    )
    return by_firmware(plain, boot.firmware) if boot.firmware else plain
