"""Find out what init must await or make before it starts a unit early (pure, apart from looking up names in the image).

Init may have to await or make the machine-id, the name servers, the names of the machine and its network cards, udev's
directory of devices, or the network. In a stock boot, other programs provide these things before the unit starts. An
early start comes before these programs, and a program of the unit that looks for such a thing only once would continue
without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import Cards, Given, Naming
from quickstart.initramfs.takeover import network_service
from quickstart.inspect.cloudinit import has_cloud_init
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.cardnames import names_by_mac
from quickstart.inspect.unit.dhcpclient import client_gives_name
from quickstart.inspect.unit.hooks import interface_files, keeps_resolver, writes_resolver
from quickstart.inspect.unit.networkd import takes_host_name
from quickstart.inspect.unit.order import comes_before
from quickstart.model import NetworkFacts, Op, Trace
from quickstart.model.words import Early
from quickstart.pack.earlier import units_before
from quickstart.pack.harmless import is_only_waiting
from quickstart.pack.lookups import RESOLVER, looks_up_names

_TO_FILE = f"make {RESOLVER} a file of the image, or let the unit not come after network-online.target"
_TO_CLIENT = (
    "let the image's DHCP client write the servers of the lease alone: dhclient without `prepend` or `supersede` of them,"
    " or dhcpcd with its hook resolv.conf, and no resolvconf; or write what `supersede` names into the image's file"
)
_ONLINE = "network-online.target"
_NETWORK = ("networking.service", "network.target")
_WANTS = PurePosixPath("/etc/systemd/system/network-online.target.wants")
_WAITS = (_WANTS / "systemd-networkd-wait-online*.service", _WANTS / "ifupdown-wait-online.service")
_AUTO = re.compile(r"^[ \t]*(?:allow-)?auto[ \t]+(?!lo[ \t]*$)\S", re.MULTILINE)
_DHCPV6 = re.compile(r"^[ \t]*iface[ \t]+\S+[ \t]+inet6[ \t]+dhcp\b", re.MULTILINE)
# prometheus-node-exporter looks for this directory only once. If the directory is missing then, the program never shows
# a disk's model (diskstats_linux.go).
_UDEV_DATA = PurePosixPath("/run/udev/data")
# hosts(5), hostname(5)
NAMES = frozenset(map(PurePosixPath, ("/etc/hosts", "/etc/hostname")))
# cloud-init replaces them in a machine's first boot (ssh_deletekeys).
_HOST_KEYS = "/etc/ssh/ssh_host_*"
# machine-id(5). The second file is for D-Bus. It is a link to the first file, or a copy of the first file.
_MACHINE_IDS = frozenset(map(PurePosixPath, ("/etc/machine-id", "/var/lib/dbus/machine-id")))


def needed_before_ready(traces: Sequence[Trace], units: Sequence[str], root: ImageRoot) -> Given:
    """What init must await or make before it starts ``units``. The result depends on what the programs of ``units``
    looked for in a traced boot, and on whether a stock boot waits for the network.

    ``name_servers`` is true if init can provide /etc/resolv.conf in time (see the function ``can_await_name_servers``),
    and one of these two statements is true.

    - A program read the name servers after the rest of the boot had written them. The program may read the name servers
      only once (trace/resolvers.py).
    - Any program looked up names, and a stock boot starts the units only when the network is up (see the function
      ``stock_waits``). A name that does not resolve may change what a program does, for example which virtual hosts
      Apache has.

    ``network`` is true if a stock boot starts the units only when the network is up. It does not matter whether the
    programs used the network in a traced boot, because the application's configuration may change after the build.
    Somebody may add an address or a host name, and some applications start without an address that is missing (redis'
    `bind -192.0.2.1`). ``network`` is also true if a stock boot may wait for the network because of cloud-init. In the
    first boot, cloud-init writes an ifupdown configuration with `auto` for the network card.

    ``udev`` is true if a program looked for udev's directory of devices, or for a file there.
    """
    opened = {event.path for trace in traces for event in trace.events if event.op is Op.OPEN}
    changed = {path for trace in traces for path in trace.changed.before_unit}
    waits = stock_waits(root, units, traces)
    return Given(
        machine_id=not opened.isdisjoint(_MACHINE_IDS),
        name_servers=can_await_name_servers(root)
        and (RESOLVER in changed or (waits and looks_up_names(traces))),
        network=waits or _may_wait_on_a_machine(root, units),
        udev=any(
            event.error is None and event.path.is_relative_to(_UDEV_DATA)
            for trace in traces
            for event in trace.events
        ),
        naming=_naming(root, units, traces),
        cards=_cards(traces[0].network, names_by_mac(root, units[-1])),
    )


def early_for(traces: Sequence[Trace], wanted: Early, root: ImageRoot) -> Early:
    """The machines on which an application with these traces starts early. The result is the profile's choice
    ``wanted``, with one exception. In the first boot of a machine, cloud-init may write the machine's name into the
    files of names, and replace the SSH host keys. If the application opens one of these files before it is ready, ASK
    becomes SEEN, so the first boot is a stock boot.
    """
    if wanted is not Early.ASK or not has_cloud_init(root):
        return wanted
    opens = any(
        event.op is Op.OPEN and (event.path in NAMES or event.path.match(_HOST_KEYS))
        for trace in traces
        for event in trace.events
    )
    return Early.SEEN if opens else Early.ASK


def refuse_names_too_early(traces: Sequence[Trace], units: Sequence[str], root: ImageRoot) -> None:
    """Raise UnsupportedUnitError if all of these three statements are true.

    - Programs of ``units`` look up names before ready.
    - A stock boot starts the units only when the network is up.
    - Init cannot write the name servers in time.
    """
    if looks_up_names(traces) and not can_await_name_servers(root) and stock_waits(root, units, traces):
        raise UnsupportedUnitError(
            f"{units[-1]} cannot be started early: it looks up names by {RESOLVER}, which another program writes before it",
            hint=_TO_FILE if _is_written_by_another(root) else _TO_CLIENT,
        )


def refuse_addresses_too_early(traces: Sequence[Trace], units: Sequence[str], root: ImageRoot) -> None:
    """Raise UnsupportedUnitError if all of these three statements are true.

    - Programs of ``units`` use the network before ready.
    - A stock boot starts the units only when the network is up.
    - ifupdown's configuration asks for an IPv6 address by DHCPv6. Init does not support DHCPv6.
    """
    of_ipv6 = (file for file in interface_files(root) if _DHCPV6.search(root.read_text(file)))
    if (
        any(trace.uses_network for trace in traces)
        and (file := next(of_ipv6, None))
        and stock_waits(root, units, traces)
    ):
        raise UnsupportedUnitError(
            f"{units[-1]} cannot be started early: it uses the network at its start, and {file} asks for an IPv6 address"
            " by DHCP, which init does not do",
            hint="let the kernel take the address from router advertisements (inet6 auto) in the image",
        )


def stock_waits(root: ImageRoot, units: Sequence[str], traces: Sequence[Trace] = ()) -> bool:
    """Whether a stock boot starts one of ``units`` only when the network is up. There are three cases.

    - The unit is ordered after networking.service, network.target or network-online.target, directly or through other
      units, and ifupdown has an interface with `auto` (interfaces(5)), for which networking.service waits.
    - The unit is ordered after network-online.target, and a service of networkd or ifupdown that waits for the network
      is enabled.
    - In a traced boot, a service that waits for the network was started before the unit. For example, the unit itself
      wants the service (Wants=), or a generator, such as netplan's, has enabled the service.
    """
    if any(map(is_only_waiting, _before(traces, units))):
        return True
    is_auto = any(_AUTO.search(root.read_text(file)) for file in interface_files(root))
    return _come_after_network(root, units, is_auto=is_auto)


def _may_wait_on_a_machine(root: ImageRoot, units: Sequence[str]) -> bool:
    """Whether a stock boot of a machine may wait for the network because of cloud-init. In the first boot of a machine,
    cloud-init writes an ifupdown configuration with `auto` for the network card.
    """
    return (
        has_cloud_init(root)
        and _network(root) == "ifupdown"
        and _come_after_network(root, units, is_auto=True)
    )


def _come_after_network(root: ImageRoot, units: Sequence[str], *, is_auto: bool) -> bool:
    """Whether one of ``units`` is ordered after a unit that waits for the network. ``is_auto`` says whether ifupdown
    has an interface with `auto`.
    """
    waits_online = any(link for pattern in _WAITS for link in root.glob(pattern))
    if not is_auto and not waits_online:
        return False
    earlier = {name for unit in units for name in comes_before(root, unit)}
    return _ONLINE in earlier or (is_auto and not earlier.isdisjoint(_NETWORK))


def _before(traces: Sequence[Trace], units: Sequence[str]) -> Iterator[str]:
    """The services that the traced boots started before one of ``units``."""
    for trace in traces:
        loaded = {each.name: each for each in trace.loaded.units}
        for unit in units:
            if unit in loaded:
                yield from units_before(loaded, unit)


def _cards(network: NetworkFacts, names: Sequence[tuple[str, str]]) -> Cards:
    """The MAC addresses of the cards to which the image gives the name that the card had in the reference boot, and the
    MAC addresses to which the image gives other names. ``names`` has the image's pairs of MAC address and name. The
    first group is empty if none of its MAC addresses matches the card of the reference boot.
    """
    own = tuple(mac for mac, name in names if name == network.interface)
    is_named = any(fnmatchcase(network.mac, mac) for mac in own)
    return Cards(
        own=own if is_named else (), others=tuple(mac for mac, name in names if name != network.interface)
    )


def _naming(root: ImageRoot, units: Sequence[str], traces: Sequence[Trace]) -> Naming:
    """The place where a stock boot finds the host name for a machine that has none, before the boot starts ``units``.
    In an image with ifupdown, the scripts of the DHCP client set the host name. In an image with networkd, networkd
    sets the host name when it has the DHCP lease.
    """
    network = _network(root)
    if network == "ifupdown":
        return Naming.CLIENT if client_gives_name(root) else Naming.LEASE
    is_named = network == "networkd" and takes_host_name(root) and stock_waits(root, units, traces)
    return Naming.LEASE if is_named else Naming.NOWHERE


def _network(root: ImageRoot) -> str:
    try:
        return network_service(root)
    except UnsupportedUnitError:
        return ""


def can_await_name_servers(root: ImageRoot) -> bool:
    """Whether /etc/resolv.conf can have the name servers of a stock boot before init starts a unit. The result is True
    if init can write the name servers of its DHCP lease (take_resolver in initramfs/init/second). The result is also
    True if the file has name servers that do not depend on the lease (see the function ``keeps_resolver``). The result
    is False in these three cases.

    - /etc/resolv.conf is a link to the file of another program.
    - networkd, which does not write /etc/resolv.conf, is the image's DHCP client.
    - ifupdown's DHCP client writes something other than the lease's name servers into /etc/resolv.conf (see the
      function ``writes_resolver``), and the name servers in the file depend on the lease.
    """
    return not _is_written_by_another(root) and (writes_resolver(root) or keeps_resolver(root))


def _is_written_by_another(root: ImageRoot) -> bool:
    """Whether a program other than ifupdown's DHCP client writes /etc/resolv.conf."""
    return root.link_target(RESOLVER) is not None or _network(root) == "networkd"
