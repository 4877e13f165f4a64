"""An application that looks for the network at its start waits for the lease where a stock boot waits for the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import Cards, Given, Naming
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op
from quickstart.model.started import Loaded, LoadedUnit
from quickstart.pack.given import (
    needed_before_ready,
    refuse_addresses_too_early,
    refuse_names_too_early,
    stock_waits,
)
from quickstart.pack.lookups import looks_up_names
from tests.unit.imagebuilder import trace
from tests.unit.test_strace_unit import unit_log
from tests.unit.test_unit_sockets import link, put

UNITS = ("app.service",)
AUTO = "auto lo ens3\niface ens3 inet dhcp\n"
HOTPLUG = "auto lo\niface lo inet loopback\nallow-hotplug ens3\niface ens3 inet dhcp\n"
SYSTEM = "/usr/lib/systemd/system"
# As strace prints them.
V4 = '{{sa_family=AF_INET, sin_port=htons(5432), sin_addr=inet_addr("{}")}}, 16'
V6 = (
    "{{sa_family=AF_INET6, sin6_port=htons(1), sin6_flowinfo=htonl(0),"
    ' inet_pton(AF_INET6, "{}", &sin6_addr), sin6_scope_id=if_nametoindex("ens3")}}, 28'
)


def image(place: Path, after: str, interfaces: str) -> ImageRoot:
    put(place, f"{SYSTEM}/app.service", f"[Unit]\nAfter={after}\n[Service]\nExecStart=/a\n")
    put(place, "/etc/network/interfaces", interfaces)
    return ImageRoot(place)


@pytest.mark.parametrize(
    ("call", "uses"),
    [
        ("socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_ROUTE) = 3<socket:[8]>", True),
        (
            "socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) = -1 EAFNOSUPPORT (Address family not supported)",
            False,
        ),
        ("socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT) = 3<socket:[8]>", False),
        ("socket(AF_INET, SOCK_STREAM, IPPROTO_IP) = 3<socket:[8]>", False),
        ('ioctl(3<socket:[8]>, SIOCGIFCONF, {ifc_len=80 => 40, ifc_buf=[{ifr_name="lo"}]}) = 0', True),
        ('ioctl(3<socket:[8]>, SIOCGIFADDR, {ifr_name="ens3"}) = -1 EADDRNOTAVAIL (Cannot assign)', True),
        ("ioctl(3</etc/x>, TCGETS, 0x7ffe) = -1 ENOTTY (Inappropriate ioctl for device)", False),
        (
            "connect(3<socket:[8]>, {sa_family=AF_INET, sin_port=htons(53),"
            ' sin_addr=inet_addr("10.0.2.3")}, 16) = -1 ENETUNREACH (Network is unreachable)',
            True,
        ),
        (
            "connect(3<socket:[8]>, {sa_family=AF_INET6, sin6_port=htons(1), sin6_flowinfo=htonl(0),"
            ' inet_pton(AF_INET6, "fec0::2", &sin6_addr), sin6_scope_id=0}, 28) = 0',
            True,
        ),
        (
            "connect(3<socket:[8]>, {sa_family=AF_INET, sin_port=htons(53),"
            ' sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
            False,
        ),
        (
            "connect(3<socket:[8]>, {sa_family=AF_INET6, sin6_port=htons(1), sin6_flowinfo=htonl(0),"
            ' inet_pton(AF_INET6, "::1", &sin6_addr), sin6_scope_id=0}, 28) = 0',
            False,
        ),
        ('connect(3<socket:[8]>, {sa_family=AF_UNIX, sun_path="/dev/log"}, 110) = 0', False),
        # PostgreSQL with listen_addresses = '127.0.0.1,10.0.1.5' goes on with the first alone. The build's machine
        # has neither.
        (f"bind(3<socket:[8]>, {V4.format('10.0.1.5')}) = -1 EADDRNOTAVAIL (Cannot assign)", True),
        (f"bind(3<socket:[8]>, {V6.format('2001:db8::1')}) = 0", True),
        (f"bind(3<socket:[8]>, {V4.format('127.0.0.1')}) = 0", False),
        (f"bind(3<socket:[8]>, {V4.format('0.0.0.0')}) = 0", False),  # noqa: S104
        (f"bind(3<socket:[8]>, {V6.format('::')}) = 0", False),
        ('bind(3<socket:[8]>, {sa_family=AF_UNIX, sun_path="/run/a"}, 110) = 0', False),
        ("bind(3<socket:[8]>, {sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, 12) = 0", False),
        (f'sendto(3<socket:[8]>, "x", 1, 0, {V4.format("10.0.1.5")}) = -1 ENETUNREACH (Unreachable)', True),
        (f'sendto(3<socket:[8]>, "x", 1, 0, {V6.format("2001:db8::1")}) = 1', True),
        (f'sendto(3<socket:[8]>, "x", 1, 0, {V4.format("127.0.0.1")}) = 1', False),
        # What is sent is not an address.
        (f"""sendto(3<socket:[8]>, "{V4.format("10.0.1.5")}", 9, 0, {V4.format("127.0.0.1")}) = 9""", False),
        (f'sendto(3<socket:[8]>, "{V4.format("10.0.1.5")}", 9, 0, NULL, 0) = 9', False),
        (
            'setsockopt(3<socket:[8]>, SOL_IP, IP_ADD_MEMBERSHIP, {imr_multiaddr=inet_addr("224.0.0.251"),'
            ' imr_interface=inet_addr("0.0.0.0")}, 8) = -1 ENODEV (No such device)',
            True,
        ),
        ("setsockopt(3<socket:[8]>, SOL_IPV6, MCAST_JOIN_GROUP, {gr_interface=2}, 136) = 0", True),
        ("setsockopt(3<socket:[8]>, SOL_IPV6, IPV6_V6ONLY, [1], 4) = 0", False),
        ("setsockopt(3<socket:[8]>, SOL_IP, IP_RECVERR, [1], 4) = 0", False),
        ('openat(AT_FDCWD</>, "/proc/net/if_inet6", O_RDONLY) = 3</proc/11/net/if_inet6>', True),
        ('openat(AT_FDCWD</>, "/proc/net/unix", O_RDONLY) = 3</proc/11/net/unix>', False),
    ],
)
def test_what_uses_the_network(call: str, uses: bool) -> None:
    assert unit_log(f"11 {call}").network is uses
    # Of another unit, and of systemd's child.
    assert not unit_log(f"20 {call}", f"1 {call}").network


@pytest.mark.parametrize(
    ("result", "asks"), [("= 0", True), ("= -1 ENOENT (No such file or directory)", False)]
)
@pytest.mark.parametrize("place", ["/run", "/var/run"])
def test_names_from_nscd(tmp_path: Path, place: str, result: str, asks: bool) -> None:
    """Then the application does not read /etc/resolv.conf. Without nscd, it would."""
    found = unit_log(
        f'11 connect(3<socket:[8]>, {{sa_family=AF_UNIX, sun_path="{place}/nscd/socket"}}, 110) {result}'
    )
    traces = [replace(trace(), events=found.events)]
    assert looks_up_names(traces) is asks
    assert not found.network
    root = image(tmp_path, "network.target", AUTO)
    put(tmp_path, "/sbin/dhclient", "")
    put(tmp_path, "/etc/dhcp/dhclient.conf", "")
    assert needed_before_ready(traces, UNITS, root) == Given(name_servers=asks, network=True)


@pytest.mark.parametrize(
    ("after", "interfaces", "waits"),
    [
        ("network.target", AUTO, True),
        ("network-online.target", AUTO, True),
        ("networking.service", AUTO, True),
        # As in QuickStart's own images: nothing waits for it.
        ("network-online.target", HOTPLUG, False),
        ("local-fs.target", AUTO, False),
    ],
)
def test_addresses_are_awaited_where_stock_waits(
    tmp_path: Path, after: str, interfaces: str, waits: bool
) -> None:
    """kamailio listens on the addresses that the machine has at its start, and on no others. An application that did not
    use the network in the reference boot may have a configuration since the build that does.
    """
    root = image(tmp_path, after, interfaces)
    asks = [replace(trace(), uses_network=True)]
    assert needed_before_ready(asks, UNITS, root) == Given(network=waits)
    assert needed_before_ready([trace()], UNITS, root) == Given(network=waits)
    # Init sets the address up itself, whoever writes the name servers.
    link(tmp_path, "/etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf")
    assert needed_before_ready(asks, UNITS, root) == Given(network=waits)
    refuse_names_too_early(asks, UNITS, root)


@pytest.mark.parametrize(("after", "waits"), [("network.target", True), ("local-fs.target", False)])
def test_cloud_init_may_let_ifupdown_wait(tmp_path: Path, after: str, waits: bool) -> None:
    """It writes `auto` into /etc/network/interfaces.d in a machine's first boot."""
    root = image(tmp_path, after, HOTPLUG)
    enable(tmp_path, "multi-user.target.wants", "networking.service")
    assert not needed_before_ready([trace()], UNITS, root).network
    enable(tmp_path, "cloud-init.target.wants", "cloud-init.service")
    root = ImageRoot(tmp_path)
    assert needed_before_ready([trace()], UNITS, root).network is waits
    # What the image says decides what is refused.
    assert not stock_waits(root, UNITS)


