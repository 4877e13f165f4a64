"""Networks of networkd, netplan and the reference boot that are not DHCP's alone: each is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import files, networkd
from quickstart.inspect.unit.lines import unit_lines
from quickstart.inspect.unit.networkd import refuse_networkd, sent_by_networkd
from quickstart.model.started import Card, Loaded, Route, Wired
from quickstart.pack.network import refuse_other_network
from quickstart.reference.variant import TUNED
from tests.unit.imagebuilder import trace
from tests.unit.test_unit_sockets import link, put

OWN = "/etc/systemd/network"
DHCP = "[Match]\nName=en*\n\n[Network]\nDHCP=yes\n"
NETPLAN = """\
# Written by hand.
network:
  version: 2
  renderer: networkd
  ethernets:
    ens3:
      dhcp4: true
      dhcp6: false
      optional: true
      match:
        macaddress: "52:54:00:12:34:56"
      set-name: ens3
      dhcp4-overrides:
        use-dns: no
        route-metric: 100
"""


def refused(base: Path) -> str:
    try:
        refuse_networkd(ImageRoot(base), "app.service")
    except UnsupportedUnitError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{OWN}/80-ethernet.network", TUNED.written["etc/systemd/network/80-ethernet.network"]),
        (f"{OWN}/a.network", DHCP),
        (
            f"{OWN}/a.network",
            "[Network]\nDHCP=ipv4\nDNS=192.0.2.1\n[DHCPv4]\nUseDNS=no\n[DHCPv6]\nUseAddress=no\n",
        ),
        (f"{OWN}/a.network.d/b.conf", "[DHCPv4]\nRouteMetric=100\n[Link]\nMTUBytes=1400\n"),
        (f"{OWN}/10.link", "[Match]\nMACAddress=52:54:00:12:34:56\n[Link]\nName=lan0\n"),
        ("/etc/netplan/90.yaml", NETPLAN),
        # As Debian's cloud images have it.
        (
            "/etc/netplan/90-default.yaml",
            "---\nnetwork:\n    version: 2\n    ethernets:\n        all-en:\n            match:\n                name: en*\n"
            "            dhcp4: true\n            dhcp4-overrides:\n                use-domains: true\n            dhcp6: true\n",
        ),
        (f"{OWN}/99-default.link", "[Match]\nOriginalName=*\n[Link]\nMACAddressPolicy=persistent\n"),
        (
            f"{OWN}/20-docker.network",
            "[Match]\nName=docker* veth* br-*\n[Link]\nUnmanaged=yes\nRequiredForOnline=no\n",
        ),
        (f"{OWN}/README", "[Network]\nAddress=192.0.2.7/24\n"),
    ],
)
def test_what_dhcp_gives(tmp_path: Path, path: str, text: str) -> None:
    put(tmp_path, path, text)
    assert refused(tmp_path) == ""


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        (f"{OWN}/a.network", f"{DHCP}Address=192.0.2.7/24\n", "has `Address=192.0.2.7/24` in [Network]"),
        (f"{OWN}/a.network", f"{DHCP}Bridge=br0\n", "has `Bridge=br0`"),
        (f"{OWN}/a.network", f"{DHCP}[Route]\nGateway=192.0.2.1\n", "has `Gateway=192.0.2.1` in [Route]"),
        (f"{OWN}/a.network", f"{DHCP}[Address]\nAddress=192.0.2.7/24\n", "in [Address]"),
        # systemd ends a line at a carriage return, too.
        (f"{OWN}/a.network", f"{DHCP}[Address]\rAddress=192.0.2.7/24\n", "in [Address]"),
        (f"{OWN}/a.network", f"{DHCP}[DHCPv4]\nUseRoutes=no\n", "has `UseRoutes=no`"),
        (f"{OWN}/a.network", f"{DHCP}[Link]\nMACAddress=52:54:00:00:00:01\n", "has `MACAddress="),
        (f"{OWN}/a.network", DHCP.replace("=yes", "=ipv6"), "has `DHCP=ipv6`"),
        (f"{OWN}/a.network", f"{DHCP}LinkLocalAddressing=yes\n", "has `LinkLocalAddressing=yes`"),
        (f"{OWN}/a.network", f"{DHCP}Domains=a \\\n[Address]\nAddress=192.0.2.7/24\n", "in [Network]"),
        (f"{OWN}/a.network", "[Match]\nName=en*\n", "has a card without DHCP"),
        (f"{OWN}/a.network", f"{DHCP}[Network\nAddress=192.0.2.7/24\n", "has a section's name without"),
        (f"{OWN}/a.network", "[Match]\nName=docker* e*\n[Link]\nUnmanaged=yes\n", "has `Unmanaged=yes`"),
        (f"{OWN}/a.network", "[Match]\nName=!veth0\n[Link]\nUnmanaged=yes\n", "has `Unmanaged=yes`"),
        (f"{OWN}/a.network", "[Match]\nDriver=veth\n[Link]\nUnmanaged=yes\n", "has `Unmanaged=yes`"),
        (
            f"{OWN}/a.network",
            "[Match]\nName=veth*\n[Network]\nAddress=192.0.2.7/24\n",
            "has `Address=192.0.2.7/24`",
        ),
        (f"{OWN}/a.network.d/b.conf", "[Network]\nAddress=192.0.2.7/24\n", "has `Address="),
        (f"{OWN}/br0.netdev", "[NetDev]\nName=br0\nKind=bridge\n", "adds a network interface"),
        (f"{OWN}/br0.netdev.d/a.conf", "[NetDev]\nKind=bridge\n", "adds a network interface"),
        (f"{OWN}/a.link", "[Link]\nMACAddressPolicy=random\n", "has `MACAddressPolicy=random`"),
        ("/usr/lib/systemd/network/a.network", f"{DHCP}VLAN=v5\n", "has `VLAN=v5`"),
        ("/usr/local/lib/systemd/network/a.network", f"{DHCP}VLAN=v5\n", "has `VLAN=v5`"),
        (
            "/etc/netplan/a.yaml",
            f"{NETPLAN}      addresses: [192.0.2.7/24]\n",
            "has `addresses: [192.0.2.7/24]`",
        ),
        ("/etc/netplan/a.yaml", f"{NETPLAN}      addresses:\n        - 192.0.2.7/24\n", "has `addresses:`"),
        (
            "/etc/netplan/a.yaml",
            f"{NETPLAN}      macaddress: 02:00:00:00:00:99\n",
            "has `macaddress: 02:00:00:00:00:99`",
        ),
        ("/etc/netplan/a.yaml", f"{NETPLAN}  bridges:\n    br0:\n", "has `bridges:`"),
        ("/etc/netplan/a.yaml", NETPLAN.replace("dhcp4: true", "dhcp4: false"), "has `dhcp4: false`"),
        (
            "/etc/netplan/a.yaml",
            "network: {ethernets: {ens3: {addresses: [192.0.2.7/24]}}}\n",
            "has `network: {",
        ),
        (
            "/etc/netplan/a.yaml",
            "network:\n  ethernets:\n    ens3: {dhcp4: true}\n",
            "has `ens3: {dhcp4: true}`",
        ),
        ("/etc/netplan/a.yaml", 'network:\n  "bridges":\n    br0:\n', 'has `"bridges":`'),
    ],
)
def test_what_init_does_not_do(tmp_path: Path, path: str, text: str, shown: str) -> None:
    put(tmp_path, path, text)
    message = refused(tmp_path)
    assert message.startswith(f"app.service cannot be started early: {path} ")
    assert shown in message


def test_many_sections_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"{OWN}/a.network", DHCP + "".join(f"[{number}]\n" for number in range(50)))
    read: list[str] = []
    lines = unit_lines

    def counted(text: str) -> Iterator[str]:
        read.append(text)
        return lines(text)

    monkeypatch.setattr(files, "unit_lines", counted)
    assert not refused(tmp_path)
    # For faults, for the file as a whole, and for what it keeps networkd away from.
    assert len(read) <= 3


def test_many_files_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        put(tmp_path, f"{OWN}/{number}.network", DHCP)
    put(tmp_path, f"{OWN}/7.network.d/a.conf", "[DHCPv4]\nSendHostname=no\n")
    listed: list[ImageRoot] = []
    own_files = networkd.own_files

    def counted(root: ImageRoot) -> Iterator[PurePosixPath]:
        listed.append(root)
        return own_files(root)

    monkeypatch.setattr(networkd, "own_files", counted)
    with pytest.raises(UnsupportedUnitError, match="has another host name for DHCP"):
        sent_by_networkd(ImageRoot(tmp_path), "app.service")
    assert len(listed) == 1


def test_a_package_s_file_for_containers(tmp_path: Path) -> None:
    path = "/usr/lib/systemd/network/80-container-host0.network"
    put(tmp_path, path, "[Match]\nVirtualization=container\n[Network]\nDHCP=no\n")
    assert "80-container-host0.network" in refused(tmp_path)
    put(
        tmp_path,
        "/var/lib/dpkg/status",
        "Package: systemd\nStatus: install ok installed\nVersion: 252\nArchitecture: amd64\n\n",
    )
    put(tmp_path, "/var/lib/dpkg/info/systemd.list", f"/.\n{path}\n")
    assert refused(tmp_path) == ""


def test_a_mask(tmp_path: Path) -> None:
    link(tmp_path, f"{OWN}/br0.netdev", "/dev/null")
    assert refused(tmp_path) == ""


def test_many_files_and_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networkd, "_MOST_FILES", 2)
    monkeypatch.setattr(networkd, "_MOST_CHARACTERS", 100)
    for name in "ab":
        put(tmp_path, f"{OWN}/{name}.network", DHCP)
    assert refused(tmp_path) == ""
    put(tmp_path, f"{OWN}/b.network", f"{DHCP}#{'x' * 80}\n")
    assert "b.network is too long" in refused(tmp_path)
    put(tmp_path, f"{OWN}/c.network", DHCP)
    assert "is one of more than 2 such files" in refused(tmp_path)


MAC = trace().network.mac
EVERYWHERE, NETWORK = IPv4Network("0.0.0.0/0"), IPv4Network("10.0.2.0/24")
USUAL = Wired(
    cards=(Card("ens3", MAC),),
    routes=(
        Route("ens3", EVERYWHERE, IPv4Address("10.0.2.2")),
        Route("ens3", NETWORK),
        Route("ens3", IPv4Network("10.0.2.3/32"), IPv4Address("10.0.2.2")),
        Route("docker0", IPv4Network("172.17.0.0/16")),
    ),
    addresses=tuple(map(IPv4Address, ("127.0.0.1", "10.0.2.15", "172.17.0.1"))),
)


@pytest.mark.parametrize(
    ("wired", "shown"),
    [
        (USUAL, ""),
        (replace(USUAL, routes=USUAL.routes[1:]), ""),
        (
            replace(USUAL, cards=(Card("ens3", MAC, is_enslaved=True),)),
            "card ens3 was a port of another interface",
        ),
        (replace(USUAL, routes=USUAL.routes[3:]), "no network card had an IPv4 address"),
        (replace(USUAL, cards=(Card("ens3", "02:00:00:00:00:99"),)), "had the MAC address 02:00:00:00:00:99"),
        (
            replace(USUAL, routes=(Route("wg0", EVERYWHERE), *USUAL.routes[1:])),
            "the default route led through wg0, which is not a network card",
        ),
        (
            replace(USUAL, routes=(*USUAL.routes, Route("ens3", IPv4Network("192.0.2.0/24")))),
            "the network card had a route to 192.0.2.0/24",
        ),
        (
            replace(USUAL, addresses=(*USUAL.addresses, IPv4Address("10.0.2.16"))),
            "the further address 10.0.2.16",
        ),
        (
            replace(
                USUAL,
                cards=(Card("ens3", MAC), Card("ens4", MAC)),
                routes=(*USUAL.routes, Route("ens4", NETWORK)),
            ),
            "several network cards had addresses",
        ),
        (
            replace(USUAL, routes=(Route("ens3", EVERYWHERE, IPv4Address("192.0.2.1")), *USUAL.routes[1:])),
            "had a route to 0.0.0.0/0",
        ),
        (replace(USUAL, routes=USUAL.routes[:1]), "the network card had no network"),
    ],
)
def test_the_network_of_the_reference_boot(wired: Wired, shown: str) -> None:
    traced = replace(trace(), loaded=Loaded(wired=wired))
    if not shown:
        refuse_other_network([traced], "app.service")
        return
    with pytest.raises(UnsupportedUnitError) as refusal:
        refuse_other_network([traced], "app.service")
    assert shown in refusal.value.message
