"""Refuse an early start when the rest of the boot would undo what the unit does (pure, apart from reading sysctl.d).

systemd-sysctl and systemd-tmpfiles write the image's kernel settings some seconds after an early start. In a stock boot they
come before the unit, so a unit that writes one of these settings itself, as dockerd does with net.ipv4.ip_forward, has the last
word there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.sysctl import kernel_settings, sets
from quickstart.inspect.unit.tmpfiles import written_settings
from quickstart.model import Op, Trace
from quickstart.parse.printable import brief

_SETTINGS = PurePosixPath("/proc/sys")


def refuse_undone_settings(traces: Sequence[Trace], unit: str, root: ImageRoot) -> None:
    """Raise UnsupportedUnitError when a program of the units has written a kernel setting that the image sets, too."""
    written = {
        event.path
        for trace in traces
        for event in trace.events
        if event.op is Op.WRITE and event.error is None and event.path.is_relative_to(_SETTINGS)
    }
    if not written:
        return
    settings = (*kernel_settings(root), *written_settings(root))
    for path in sorted(written):
        if sets(settings, str(path.relative_to(_SETTINGS))):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: it sets {brief(str(path))}, and the image's sysctl.d or tmpfiles.d would set it"
                " again after an early start",
                hint="remove the setting from the image, or give it the value that the application wants",
            )
