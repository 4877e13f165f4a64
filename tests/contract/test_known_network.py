"""With cloud-init, init looks at the files of the network's configuration in each boot (as root): a stock boot has to set up
the same card, under the same name, by DHCP.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.knownmachine import ASKS, DMI, IFUPDOWN, MAC, MINE, asked


@pytest.mark.parametrize(
    ("place", "text", "is_known"),
    [
        ("network/interfaces.d/50-cloud-init", "auto ens3\niface ens3 inet dhcp\n    mtu 1500\n", True),
        ("systemd/network/10-cloud-init-ens3.network", "[Match]\nName=ens3\n[Network]\nDHCP=ipv4\n", True),
        ("netplan/50-cloud-init.yaml", "network:\n  ethernets:\n    ens3:\n      dhcp4: true\n", True),
        (
            "netplan/90-default.yaml",
            "---\nnetwork:\n  ethernets:\n    all-en:\n      match:\n        name: en*\n      dhcp4: true\n"
            "      dhcp4-overrides:\n        use-domains: true\n",
            True,
        ),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ATTR{address}="02:00:00:00:00:99"\n', False),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ATTR{flags}="0x1003"\n', False),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ATTR{flags}=="0x1003", SYMLINK+="x"\n', True),
        ("network/interfaces", "auto lo\niface lo inet loopback\nsource /etc/network/interfaces.d/*\n", True),
        ("network/interfaces.d/50-cloud-init", "iface ens5 inet dhcp\n# x\niface ens5 inet6 dhcp\n", True),
        # As cloud-init writes it on EC2 and Azure.
        ("network/interfaces.d/50-cloud-init", "auto eth0\niface eth0 inet dhcp\n    metric 100\n", True),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    eth0:\n      dhcp4: true\n      dhcp4-overrides:\n        route-metric: 100\n"
            "      dhcp6: false\n      match:\n        macaddress: '52:54:00:12:34:56'\n      set-name: eth0\n  version: 2\n",
            True,
        ),
        ("network/interfaces", "source /etc/network/../rules\n", False),
        (
            "udev/rules.d/70-persistent-net.rules",
            'SUBSYSTEM=="net", ACTION=="add", DRIVERS=="?*", ATTR{address}=="52:54:00:12:34:56", NAME="eth0"\n',
            True,
        ),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", RUN+="/root/rules"\n', False),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ENV{SYSTEMD_WANTS}+="rules.service"\n', False),
        ("network/interfaces", "iface ens3 inet dhcp\n    accept_ra 0", False),
        ("network/interfaces", "iface br0 inet dhcp\n    bridge_ports ens3\n", False),
        (
            "systemd/network/10-x.network",
            "[Match]\nMACAddress=52:54:00:00:00:01\n[Network]\nDHCP=yes\n",
            True,
        ),
        (
            "systemd/network/10-x.network",
            "[Link]\nMACAddress=52:54:00:00:00:01\n[Network]\nDHCP=yes\n",
            False,
        ),
        ("systemd/network/10-x.network", "[Network]\nDHCP=No\n", False),
        ("systemd/network/10-x.network", "[Link]\nUnmanaged=yes\n", False),
        ("systemd/network/10-x.netdev", "[NetDev]\nKind=bridge\n", False),
        ("netplan/50-cloud-init.yaml", "network: {ethernets: {ens3: {dhcp4: false}}}\n", False),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      match:\n        name: ens3\n      macaddress: 02:00:00:00:00:99\n",
            False,
        ),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      match:\n        macaddress: 02:00:00:00:00:99\n      dhcp4: true\n",
            True,
        ),
        ("netplan/50-cloud-init.yaml", "network:\n  bridges:\n    br0:\n      dhcp4: true\n", False),
        ("network/interfaces.d/50-cloud-init", "iface ens3 inet static\n    address 10.0.0.2/24\n", False),
        ("network/interfaces", "iface ens3 inet dhcp\n    pre-up iptables-restore /etc/rules\n", False),
        ("systemd/network/10-x.network", "[Network]\nAddress=10.0.0.2/24\n", False),
        ("systemd/network/10-x.network.d/a.conf", "[Network]\nLinkLocalAddressing=no\n", False),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      addresses:\n      - 10.0.0.2/24\n",
            False,
        ),
    ],
)
def test_a_network_that_the_build_has_not_seen(place: str, text: str, is_known: bool, tmp_path: Path) -> None:
    interface = "eth0" if "eth0" in text else "ens3"
    sources = {"network/interfaces": IFUPDOWN["network/interfaces"]} if "interfaces.d" in place else {}
    network = {**ASKS, **sources, place: text}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network, interface=interface)
    assert answer == ("known" if is_known else f"/etc/{place} wants more than DHCP")


NETPLAN = "network:\n  version: 2\n  ethernets:\n"
CARD = NETPLAN + "    lan:\n      match:\n        macaddress: {}\n      set-name: {}\n      dhcp4: true\n"
NONE = "no file of the network's configuration asks for DHCP on ens3"


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("network/interfaces", "auto ens3\niface ens3 inet dhcp\n", ""),
        ("network/interfaces", "allow-hotplug ens5 ens3\niface ens3 inet dhcp\n", ""),
        # The administrator has taken the machine off the network.
        ("network/interfaces", "auto lo\niface lo inet loopback\n", NONE),
        ("network/interfaces", "iface ens3 inet dhcp\n", NONE),
        ("network/interfaces", "auto ens3\niface ens4 inet dhcp\n", NONE),
        ("network/interfaces", "auto ens3\niface ens3 inet6 dhcp\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    ens3:\n      dhcp4: true\n", ""),
        ("netplan/x.yaml", NETPLAN + "    all:\n      match:\n        name: 'en*'\n      dhcp4: yes\n", ""),
        ("netplan/x.yaml", NETPLAN + "    ens4:\n      dhcp4: true\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    all:\n      match:\n        name: eth*\n      dhcp4: true\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    ens3:\n      dhcp6: true\n", "/etc/netplan/x.yaml"),
        (
            "netplan/x.yaml",
            NETPLAN + "    ens3:\n      optional: true\n    ens4:\n      dhcp4: true\n",
            "/etc/netplan/x.yaml",
        ),
        (
            "netplan/x.yaml",
            NETPLAN + "    ens4:\n      dhcp4: true\n    ens3:\n      dhcp4: true\n  renderer: networkd\n",
            "",
        ),
        ("netplan/x.yaml", CARD.format(MAC, "ens3"), ""),
        ("netplan/x.yaml", CARD.format(f'"{MAC}"', '"ens3"'), ""),
        # Our card has another name in a stock boot, or another card has ours.
        ("netplan/x.yaml", CARD.format(MAC, "wan0"), "/etc/netplan/x.yaml"),
        ("netplan/x.yaml", CARD.format("52:54:00:00:00:01", "ens3"), "/etc/netplan/x.yaml"),
        ("netplan/x.yaml", CARD.format("52:54:00:00:00:01", "ens4"), NONE),
        ("systemd/network/x.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Match]\nType=wlan ether\n[Network]\nDHCP=ipv4\n", ""),
        ("systemd/network/x.network", f"[Match]\nMACAddress={MAC}\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Match]\nName=eth*\n[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "[Match]\nDriver=ena\n[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "[Match]\nDriver=virtio_net\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "", NONE),
        # What cannot be told.
        (
            "systemd/network/x.network",
            "[Match]\nName=!lo\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        (
            "systemd/network/x.network",
            "[Match]\nName=ens4\nName=ens3\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        (
            "systemd/network/x.network",
            "[Match]\nMACAddress=52:54:00:12:34:AB\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        ("netplan/x.yaml", CARD.format("52:54:00:12:34:AB", "wan0"), "/etc/netplan/x.yaml"),
        (
            "netplan/x.yaml",
            NETPLAN + "    lan:\n      match:\n        driver: virtio*\n      dhcp4: true\n",
            "",
        ),
        (
            "netplan/x.yaml",
            NETPLAN + "    lan:\n      match:\n        driver: ena\n      dhcp4: true\n",
            NONE,
        ),
        # netplan does not read it.
        ("netplan/x.yaml.disabled", NETPLAN + "    ens3:\n      dhcp4: true\n", NONE),
        # Nothing says that ifupdown reads it.
        ("network/interfaces.d/x", "auto ens3\niface ens3 inet dhcp\n", NONE),
        (
            "systemd/network/x.network",
            "[Match]\nName=en*\n[Network]\nDNS=10.0.0.1\n",
            "/etc/systemd/network/x.network",
        ),
    ],
)
def test_a_file_asks_for_dhcp_on_our_card(place: str, text: str, answer: str, tmp_path: Path) -> None:
    """In a stock boot, a card that no file asks for stays without an address."""
    more = "" if answer in ("", NONE) else " wants more than DHCP"
    found = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network={place: text})
    assert found == (f"{answer}{more}" or "known")


@pytest.mark.parametrize(
    ("network", "service", "is_known"),
    [
        (IFUPDOWN, "", True),
        (IFUPDOWN, "ifupdown", True),
        # A file that another program has left.
        (IFUPDOWN, "networkd", False),
        (ASKS, "ifupdown", False),
        (ASKS, "networkd", True),
    ],
)
def test_the_files_are_those_of_the_service(
    network: dict[str, str], service: str, is_known: bool, tmp_path: Path
) -> None:
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network, service=service)
    assert answer == ("known" if is_known else NONE)


def test_a_source_of_other_files(tmp_path: Path) -> None:
    network = {**IFUPDOWN, "network/interfaces": "source /etc/network/interfaces.d/*.cfg\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == "/etc/network/interfaces wants more than DHCP"


@pytest.mark.parametrize(
    ("text", "own", "is_known"),
    [
        ("[Match]\nName=en*\n[Network]\nDHCP=yes\nIPv6AcceptRA=no\n", None, True),
        ("[Match]\nName=en*\nVirtualization=container\n[Network]\nDHCP=yes\n", None, False),
        ("[Match]\nName=host0\n[Network]\nDHCP=yes\n", None, False),
        ("[Match]\nName=en*\n[Network]\nDHCP=yes\n", "", False),
    ],
)
def test_a_file_of_a_package(text: str, own: str | None, is_known: bool, tmp_path: Path) -> None:
    """The build has seen it. A file in /etc with the same name takes its place."""
    place = tmp_path / "newroot/usr/lib/systemd/network/80-ec2.network"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    network = {} if own is None else {"systemd/network/80-ec2.network": own}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == ("known" if is_known else NONE)


def test_a_drop_in_that_says_for_which_card(tmp_path: Path) -> None:
    network = {**ASKS, "systemd/network/00-own.network.d/x.conf": "[Match]\nName=ens4\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == "/etc/systemd/network/00-own.network.d/x.conf wants more than DHCP"


def test_the_first_file_of_networkd_is_the_card_s(tmp_path: Path) -> None:
    asks, silent = "[Match]\nName=en*\n[Network]\nDHCP=yes\n", "[Match]\nName=ens3\n[Network]\nDNS=10.0.0.1\n"
    files = {"systemd/network/10-a.network": asks, "systemd/network/20-b.network": silent}
    assert asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=files) == "known"


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME="ens3"', True),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME="wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME:="wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME = "wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME+="wan0"', False),
        (f'ATTR{{address}}=="{MAC}", NAME="ens3", OPTIONS="link_priority=1"', True),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:00:00:01", NAME="ens3"', False),
        ('KERNEL=="ens3"NAME="wan0"', False),
        ('SUBSYSTEM=="net", ENV{ID_NET_NAME}="wan0"', True),
        ('NAME="wan0"', False),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:00:00:01", NAME="ens4"', True),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:*", NAME="ens4"', False),
        ('SUBSYSTEM=="net", NAME=="ens3", ENV{X}="1"', True),
        ('SUBSYSTEM=="net", ATTR{address} ="02:00:00:00:00:99"', False),
        ('SUBSYSTEM=="net", ATTR{address}:="02:00:00:00:00:99"', False),
    ],
)
def test_rules_that_name_cards(line: str, is_known: bool, tmp_path: Path) -> None:
    """Once a card is up, udev cannot give it another name."""
    network = {**ASKS, "udev/rules.d/70-x.rules": f"{line}\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == ("known" if is_known else "/etc/udev/rules.d/70-x.rules wants more than DHCP")
