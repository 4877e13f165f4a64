"""Init's network: what its DHCP client tells a server, which routes it takes of a lease, and what settle keeps of it.

The host's BusyBox runs init's own functions and a server in a network of their own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.networkbox import CLASSLESS, PLAIN, ran, said, text


@pytest.mark.parametrize(
    ("rule", "name", "sent"),
    [
        ("dhclient", "web1\n", b"web1"),
        ("dhclient", "\n# of ours\nweb1.example.org", b"web1.example.org"),
        ("dhclient", "localhost\n", b"localhost"),
        ("dhclient", "", None),
        ("dhclient", "a b\n", None),
        ("dhclient", "$(reboot)\n", None),
        ("dhclient", "-x\n", None),
        ("dhclient", f"{'a' * 63}\n", b"a" * 63),
        ("dhclient", f"{'a' * 64}\n", None),
        ("networkd", "web1\n", b"web1"),
        ("networkd", "web1.example.org\n", None),
        ("networkd", "localhost\n", None),
        ("dhcpcd", "web1.example.org\n", b"web1.example.org"),
        ("dhcpcd", "localhost\n", None),
        ("short", "web1.example.org\n", b"web1"),
        ("", "web1\n", None),
    ],
)
def test_a_server_is_told_what_the_distribution_s_client_says(
    tmp_path: Path, rule: str, name: str, sent: bytes | None
) -> None:
    (tmp_path / "newroot/etc").mkdir(parents=True)
    (tmp_path / "newroot/etc/hostname").write_text(name)
    ran(tmp_path, "start_dhcp; leased; end_dhcp", {"NAME_RULE": rule})
    packets = said(tmp_path)
    # On a busy host it asks again.
    assert {packet[53] for packet in packets} == {b"\1", b"\3"}
    for packet in packets:
        assert packet.get(12) == sent
        # BusyBox has a vendor class and an identifier by itself.
        assert not {60, 61} & {*packet}
        assert 121 in packet[55]


def test_a_name_of_the_configuration_s_and_no_routes(tmp_path: Path) -> None:
    offer = {**PLAIN, "121": CLASSLESS}
    words = {"FIXED_NAME": "other", "ROUTES": ""}
    lines = ran(tmp_path, "start_dhcp; leased; end_dhcp; routes", words, offer)
    assert {packet[12] for packet in said(tmp_path)} == {b"other"}
    assert not any(121 in packet[55] for packet in said(tmp_path))
    assert lines == ["default via 192.168.9.1", "192.168.9.0/24 scope link  src 192.168.9.59"]


def test_routes_of_a_lease_stand_for_its_router(tmp_path: Path) -> None:
    """RFC 3442: the router counts for nothing beside them. dhclient's and networkd's are the same."""
    lines = ran(tmp_path, "start_dhcp; leased; end_dhcp; routes", offer={**PLAIN, "121": CLASSLESS})
    assert sorted(lines) == [
        "10.1.0.0/16 via 192.168.9.254",
        "192.168.9.0/24 scope link  src 192.168.9.59",
        "192.168.9.9 scope link",
        "default via 10.9.9.9 onlink",
    ]


def test_a_search_list_of_a_lease(tmp_path: Path) -> None:
    """Whoever reads the file only once would go without it (RFC 3397, with a compressed name)."""
    listed = b"\x03eng\x07example\x03org\0\x02hq\xc0\x04"
    offer = {**PLAIN, "15": b"example.org".hex(), "119": listed.hex()}
    lines = ran(
        tmp_path, "start_dhcp; leased; end_dhcp; cat $Q/run/resolv.conf", {"SEARCH": "dhclient"}, offer
    )
    assert lines == ["domain example.org", "search example.org eng.example.org hq.example.org"]
    assert all(119 in packet[55] for packet in said(tmp_path))


def test_a_client_that_asks_for_no_search_list(tmp_path: Path) -> None:
    ran(tmp_path, "start_dhcp; leased; end_dhcp")
    assert not any(119 in packet[55] for packet in said(tmp_path))


@pytest.mark.parametrize(
    ("words", "routers", "route"),
    [
        ({"METRIC": "100"}, "c0a80901", "default via 192.168.9.1 metric 100"),
        ({"METRIC": "100"}, "c0a80901c0a80902", "default via 192.168.9.1 metric 100"),
        # dhclient-script(8) numbers several routers from 1 on.
        ({}, "c0a80901c0a80902", "default via 192.168.9.1 metric 1"),
        ({}, "c0a80901", "default via 192.168.9.1"),
        ({"CLIENT": ""}, "c0a80901c0a80902", "default via 192.168.9.1"),
        # A router elsewhere.
        ({"METRIC": "7"}, "0a090909", "default via 10.9.9.9 metric 7 onlink"),
    ],
)
def test_the_metric_of_dhclient_s_route(
    tmp_path: Path, words: dict[str, str], routers: str, route: str
) -> None:
    """Otherwise init's own route is preferred until the next boot."""
    lines = ran(tmp_path, "start_dhcp; leased; end_dhcp; routes", words, {**PLAIN, "3": routers})
    assert [" ".join(line.split()) for line in lines if line.startswith("default")] == [route]


def test_a_network_of_one_address_has_its_router(tmp_path: Path) -> None:
    offer = {**PLAIN, "1": "ffffffff"}
    lines = ran(tmp_path, "start_dhcp; leased; end_dhcp; routes", offer=offer)
    assert sorted(lines) == ["192.168.9.1 scope link", "default via 192.168.9.1"]


MACHINE = "0123456789abcdef0123456789abcdef"
CARD = "52:54:00:12:34:56"
DUID = "000100013299fb2d525400123456"


