"""Init's network: what its DHCP client tells a server, which routes it takes of a lease, and that a fallback gives the card back.

The host's BusyBox runs init's own functions and a server in a network of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from tests.contract import leasing

PLAIN = {"ip": "192.168.9.59", "1": "ffffff00", "3": "c0a80901", "51": "00000e10"}
# 10.1.0.0/16 by 192.168.9.254, 192.168.9.9/32 on the link, a default route by a gateway elsewhere (RFC 3442).
CLASSLESS = "100a01c0a809fe20c0a8090900000000000a090909"
SETUP = """\
set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
ip link set lo up
/usr/sbin/ip link add ens3 type veth peer name srv
ip addr add 192.168.9.1/24 dev srv
ip link set srv up
"$PYTHON" "$LEASING" srv "$OFFER" >said &
while [ ! -s said ]; do sleep 0.02; done
ip() { busybox ip "$@"; }
udhcpc() { exec busybox udhcpc "$@"; }
usleep() { busybox usleep "$@"; }
say() { echo "$*"; }
note() { :; }
routes() { busybox ip route show dev ens3 | sed 's/ dev ens3//'; }
begun() { until [ -f "$Q/begun" ]; do usleep 10000; done; }
leased() { tries=0; until [ -f "$Q/run/lease" ] || [ $tries = 500 ]; do usleep 10000; tries=$((tries + 1)); done; }
set +e
"""
SOURCED = '. ./lib; . ./first; note() { :; }; say() { echo "$*"; }; '
WORDS = {
    "INTERFACE": "ens3",
    "NETWORK": "ifupdown",
    "NAME_RULE": "",
    "FIXED_NAME": "",
    "ROUTES": "yes",
    "SEARCH": "",
    "CLIENT": "dhclient",
    "METRIC": "",
    "LEAVES_IPV6": "",
    "SERVED": "/fast",
    "ROOT_OPTIONS": "",
    "SB_MOUNTS": "1",
    "SB_WTIME": "1",
    "BUILD_MOUNTS": "2",
    "BUILD_WTIME": "2",
}


def text(name: str) -> str:
    return resources.files("quickstart.initramfs").joinpath("init", name).read_text()


def ran(
    place: Path,
    script: str,
    words: dict[str, str] | None = None,
    offer: dict[str, str] = PLAIN,
    is_slow: bool = False,
) -> list[str]:
    """The lines that ``script`` says after init's functions are there. ``is_slow``: the client's script takes its time."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they make network interfaces")
    for name in ("bin", "run", "newroot/etc"):
        (place / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(door.tool_path("busybox"), place / "busybox")
    (place / "bin/ip").symlink_to("../busybox")
    for name in ("lib", "first"):
        (place / name).write_text(text(name).replace("cd /newroot ", f"cd {place}/newroot "))
    slow = f": >{place}/begun; usleep 200000" if is_slow else ""
    udhcpc = text("udhcpc").replace("/fast/quickstart", str(place)).replace("kill -HUP 1", ":")
    (place / "udhcpc").write_text(udhcpc.replace("\nbound | renew)\n", f"\nbound | renew)\n{slow}\n"))
    (place / "udhcpc").chmod(0o755)
    if not (place / "settings").exists():
        (place / "settings").write_text("")
    given = "".join(
        f"{name}='{value}'\n" for name, value in {**WORDS, **(words or {}), "Q": str(place)}.items()
    )
    done = subprocess.run(
        [*own_namespaces(network=True), "busybox", "sh", "-c", f"{SETUP}{given}{SOURCED}{script}"],
        cwd=place,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON": sys.executable,
            "LEASING": leasing.__file__,
            "OFFER": json.dumps(offer),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.strip() for line in done.stdout.splitlines()]


def said(place: Path) -> list[dict[int, bytes]]:
    """The options of each packet that the server got."""
    lines = [json.loads(line) for line in (place / "said").read_text().splitlines()]
    return [{int(key): bytes.fromhex(value) for key, value in line.items()} for line in lines[1:]]


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


# What would leave the test is replaced.
STOCK = (
    "mount() { :; }; umount() { :; }; usual_waits() { :; }; read_ahead_again() { :; }; wants_own_initramfs() { return 1; }; "
    "give_up() { usleep 500000; show; exit; }; "
    "show() { ip addr show dev ens3; routes; "
    "for name in accept_ra addr_gen_mode disable_ipv6; do echo $name $(cat /proc/sys/net/ipv6/conf/ens3/$name); done; }; "
    "MOUNTED=yes stock_mode=ro stock_init=/none dropped= arguments= "
)
UNTOUCHED = ["accept_ra 1", "addr_gen_mode 0", "disable_ipv6 0"]


def addresses(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("inet") or " via " in line]


@pytest.mark.parametrize("leaves_ipv6", ["", "yes"])
@pytest.mark.parametrize("wait", ["leased", "begun", ":"])
def test_the_stock_boot_gets_the_card_as_it_was(tmp_path: Path, leaves_ipv6: str, wait: str) -> None:
    """Nobody would renew the lease. The script of a client that is told to end may still be running."""
    (tmp_path / "settings").write_text(
        "setting net/ipv6/conf/all/disable_ipv6 1\nsetting net/ipv6/conf/*/accept_ra 2\n"
    )
    script = f"{STOCK}; start_dhcp; {wait}; boot_stock why; show"
    lines = ran(tmp_path, script, {"LEAVES_IPV6": leaves_ipv6}, is_slow=True)
    assert lines[0] == "fallback 1: why; the stock init takes over"
    assert addresses(lines) == []
    assert [
        line for line in lines if line.split()[0] in ("accept_ra", "addr_gen_mode", "disable_ipv6")
    ] == UNTOUCHED
    assert "UP" not in lines[1].partition("<")[2].partition(">")[0].split(",")


@pytest.mark.parametrize(
    ("leaves_ipv6", "at_start"), [("", ["1", "0"]), ("yes", ["0", "1"])], ids=["the kernel", "dhcpcd"]
)
def test_who_makes_the_addresses_of_ipv6(tmp_path: Path, leaves_ipv6: str, at_start: list[str]) -> None:
    """What the card has at the moment when it is brought up. The kernel's address would stay beside dhcpcd's."""
    conf = "/proc/sys/net/ipv6/conf/ens3"
    watch = f'ip() {{ [ "$*" != "link set ens3 up" ] || cat {conf}/accept_ra {conf}/addr_gen_mode; busybox ip "$@"; }}; '
    assert ran(tmp_path, f"{watch}start_dhcp; end_dhcp", {"LEAVES_IPV6": leaves_ipv6}) == at_start


def test_a_client_that_does_not_end_is_killed(tmp_path: Path) -> None:
    client = "sh -c 'trap : TERM; while :; do sleep 5; done' & DHCP=$!; usleep 100000"
    script = f"{client}; end_dhcp; usleep 50000; lives $DHCP || echo gone"
    assert ran(tmp_path, script) == ["gone"]


def test_the_second_half_gives_it_back_as_well() -> None:
    fall_back = text("second").partition("\nfall_back() {\n")[2].partition("\n}\n")[0]
    assert "\tgive_back_network\n" in fall_back
    assert fall_back.index("give_back_network") < fall_back.index("umount -l /fast")


@pytest.mark.parametrize(
    ("setting", "accept_ra"),
    [
        ("net/ipv6/conf/ens3/accept_ra 0", "0"),
        ("net/ipv6/conf/*/accept_ra 0", "0"),
        ("net/ipv6/conf/*/accept_ra 0 net/ipv6/conf/ens3/accept_ra", "1"),
        ("net/ipv6/conf/other/accept_ra 0", "1"),
    ],
)
def test_sysctl_d_comes_before_the_first_advertisement(tmp_path: Path, setting: str, accept_ra: str) -> None:
    """What the card has at the moment when it is brought up."""
    (tmp_path / "settings").write_text(f"setting {setting}\nsetting kernel/hostname other\n")
    watch = 'ip() { [ "$*" != "link set ens3 up" ] || cat /proc/sys/net/ipv6/conf/ens3/accept_ra; busybox ip "$@"; }; '
    assert ran(tmp_path, f"{watch}start_dhcp; end_dhcp; cat /proc/sys/kernel/hostname") == [
        accept_ra,
        Path("/proc/sys/kernel/hostname").read_text().strip(),
    ]


@pytest.mark.parametrize(
    ("cards", "words", "said"),
    [
        ({"eth0": "device"}, "", "link set eth0 name ens3"),
        ({"ens3": "device"}, "", ""),
        ({"eth0": "device", "eth1": "device"}, "", "refused"),
        # net_failover: the others serve the first.
        ({"eth0": "device", "eth1": "device master", "eth2": "device master"}, "", "link set eth0 name ens3"),
        ({"ens3": "device", "eth1": "device"}, "", ""),
        ({"eth0": "device"}, "OWN_CARDS=52:54:00:00:00:01", "link set eth0 name ens3"),
        ({"eth0": "device"}, "OWN_CARDS=52:54:00:00:00:02", "refused"),
        ({"ens3": "device"}, "OWN_CARDS=52:54:00:00:00:02", "refused"),
        ({"ens3": "device"}, "OTHER_CARDS='a:b 52:54:00:*'", "refused"),
        ({"ens3": "device"}, "OTHER_CARDS=52:54:00:00:00:02", ""),
    ],
)
def test_the_card_gets_its_name_only_where_a_stock_boot_gives_it(
    tmp_path: Path, cards: dict[str, str], words: str, said: str
) -> None:
    for card, files in cards.items():
        (tmp_path / card).mkdir()
        (tmp_path / card / "address").write_text("52:54:00:00:00:01\n")
        for name in files.split():
            (tmp_path / card / name).write_text("")
    first = text("first")
    functions = first[
        first.index("has_its_name() {") : first.index("# The identifier of the distribution's client")
    ]
    script = f"""
INTERFACE=ens3 OWN_CARDS= OTHER_CARDS=
{words}
ip() {{ echo "$*"; }}
{functions.replace("/sys/class/net", str(tmp_path))}
name_interface || echo refused
"""
    done = subprocess.run(
        ["busybox", "sh", "-uc", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")
