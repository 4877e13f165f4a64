"""The target for what a boot does before it starts a service: configuration of the network, of udev, of cloud-init and others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from quickstart.errors import QuickStartError
from quickstart.inspect.cloudinit import refuse_bootcmd
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import refuse_local_clock
from quickstart.inspect.unit.dhcpconf import sent_by_dhclient, sent_by_dhcpcd
from quickstart.inspect.unit.hooks import refuse_hooks, writes_resolver
from quickstart.inspect.unit.networkd import refuse_networkd, sent_by_networkd
from quickstart.inspect.unit.policies import refuse_policies
from quickstart.inspect.unit.tmpfiles import refuse_tmpfiles
from tests.fuzz.places import parts_of, put

PREPARING_FILES = (
    "etc/dhcp/dhclient.conf",
    "etc/dhcpcd.conf",
    "etc/network/interfaces",
    "etc/tmpfiles.d/a.conf",
    "etc/systemd/network/a.network",
    "etc/systemd/network/a.link",
    "etc/netplan/a.yaml",
    "etc/udev/rules.d/a.rules",
    "etc/modprobe.d/a.conf",
    "etc/cloud/cloud.cfg",
    "etc/adjtime",
)
# By it, cloud-init is found.
_LINK = "etc/systemd/system/cloud-init.target.wants/cloud-init.service"
_REFUSING = (
    refuse_hooks,
    refuse_networkd,
    refuse_tmpfiles,
    refuse_policies,
    refuse_bootcmd,
    refuse_local_clock,
)


def preparing(data: bytes, base: Path) -> None:
    """Each reader by itself: one refuses a file that says nothing to the others."""
    parts = parts_of(data, PREPARING_FILES)
    root = ImageRoot(put(base, {**parts, _LINK: b""}, (*PREPARING_FILES, _LINK)))
    for refuse in _REFUSING:
        with suppress(QuickStartError):
            refuse(root, "app.service")
    with suppress(QuickStartError):
        sent_by_networkd(root, "app.service")
    sent_by_dhclient(parts.get("etc/dhcp/dhclient.conf", b"").decode(errors="surrogateescape"))
    sent_by_dhcpcd(parts.get("etc/dhcpcd.conf", b"").decode(errors="surrogateescape"))
    writes_resolver(root)