@pytest.mark.parametrize(
    ("client", "kept", "sent"),
    [
        ("networkd", f"{MACHINE}:ffe1e2e3e400020000ab11", "ffe1e2e3e400020000ab11"),
        ("dhclient", f"{MACHINE}:ff00123456{DUID}", f"ff00123456{DUID}"),
        # Another card has another one; so has another machine.
        ("dhclient", f"{MACHINE}:ff00123457{DUID}", ""),
        ("dhclient", f"{MACHINE[::-1]}:ff00123456{DUID}", ""),
        ("dhclient", f"{MACHINE}:ff00123456$(reboot)", ""),
        ("", f"{MACHINE}:ff00123456{DUID}", ""),
        ("dhclient", "", ""),
    ],
)
def test_the_identifier_that_the_distribution_s_client_has_sent(
    tmp_path: Path, client: str, kept: str, sent: str
) -> None:
    for name in ("etc", "var/lib/quickstart"):
        (tmp_path / "newroot" / name).mkdir(parents=True)
    (tmp_path / "newroot/etc/machine-id").write_text(f"{MACHINE}\n")
    if kept:
        (tmp_path / "newroot/var/lib/quickstart/client-id").symlink_to(kept)
    ran(tmp_path, f"ip link set ens3 address {CARD}; start_dhcp; leased; end_dhcp", {"CLIENT": client})
    assert {packet.get(61, b"").hex() for packet in said(tmp_path)} == {sent}


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        (f"{MACHINE}:ff00123456{DUID}:192.168.9.59", "c0a8093b"),
        (f"{MACHINE}::192.168.9.59", "c0a8093b"),
        (f"{MACHINE}:ff00123456{DUID}", ""),
        (f"{MACHINE}:ff00123456{DUID}:192.168.9", ""),
        (f"{MACHINE}:ff00123456{DUID}:192.168.9.59 -s /x", ""),
        (f"{MACHINE[::-1]}::192.168.9.59", ""),
    ],
)
def test_the_address_that_dhclient_will_ask_for(tmp_path: Path, kept: str, asked: str) -> None:
    """A server that has forgotten its leases gives the address that a client asks for (RFC 2131, 4.3.1)."""
    for name in ("etc", "var/lib/quickstart"):
        (tmp_path / "newroot" / name).mkdir(parents=True)
    (tmp_path / "newroot/etc/machine-id").write_text(f"{MACHINE}\n")
    (tmp_path / "newroot/var/lib/quickstart/client-id").symlink_to(kept)
    ran(tmp_path, f"ip link set ens3 address {CARD}; start_dhcp; leased; end_dhcp")
    first = said(tmp_path)[0]
    assert (first[53], first.get(50, b"").hex()) == (b"\x01", asked)


@pytest.mark.parametrize("shell", ["dash", "busybox sh"])
@pytest.mark.parametrize(
    ("client", "file", "words", "kept"),
    [
        # As dhclient writes it: printable characters, and others in octal.
        (
            "dhclient",
            "dhclient.ens3.leases",
            'default-duid "\\000\\001\\000\\0012\\231\\373-RT\\000\\0224V";\nlease {\n}\n',
            f"{MACHINE}:ff00123456{DUID}",
        ),
        (
            "dhclient",
            "dhclient.ens3.leases",
            'default-duid "a";\ndefault-duid "%s\\"\\\\";\n',
            f"{MACHINE}:ff001234562573225c",
        ),
        ("dhclient", "dhclient.ens3.leases", "lease {\n}\n", ""),
        (
            "dhclient",
            "dhclient.ens3.leases",
            'default-duid "\\000\\001\\000\\0012\\231\\373-RT\\000\\0224V";\nlease {\n  fixed-address 10.0.2.14;\n}\n'
            "lease {\n  fixed-address 10.0.2.15;\n  expire 4 2026/11/26 03:00:00;\n}\n",
            f"{MACHINE}:ff00123456{DUID}:10.0.2.15",
        ),
        (
            "dhclient",
            "dhclient.ens3.leases",
            "lease {\n  fixed-address 10.0.2.15;\n}\n",
            f"{MACHINE}::10.0.2.15",
        ),
        ("dhclient", "other", "", ""),
        ("networkd", "7", "# x\nCLIENTID=ffe1e2e3e4\n", f"{MACHINE}:ffe1e2e3e4"),
        ("networkd", "7", "CLIENTID=../x\n", ""),
        ("", "7", "CLIENTID=ffe1e2e3e4\n", ""),
        # dhcpcd is the client; what dhclient had is still there.
        ("", "dhclient.ens3.leases", 'default-duid "a";\nlease {\n  fixed-address 10.0.2.15;\n}\n', ""),
    ],
)
def test_settle_keeps_it(tmp_path: Path, shell: str, client: str, file: str, words: str, kept: str) -> None:
    for name, content in (
        ("ens3/address", CARD),
        ("ens3/ifindex", "7"),
        (file, words),
        ("machine-id", MACHINE),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    (tmp_path / "quickstart").mkdir()
    script = (
        text("settle").partition("# For the DHCP client of the next")[2].partition("\n# networkd goes by")[0]
    )
    for place in (
        "/var/lib/dhcp",
        "/run/systemd/netif/leases",
        "/sys/class/net",
        "/etc/machine-id",
        "/var/lib/quickstart",
    ):
        name = place.rpartition("/")[2] if place.endswith(("machine-id", "quickstart")) else ""
        script = script.replace(place, f"{tmp_path}/{name}".rstrip("/"))
    done = subprocess.run(
        [*shell.split(), "-c", f"INTERFACE=ens3 CLIENT={client}\n#{script}\nkeep_client_id"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == b""
    link = tmp_path / "quickstart/client-id"
    assert (str(link.readlink()) if link.is_symlink() else "") == kept