def enable(place: Path, where: str, name: str) -> None:
    put(place, f"{SYSTEM}/{name}", "")
    link(place, f"/etc/systemd/system/{where}/{name}", f"{SYSTEM}/{name}")


@pytest.mark.parametrize(
    ("event", "looks"),
    [
        ((Op.LOOKUP, "/run/udev/data"), True),
        ((Op.OPEN, "/run/udev/data/b254:0"), True),
        ((Op.LOOKUP, "/run/udev/data", "ENOENT"), False),
        ((Op.LOOKUP, "/run/udev"), False),
        ((Op.LOOKUP, "/run/udev/database"), False),
    ],
)
def test_udev_s_directory(tmp_path: Path, event: tuple[Op, str] | tuple[Op, str, str], looks: bool) -> None:
    """prometheus-node-exporter looks for it once, and would go without the names of disks for good."""
    assert needed_before_ready([trace(event)], UNITS, image(tmp_path, "x.target", "")) == Given(udev=looks)


def test_an_address_that_comes_by_dhcp_of_ipv6(tmp_path: Path) -> None:
    root = image(tmp_path, "network.target", f"{AUTO}iface ens3 inet6 dhcp\n")
    asks = [replace(trace(), uses_network=True)]
    with pytest.raises(UnsupportedUnitError, match=r"interfaces asks for an IPv6 address by DHCP"):
        refuse_addresses_too_early(asks, UNITS, root)
    # Who listens on all addresses has this one when it comes.
    refuse_addresses_too_early([trace()], UNITS, root)
    for interfaces in (f"{AUTO}iface ens3 inet6 auto\n", f"{HOTPLUG}iface ens3 inet6 dhcp\n"):
        put(tmp_path, "/etc/network/interfaces", interfaces)
        refuse_addresses_too_early(asks, UNITS, root)


