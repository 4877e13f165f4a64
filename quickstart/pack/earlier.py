"""Refuse an early start that would overtake a unit which prepares the machine (pure).

The reader of units (inspect/unit) predicts from the image what a boot starts before the application. This
module asks the boot itself: systemd's own account of the reference boot says what was started, for whatever
reason, and what comes after what. A packet filter, a check or a mount that only a generator, a udev rule or a
preset starts is seen here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from quickstart.errors import UnsupportedUnitError
from quickstart.model import Trace
from quickstart.model.started import LoadedUnit

# systemd.special(7): what comes before one of these prepares the machine for all services.
_PREPARING = ("basic.target", "local-fs.target", "network-pre.target", "sysinit.target")
_KINDS = (".service", ".mount", ".automount")
# They mount what init mounts itself, or what no application uses. Or they prepare what no application depends on: devices, the
# console, entropy, the journal; users and directories, which the starter makes as well. cloud-init has rules of its own
# (docs/users/cloud-init.md).
_HARMLESS = re.compile(
    r"(?:systemd-|cloud-|modprobe@|quickstart|plymouth-|lvm2-|dracut-|initrd-|rescue\.|emergency\.|getty@|serial-getty@).*"
    r"|(?:apparmor|blk-availability|console-setup|dbus|dm-event|e2scrub_reap|fake-hwclock|haveged|ifupdown-pre|keyboard-setup"
    r"|kmod-static-nodes|ldconfig|mdadm-shutdown|networking|nfs-config|open-iscsi|resolvconf|rng-tools|rng-tools-debian|rngd)\.service"
    r"|(?:-|boot|boot-efi|tmp|dev-.*|media-.*|proc-.*|run-.*|sys-.*)\.(?:mount|automount)"
)


def refuse_earlier(traces: Sequence[Trace], units: Iterable[str]) -> None:
    """Raise UnsupportedUnitError when a traced boot has started a service or mount before one of ``units`` that
    prepares the machine, and that is not known to be harmless for an early start.
    """
    stack = frozenset(units)
    for trace in traces:
        loaded = {each.name: each for each in trace.loaded}
        for unit in sorted(stack):
            for name in sorted(_earlier(loaded, unit) - stack):
                raise UnsupportedUnitError(
                    f"{unit} cannot be started early: the reference boot started {name} before it, which prepares the "
                    "machine in a way that is not known",
                    hint=f"disable {name} in the image if the application does not depend on it",
                )


def _earlier(loaded: Mapping[str, LoadedUnit], unit: str) -> frozenset[str]:
    # What the application or a later service has mounted was not there before.
    own_us = loaded[unit].started_us if unit in loaded else 0
    preparing = {name for target in _PREPARING for name in _before(loaded, target)}
    return frozenset(
        name
        for name in set(_before(loaded, unit)) & preparing
        if name.endswith(_KINDS)
        and 0 < loaded[name].started_us <= (own_us or loaded[name].started_us)
        and not _HARMLESS.fullmatch(name)
    )


def _before(loaded: Mapping[str, LoadedUnit], unit: str) -> Iterator[str]:
    """The loaded units that come before ``unit``, directly or by way of others."""
    left, seen = [unit], {unit}
    while left:
        found = loaded.get(left.pop())
        for name in (found.after if found else frozenset()) - seen:
            seen.add(name)
            left.append(name)
            if name in loaded:
                yield name
