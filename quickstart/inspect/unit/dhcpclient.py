"""Find what the image's own DHCP client sends to a DHCP server and which options it requests, so that init's DHCP
client can do the same.

A server may choose the machine's address by the host name that a client sends. A server sends an option, such as
classless static routes, only to a client that asks for this option. At each boot, init compares the configuration files
of DHCP clients with their state at the build (before.py lists these files).
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.dhcpconf import (
    NOTHING_SENT,
    HostName,
    Sent,
    gives_host_name,
    sent_by_dhclient,
    sent_by_dhcpcd,
    takes_advertisements,
)
from quickstart.inspect.unit.hooks import interface_files
from quickstart.inspect.unit.networkd import sent_by_networkd
from quickstart.parse.printable import brief

# The host name in interfaces(5), for the clients to which ifupdown passes one. ifupdown uses the first of these
# programs that exists.
_HOST_NAME = re.compile(r"^[ \t]*hostname[ \t]+([A-Za-z0-9.-]{1,63})[ \t]*$", re.MULTILINE)

_METRIC = re.compile(r"^[ \t]*metric[ \t]+(.*\S)", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,9}")
_FIRST = ("/sbin/dhclient", "/sbin/udhcpc")


def sent_by_client(root: ImageRoot, network: str, unit: str) -> Sent:
    """What the image's DHCP client sends to a DHCP server. ``network`` is the enabled network service, `ifupdown` or
    `networkd`, as takeover.network_service returns it. ``network`` is empty when the machine is built without a
    hand-off to systemd. Error messages name ``unit``.

    Raises UnsupportedUnitError when two of networkd's files disagree about the host name (see ``sent_by_networkd`` in
    networkd.py).
    """
    if network == "networkd":
        return sent_by_networkd(root, unit)
    if _is_there(root, "/sbin/dhclient"):
        return sent_by_dhclient(_text(root, "/etc/dhcp/dhclient.conf"))
    fixed = [name for file in interface_files(root) for name in _HOST_NAME.findall(root.read_text(file))]
    if _is_there(root, "/sbin/udhcpc"):
        found = NOTHING_SENT
    elif _is_there(root, "/sbin/dhcpcd"):
        found = sent_by_dhcpcd(_text(root, "/etc/dhcpcd.conf"))
    else:
        return NOTHING_SENT
    return replace(found, name=HostName(fixed=fixed[-1])) if fixed else found


def client_gives_name(root: ImageRoot) -> bool:
    """Whether ifupdown's DHCP client, because of its own configuration, gives a host name to a machine without a host
    name.
    """
    return _is_there(root, "/sbin/dhclient") and gives_host_name(_text(root, "/etc/dhcp/dhclient.conf"))


def client_with_identifier(root: ImageRoot, network: str) -> str:
    """The image's DHCP client, `networkd` or `dhclient`, if this client sends a client identifier (option 61) that init
    can find in the running machine. Otherwise, the result is empty. ``network`` is the enabled network service,
    `ifupdown` or `networkd`, or an empty string. For `ifupdown`, the result is `dhclient` if dhclient's program exists.
    An old lease of dhclient does not prove that the image uses dhclient, because the leases stay in the image after
    another client has replaced dhclient.
    """
    if network == "ifupdown":
        return "dhclient" if _is_there(root, "/sbin/dhclient") else ""
    return network


def metric_of_client(root: ImageRoot, client: str, unit: str) -> str:
    """The metric that /etc/network/interfaces gives to the default route of ``client``, or an empty string. ``client``
    is a result of `client_with_identifier`. Init's default route needs the same metric only when the client is
    dhclient, because networkd and dhcpcd make or replace their own routes.

    Raises UnsupportedUnitError if the files name several metrics, or a metric that is not a number.
    """
    if client != "dhclient":
        return ""
    found = {word for file in interface_files(root) for word in _METRIC.findall(root.read_text(file))}
    if len(found) > 1 or any(not _NUMBER.fullmatch(word) for word in found):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the image's /etc/network/interfaces names the metrics"
            f" {', '.join(map(brief, sorted(found)))}, and init's DHCP client takes one number",
            hint="let all `metric` lines have the same number in the image",
        )
    return next(iter(found), "")


def client_does_ipv6(root: ImageRoot, network: str) -> bool:
    """Whether the image's DHCP client, and not the kernel, gives the network card its IPv6 addresses. dhclient and
    udhcpc leave these addresses to the kernel. ``network`` is the enabled network service, `ifupdown` or `networkd`, or
    an empty string.
    """
    if network == "networkd":
        return True
    is_dhcpcd = _is_there(root, "/sbin/dhcpcd") and not any(map(functools.partial(_is_there, root), _FIRST))
    return network == "ifupdown" and is_dhcpcd and takes_advertisements(_text(root, "/etc/dhcpcd.conf"))


def _is_there(root: ImageRoot, program: str) -> bool:
    return root.resolve(PurePosixPath(program)).canonical is not None


def _text(root: ImageRoot, path: str) -> str:
    file = root.resolve(PurePosixPath(path)).canonical
    return root.read_text(file) if file is not None and root.host(file).is_file() else ""