def test_a_unit_that_comes_after_the_network_through_another(tmp_path: Path) -> None:
    root = image(tmp_path, "site.target", AUTO)
    put(tmp_path, f"{SYSTEM}/site.target", "[Unit]\nDescription=x\n")
    assert not stock_waits(root, UNITS)
    put(tmp_path, f"{SYSTEM}/site.target", "[Unit]\nAfter=network-online.target\n")
    assert stock_waits(root, UNITS)


def test_a_service_of_ifupdown_that_waits(tmp_path: Path) -> None:
    root = image(tmp_path, "network-online.target", HOTPLUG)
    name = "ifupdown-wait-online.service"
    put(tmp_path, f"{SYSTEM}/{name}", "")
    link(tmp_path, f"/etc/systemd/system/network-online.target.wants/{name}", f"{SYSTEM}/{name}")
    assert stock_waits(root, UNITS)


@pytest.mark.parametrize(
    ("name", "started_us", "waits"),
    [
        ("systemd-networkd-wait-online.service", 7, True),
        ("systemd-networkd-wait-online@ens3.service", 7, True),
        ("systemd-networkd-wait-online.service", 0, False),
        ("systemd-networkd.service", 7, False),
    ],
)
@pytest.mark.parametrize("way", ["network-online.target", ""])
def test_a_service_that_waited_in_the_reference_boot(
    tmp_path: Path, name: str, started_us: int, waits: bool, way: str
) -> None:
    """netplan's generator enables it, in /run; or the unit itself wants it and comes after it."""
    root = image(tmp_path, way or name, "")
    units = (
        LoadedUnit(name="app.service", after=frozenset({way or name}), started_us=9),
        LoadedUnit(name="network-online.target", after=frozenset({name}), started_us=8),
        LoadedUnit(name=name, after=frozenset(), started_us=started_us),
    )
    booted = [replace(trace(), uses_network=True, loaded=Loaded(units=units))]
    assert stock_waits(root, UNITS, booted) is waits
    assert needed_before_ready(booted, UNITS, root).network is waits
    assert not stock_waits(root, ("other.service",), booted)


