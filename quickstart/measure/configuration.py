"""What is compared (paper section 4.1): how each configuration boots, and the two command lines of its kernel (pure).

``quickstart.bench.prepare`` makes what a `Boot` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.image.extents import Extent
from quickstart.measure.results import COMMAND_LINES
from quickstart.model import Machine, Readiness

# Options of the distribution's own kernel that make it faster on a virtual machine (command-line.md says what each costs).
OUR_OPTIONS = (
    "cryptomgr.notests",
    "tsc=reliable",
    "no_timer_check",
    "i8042.noaux",
    "i8042.nomux",
    "i8042.dumbkbd",
    "8250.nr_uarts=1",
    "noreplace-smp",
    "initcall_blacklist=crypto_kdf108_init,blake2s_mod_init,crc_t10dif_mod_init,ftrace_check_for_weak_functions,trace_eval_init",
)


@dataclass(frozen=True)
class Boot:
    """What a machine needs to boot one configuration, and when it counts as ready; all files are the host's.

    ``command_line`` is one of results.COMMAND_LINES, ``cmdline`` the words themselves. ``initrds`` are joined in this order.
    ``volume`` is a raw image that is read and never written; ``fetched`` is where kernel and then initramfs lie on it
    (image.extents). Without ``attached`` the machine gets no root volume: kernel and initramfs come from it, and that is all.
    ``delivery`` is how the start set reaches the guest, by results.DELIVERIES; empty where there is none.
    ``unit`` is the application's. ``unit_lines`` (its [Service] assignments) and ``packages`` (the image's, by version) are for
    results alone.
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
    """``boot``, which has the stock one, with another command line; raises BadInputError for one that is not known."""
    if command_line not in COMMAND_LINES:
        raise BadInputError(
            f"no such command line: {command_line}", hint=f"known: {', '.join(COMMAND_LINES)}"
        )
    if boot.command_line != "stock" or command_line == "stock":
        return boot
    return replace(boot, command_line=command_line, cmdline=" ".join((boot.cmdline, *OUR_OPTIONS)))


def machine(boot: Boot, *, forward_port: int | None, guest_port: int) -> Machine:
    """The machine that boots it; what it writes to its disk is thrown away."""
    return Machine(
        name=f"quickstart-{boot.configuration}",
        memory_mib=boot.memory_mib,
        kernel=boot.kernel,
        initrds=boot.initrds,
        cmdline=boot.cmdline,
        disk=boot.volume if boot.attached else None,
        disk_format="raw",
        snapshot=True,
        mac=boot.mac,
        forward_port=forward_port,
        guest_port=guest_port,
    )
