"""Find out whether a unit reads the machine-id or the list of name servers before it is ready (pure, apart from looking
up names in the image).

A boot writes the files with these facts. An early start comes before that, and a program that reads such a file only
once would keep the content that the image's file has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import Given
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op, Trace

RESOLVER = PurePosixPath("/etc/resolv.conf")
# machine-id(5); the second is a link to the first, or a copy, for D-Bus.
_MACHINE_IDS = frozenset(map(PurePosixPath, ("/etc/machine-id", "/var/lib/dbus/machine-id")))


def read_before_ready(traces: Sequence[Trace], root: ImageRoot) -> Given:
    """What programs of the unit read in a traced boot. Name servers count only if a program whose resolver may read
    them once did so after the rest of the boot had written them (trace/collect.py).
    """
    opened = {event.path for trace in traces for event in trace.events if event.op is Op.OPEN}
    changed = {path for trace in traces for path in trace.changed.before_unit}
    return Given(
        machine_id=not opened.isdisjoint(_MACHINE_IDS),
        name_servers=RESOLVER in changed and can_await_name_servers(root),
    )


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
