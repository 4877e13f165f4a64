"""Refuse an early start when the unit uses a device that does not exist yet at this time.

In an early start, our init starts the unit before systemd runs. At this time, /dev has the nodes of the kernel's own
drivers and of the modules in part A of our initramfs, and the links that init makes. The rest of a boot loads more
modules, makes nodes that load a module when they are opened (kmod(8), static-nodes), and makes links to devices (udev).
A program that can do without its device, such as watchdog(8), would not find the device in an early start. So the
program would run without the device permanently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.model import Trace
from quickstart.parse.printable import brief

_NODE = re.compile(r"/dev/.+")
# The nodes in devices.txt of the kernel's documentation, and what init mounts and links in /dev
# (docs/internals/guest.md). The last two are systemd's, for programs that speak to systemd.
_EARLY = re.compile(
    r"/dev/(?:null|zero|full|u?random|kmsg|console|tty\d*|(?:ttyS|hvc)\d+|vcs[au]?\d*|ptmx|(?:pts|shm|fd)(?:/.*)?"
    r"|std(?:in|out|err)|core|mem|port|rtc\d|hpet|nvram|vga_arbiter|cpu_dma_latency|snapshot|userfaultfd"
    r"|(?:[svx]|xv)d[a-z]+\d*|nvme\d.*|log|initctl)"
)
_MOST_SHOWN = 3


def refuse_late_nodes(traces: Sequence[Trace], unit: str) -> None:
    """Raise UnsupportedUnitError when a program of the units has successfully used a path in /dev that does not exist
    in an early start.
    """
    used = {
        path
        for trace in traces
        for event in trace.events
        if event.error is None
        for path in (event.path, event.real)
        if path is not None and _is_late(path)
    }
    if used:
        shown = ", ".join(brief(str(path)) for path in sorted(used)[:_MOST_SHOWN])
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it uses {shown}, which comes later in a boot",
            hint="let another service use the device, or let the application open it only after it is ready",
        )


def _is_late(path: PurePosixPath) -> bool:
    return bool(_NODE.fullmatch(str(path))) and not _EARLY.fullmatch(str(path))