@pytest.mark.parametrize(
    ("conf", "naming"),
    [
        ("request subnet-mask, routers, host-name;", Naming.LEASE),
        ('supersede host-name "web1";', Naming.CLIENT),
        ('request subnet-mask, routers;\ndefault  host-name\n"web1";', Naming.CLIENT),
        ('# supersede host-name "web1";\nsupersede domain-name "x";', Naming.LEASE),
    ],
)
def test_a_name_of_dhclient_s(tmp_path: Path, conf: str, naming: Naming) -> None:
    put(tmp_path, f"{SYSTEM}/networking.service", "")
    root = image(tmp_path, "network.target", HOTPLUG)
    assert needed_before_ready([trace()], UNITS, root).naming is Naming.NOWHERE
    link(
        tmp_path,
        "/etc/systemd/system/multi-user.target.wants/networking.service",
        f"{SYSTEM}/networking.service",
    )
    put(tmp_path, "/etc/dhcp/dhclient.conf", conf)
    assert needed_before_ready([trace()], UNITS, root).naming is Naming.LEASE
    put(tmp_path, "/sbin/dhclient", "")
    assert needed_before_ready([trace()], UNITS, root).naming is naming


@pytest.mark.parametrize(
    ("file", "text", "naming"),
    [
        ("/etc/systemd/network/a.network", "[Match]\nName=e*\n[Network]\nDHCP=yes\n", Naming.LEASE),
        (
            "/etc/systemd/network/a.network",
            "[Match]\nName=e*\n[Network]\nDHCP=yes\n[DHCPv4]\nUseHostname=No\n",
            Naming.NOWHERE,
        ),
        (
            "/etc/netplan/a.yaml",
            "network:\n  ethernets:\n    ens3:\n      dhcp4-overrides:\n        use-hostname: false\n",
            Naming.NOWHERE,
        ),
    ],
)
def test_a_name_of_networkd_s_where_stock_waits(tmp_path: Path, file: str, text: str, naming: Naming) -> None:
    root = image(tmp_path, "network-online.target", "")
    put(tmp_path, file, text)
    for wants in (
        "multi-user.target.wants/systemd-networkd",
        "network-online.target.wants/systemd-networkd-wait-online",
    ):
        assert needed_before_ready([trace()], UNITS, root).naming is Naming.NOWHERE
        put(tmp_path, f"{SYSTEM}/{wants.rpartition('/')[2]}.service", "")
        link(tmp_path, f"/etc/systemd/system/{wants}.service", f"{SYSTEM}/{wants.rpartition('/')[2]}.service")
    assert needed_before_ready([trace()], UNITS, root).naming is naming


RULE = 'SUBSYSTEM=="net", ACTION=="add", ATTR{{address}}=="{}", NAME="{}"\n'
LINK = "[Match]\nMACAddress={}\n[Link]\nName={}\n"


@pytest.mark.parametrize(
    ("file", "text", "cards"),
    [
        # The recorded card is 52:54:00:00:00:01, ens3.
        ("70-x.rules", RULE.format("52:54:00:00:00:01", "ens3"), Cards(own=("52:54:00:00:00:01",))),
        ("70-x.rules", RULE.format("52:54:00:00:00:*", "ens3"), Cards(own=("52:54:00:00:00:*",))),
        (
            "70-x.rules",
            RULE.format("52:54:00:00:00:07|a:b", "lan0"),
            Cards(others=("52:54:00:00:00:07", "a:b")),
        ),
        # The recorded card has its name although the rule is for another card.
        ("70-x.rules", RULE.format("52:54:00:00:00:07", "ens3"), Cards()),
        ("70-x.rules", "# " + RULE.format("52:54:00:00:00:07", "lan0"), Cards()),
        (
            "10-x.link",
            LINK.format("52:54:00:00:00:0A 52:54:00:00:00:0b", "lan0"),
            Cards(others=("52:54:00:00:00:0a", "52:54:00:00:00:0b")),
        ),
        ("10-x.link", LINK.format("52:54:00:00:00:01", "ens3"), Cards(own=("52:54:00:00:00:01",))),
        ("10-x.link", "[Match]\nMACAddress=52:54:00:00:00:01\n[Link]\nMTUBytes=1400\n", Cards()),
    ],
)
def test_cards_that_are_named_by_their_addresses(tmp_path: Path, file: str, text: str, cards: Cards) -> None:
    place = "/etc/udev/rules.d" if file.endswith(".rules") else "/etc/systemd/network"
    put(tmp_path, f"{place}/{file}", text)
    assert needed_before_ready([trace()], UNITS, ImageRoot(tmp_path)).cards == cards
    put(tmp_path, f"{place}/{file}", text.replace("52:", "$(x)"))
    if "MTU" not in text and not text.startswith("#"):
        with pytest.raises(UnsupportedUnitError, match="which init does not understand"):
            needed_before_ready([trace()], UNITS, ImageRoot(tmp_path))
