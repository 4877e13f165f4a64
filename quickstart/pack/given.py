"""Find out whether a unit reads the machine-id or the list of name servers before it is ready (pure, apart from looking
up names in the image).

A boot writes the files with these facts. An early start comes before that, and a program that reads such a file only
once would keep the content that the image's file has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.initramfs.guestconfig import Given
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, unit_texts
from quickstart.inspect.unit.hooks import interface_files
from quickstart.model import Op, Trace

RESOLVER = PurePosixPath("/etc/resolv.conf")
_NETWORK, _ONLINE = "network.target", "network-online.target"
_WAITS = PurePosixPath(
    "/etc/systemd/system/network-online.target.wants/systemd-networkd-wait-online*.service"
)
_AUTO = re.compile(r"^[ \t]*auto[ \t]+(?!lo[ \t]*$)\S", re.MULTILINE)
# machine-id(5); the second is a link to the first, or a copy, for D-Bus.
_MACHINE_IDS = frozenset(map(PurePosixPath, ("/etc/machine-id", "/var/lib/dbus/machine-id")))


def read_before_ready(traces: Sequence[Trace], units: Sequence[str], root: ImageRoot) -> Given:
    """What programs of ``units`` read in a traced boot. ``name_servers`` is true in two cases. In the first case, a
    program read the name servers after the rest of the boot had written them, and its resolver may read them only
    once (trace/collect.py). In the second case, any program read them, and a stock boot starts the units only when
    the network is up (``stock_waits``): a name that does not resolve may change what the program does, for example
    which virtual hosts Apache has.
    """
    opened = {event.path for trace in traces for event in trace.events if event.op is Op.OPEN}
    changed = {path for trace in traces for path in trace.changed.before_unit}
    return Given(
        machine_id=not opened.isdisjoint(_MACHINE_IDS),
        name_servers=can_await_name_servers(root)
        and (RESOLVER in changed or (RESOLVER in opened and stock_waits(root, units))),
    )


def refuse_names_too_early(traces: Sequence[Trace], units: Sequence[str], root: ImageRoot) -> None:
    """Raise UnsupportedUnitError if programs of ``units`` look up names before ready, a stock boot starts the units
    only when the network is up, and init cannot write the name servers in time.
    """
    opened = any(event.path == RESOLVER for trace in traces for event in trace.events if event.op is Op.OPEN)
    if opened and not can_await_name_servers(root) and stock_waits(root, units):
        raise UnsupportedUnitError(
            f"{units[-1]} cannot be started early: it reads {RESOLVER}, which another program writes before it",
            hint=f"make {RESOLVER} a file of the image, or let the unit not come after network-online.target",
        )


def stock_waits(root: ImageRoot, units: Sequence[str]) -> bool:
    """Whether a stock boot starts one of ``units`` only when the network is up: the unit names network-online.target or
    network.target in After=, and ifupdown has an interface with `auto` (interfaces(5)), which its service waits for
    before both targets; or the unit names network-online.target, and networkd's service that waits is enabled.
    """
    after = {word for unit in units for word in _after(root, unit)}
    if _ONLINE in after and any(root.glob(_WAITS)):
        return True
    return not after.isdisjoint((_ONLINE, _NETWORK)) and any(
        _AUTO.search(root.read_text(file)) for file in interface_files(root)
    )


def _after(root: ImageRoot, unit: str) -> list[str]:
    try:
        lines = assignments(unit_texts(root, unit), "[Unit]")
    except (StartSetError, UnsupportedUnitError):
        return []
    return [word for name, value in lines if name == "After" for word in value.split()]


def can_await_name_servers(root: ImageRoot) -> bool:
    """Whether init writes the name servers of its DHCP lease into /etc/resolv.conf, as the image's DHCP client does.
    Init does not do this in two cases: /etc/resolv.conf is a link, which leads to another program's file; or networkd
    is the image's DHCP client, because networkd does not write /etc/resolv.conf.
    """
    try:
        network = network_service(root)
    except UnsupportedUnitError:
        network = ""
    return root.link_target(RESOLVER) is None and network != "networkd"
