"""Refuse an early start when the rest of the boot would undo what the unit does (pure, apart from reading sysctl.d).

In an early start, our init starts the unit before systemd runs. systemd-sysctl, systemd-tmpfiles and systemd-networkd
then write the image's kernel settings some seconds after the unit's start. In a stock boot, these services write the
settings before the unit starts. So a value that the unit itself writes stays in a stock boot, but not after an early
start. For example, dockerd writes net.ipv4.ip_forward. This module compares settings by what they change, and not by
their names. For example, net.ipv4.conf.all.forwarding is the same switch as net.ipv4.ip_forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.networkd import later_forwarding
from quickstart.inspect.unit.switches import undoing
from quickstart.inspect.unit.sysctl import kernel_settings
from quickstart.inspect.unit.tmpfiles import later_writes
from quickstart.model import Op, Trace
from quickstart.parse.printable import brief

_SETTINGS = ("/proc/sys/", "/sys/")


def refuse_undone_settings(traces: Sequence[Trace], unit: str, root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when a program of the units has written a kernel setting that the image's
    configuration also sets.
    """
    written = {
        str(event.path)
        for trace in traces
        for event in trace.events
        if event.op is Op.WRITE and event.error is None and str(event.path).startswith(_SETTINGS)
    }
    if not written:
        return
    settings = (*kernel_settings(root, with_hidden=True), *later_writes(root), *later_forwarding(root))
    if found := undoing(settings, sorted(written)):
        path, setting = found
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it sets {brief(path)}, and the image's sysctl.d, tmpfiles.d or networkd.conf"
            f" would change that after an early start, by {brief(setting.key)}",
            hint="remove the setting from the image, or give it the value that the application wants",
        )
