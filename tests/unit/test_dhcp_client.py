"""What the image's own DHCP client sends to a server (option 12) and asks it for (option 121)."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.dhcpclient import (
    client_does_ipv6,
    client_with_identifier,
    metric_of_client,
    sent_by_client,
)
from quickstart.inspect.unit.dhcpconf import (
    NO_NAME,
    HostName,
    NameRule,
    SearchRule,
    other_dhclient_statement,
)
from tests.unit.test_unit_sockets import put

# Of Debian's isc-dhcp-client 4.4.3.
DEBIAN_S = """\
# Configuration file for /sbin/dhclient.
option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;
send host-name = gethostname();
request subnet-mask, broadcast-address, time-offset, routers,
\tdomain-name, domain-name-servers, domain-search, host-name,
\tinterface-mtu, rfc3442-classless-static-routes, ntp-servers;
#send dhcp-client-identifier 1:0:a0:24:ab:fb:9c;
"""
BY_DHCLIENT, BY_DHCPCD, BY_NETWORKD = (
    HostName(rule) for rule in (NameRule.DHCLIENT, NameRule.DHCPCD, NameRule.NETWORKD)
)
OWN = "/etc/systemd/network/10-lan.network"
DHCP = "[Match]\nName=en*\n[Network]\nDHCP=yes\n"


@pytest.mark.parametrize(
    ("text", "name", "routes"),
    [
        (DEBIAN_S, BY_DHCLIENT, True),
        ("", NO_NAME, False),
        ("send host-name gethostname();\n", BY_DHCLIENT, False),
        ('send host-name "web1";\n', HostName(fixed="web1"), False),
        (f'{DEBIAN_S}send host-name = "web1";\n', HostName(fixed="web1"), True),
        (DEBIAN_S.replace("send host", "#send host"), NO_NAME, True),
        (f"{DEBIAN_S}request subnet-mask, routers;\n", BY_DHCLIENT, False),
        (
            "option r code 121 = array of integer 8;\nrequest routers, subnet-mask;\nalso request r;\n",
            NO_NAME,
            True,
        ),
    ],
)
def test_dhclient(tmp_path: Path, text: str, name: HostName, routes: bool) -> None:
    put(tmp_path, "/sbin/dhclient", "")
    put(tmp_path, "/sbin/dhcpcd", "")
    put(tmp_path, "/etc/dhcpcd.conf", "hostname\n")
    assert other_dhclient_statement(text) == ""
    if text:
        put(tmp_path, "/etc/dhcp/dhclient.conf", text)
    for network in ("ifupdown", ""):
        sent = sent_by_client(ImageRoot(tmp_path), network, "app.service")
        assert (sent.name, sent.routes) == (name, routes)


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("iface ens3 inet dhcp\n  metric 100\n", "100"),
        ("iface ens3 inet dhcp\n\tmetric\t100 \niface ens4 inet dhcp\n  metric 100\n", "100"),
        ("iface ens3 inet dhcp\n  # metric 100\n", ""),
    ],
)
def test_the_metric_of_dhclient_s_route(tmp_path: Path, text: str, metric: str) -> None:
    put(tmp_path, "/etc/network/interfaces", text)
    assert metric_of_client(ImageRoot(tmp_path), "dhclient", "app.service") == metric
    assert metric_of_client(ImageRoot(tmp_path), "networkd", "app.service") == ""


@pytest.mark.parametrize("text", ["metric 1\nmetric 2\n", "metric $(x)\n", "metric 1 2\n"])
def test_metrics_that_init_cannot_tell(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/etc/network/interfaces", text)
    with pytest.raises(UnsupportedUnitError, match="names the metrics") as error:
        metric_of_client(ImageRoot(tmp_path), "dhclient", "app.service")
    assert error.value.hint


@pytest.mark.parametrize(
    ("programs", "network", "client"),
    [
        ("dhclient dhcpcd", "ifupdown", "dhclient"),
        ("dhcpcd", "ifupdown", ""),
        ("udhcpc", "ifupdown", ""),
        ("dhclient", "networkd", "networkd"),
        ("dhclient", "", ""),
    ],
)
def test_whose_identifier_is_kept(tmp_path: Path, programs: str, network: str, client: str) -> None:
    put(tmp_path, "/var/lib/dhcp/dhclient.ens3.leases", 'default-duid "a";\n')
    for program in programs.split():
        put(tmp_path, f"/sbin/{program}", "")
    assert client_with_identifier(ImageRoot(tmp_path), network) == client


@pytest.mark.parametrize(
    ("program", "file", "text", "search"),
    [
        ("dhclient", "dhcp/dhclient.conf", DEBIAN_S, SearchRule.DHCLIENT),
        ("dhclient", "dhcp/dhclient.conf", "", SearchRule.NONE),
        ("dhclient", "dhcp/dhclient.conf", f"{DEBIAN_S}request routers, subnet-mask;\n", SearchRule.NONE),
        ("dhcpcd", "dhcpcd.conf", "option domain_name, domain_search\n", SearchRule.DHCPCD),
        ("dhcpcd", "dhcpcd.conf", "hostname\noption 119\nhostname_short\n", SearchRule.DHCPCD),
        ("dhcpcd", "dhcpcd.conf", "option domain_name\n", SearchRule.NONE),
        ("udhcpc", "udhcpc/x", "", SearchRule.NONE),
    ],
)
@pytest.mark.parametrize("interfaces", ["", "iface ens3 inet dhcp\n  hostname web1\n"])
def test_who_asks_for_a_search_list(
    tmp_path: Path, program: str, file: str, text: str, search: SearchRule, interfaces: str
) -> None:
    put(tmp_path, f"/sbin/{program}", "")
    put(tmp_path, f"/etc/{file}", text)
    put(tmp_path, "/etc/network/interfaces", interfaces)
    assert sent_by_client(ImageRoot(tmp_path), "ifupdown", "app.service").search is search


@pytest.mark.parametrize("value", ['concat("a", "b")', "gethostname(), x", '"a b"', '"$(x)"', ""])
def test_a_name_that_init_cannot_tell(value: str) -> None:
    assert other_dhclient_statement(f"send host-name = {value};\n") != ""


@pytest.mark.parametrize(
    ("text", "name", "routes"),
    [
        ("vendorclassid\noption domain_name\noption classless_static_routes\n", NO_NAME, True),
        ("hostname\n", BY_DHCPCD, False),
        ("#hostname\nhostname_short # of ours\n", HostName(NameRule.SHORT), False),
        ("hostname\thost.example.org\nhostname_short\n", HostName(fixed="host"), False),
        ("hostname\nfqdn both\n", NO_NAME, False),
        ("hostname\nfqdn disable\noption routers, 121\n", BY_DHCPCD, True),
    ],
)
def test_dhcpcd(tmp_path: Path, text: str, name: HostName, routes: bool) -> None:
    put(tmp_path, "/sbin/dhcpcd", "")
    put(tmp_path, "/etc/dhcpcd.conf", text)
    sent = sent_by_client(ImageRoot(tmp_path), "ifupdown", "app.service")
    assert (sent.name, sent.routes) == (name, routes)
    put(tmp_path, "/etc/network/interfaces", "iface ens3 inet dhcp\n  hostname web2\n")
    sent = sent_by_client(ImageRoot(tmp_path), "ifupdown", "app.service")
    assert (sent.name, sent.routes) == (HostName(fixed="web2"), routes)


def test_udhcpc_and_no_client_at_all(tmp_path: Path) -> None:
    put(tmp_path, "/etc/network/interfaces", "iface ens3 inet dhcp\n  hostname web2\n")
    assert sent_by_client(ImageRoot(tmp_path), "ifupdown", "app.service").name == NO_NAME
    put(tmp_path, "/sbin/udhcpc", "")
    assert sent_by_client(ImageRoot(tmp_path), "ifupdown", "app.service").name == HostName(fixed="web2")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (DHCP, BY_NETWORKD),
        (f"{DHCP}[DHCPv4]\nSendHostname=no\n", NO_NAME),
        (f"{DHCP}[DHCP]\nSendHostname=false\n", NO_NAME),
        (f"{DHCP}[DHCPv6]\nSendHostname=no\n", BY_NETWORKD),
        (f"{DHCP}[DHCPv4]\nAnonymize=yes\n", NO_NAME),
        (f"{DHCP}[DHCPv4]\nHostname=web1\n", HostName(fixed="web1")),
        (f"{DHCP}[DHCPv4]\nHostname=web1.example.org\n", NO_NAME),
    ],
)
def test_networkd(tmp_path: Path, text: str, name: HostName) -> None:
    put(tmp_path, OWN, text)
    put(tmp_path, "/etc/systemd/network/20-docker.network", "[Match]\nName=docker0\n[Link]\nUnmanaged=yes\n")
    sent = sent_by_client(ImageRoot(tmp_path), "networkd", "app.service")
    assert (sent.name, sent.routes) == (name, True)


def test_a_drop_in_of_networkd_s(tmp_path: Path) -> None:
    put(tmp_path, OWN, DHCP)
    put(tmp_path, f"{OWN}.d/name.conf", "[DHCPv4]\nSendHostname=no\n")
    assert sent_by_client(ImageRoot(tmp_path), "networkd", "app.service").name == NO_NAME


def test_files_that_disagree(tmp_path: Path) -> None:
    put(tmp_path, OWN, DHCP)
    put(tmp_path, "/etc/systemd/network/20-more.network", f"{DHCP}[DHCPv4]\nSendHostname=no\n")
    with pytest.raises(UnsupportedUnitError, match="has another host name for DHCP than other files have"):
        sent_by_client(ImageRoot(tmp_path), "networkd", "app.service")


@pytest.mark.parametrize(
    ("overrides", "name"), [("dhcp4", NO_NAME), ("dhcp6", BY_NETWORKD), ("dhcp4-other", BY_NETWORKD)]
)
def test_netplan(tmp_path: Path, overrides: str, name: HostName) -> None:
    text = f"network:\n  ethernets:\n    ens3:\n      dhcp4: true\n      {overrides}-overrides:\n        send-hostname: no # x\n"
    put(tmp_path, "/etc/netplan/50.yaml", text)
    assert sent_by_client(ImageRoot(tmp_path), "networkd", "app.service").name == name


@pytest.mark.parametrize(
    ("network", "clients", "conf", "does"),
    [
        # Debian's, as it is.
        ("ifupdown", "dhcpcd", "hostname\nslaac private\n", True),
        ("ifupdown", "dhcpcd", "slaac private\nnoipv6rs\n", False),
        ("ifupdown", "dhcpcd", "noipv6\n", False),
        ("ifupdown", "dhcpcd", "#noipv6\n", True),
        # ifupdown takes these first.
        ("ifupdown", "dhclient dhcpcd", "slaac private\n", False),
        ("ifupdown", "udhcpc dhcpcd", "slaac private\n", False),
        ("ifupdown", "", "", False),
        # Without a hand-off, nobody but the kernel does it.
        ("", "dhcpcd", "slaac private\n", False),
        ("networkd", "", "", True),
    ],
)
def test_who_makes_the_addresses_of_ipv6(
    tmp_path: Path, network: str, clients: str, conf: str, does: bool
) -> None:
    for client in clients.split():
        put(tmp_path, f"/sbin/{client}", "")
    put(tmp_path, "/etc/dhcpcd.conf", conf)
    assert client_does_ipv6(ImageRoot(tmp_path), network) is does
