"""The scripts and commands of ifupdown, which an early start leaves out: one that may filter packets is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from tests.unit.hookscripts import ENTER, EXIT, IFACE, PRE_UP, UP, refused, script
from tests.unit.test_unit_sockets import link, put


@pytest.mark.parametrize("directory", [PRE_UP, UP, ENTER, EXIT])
def test_a_script_of_the_administrator_s(tmp_path: Path, directory: str) -> None:
    script(tmp_path, f"{directory}/rules", "#!/bin/sh\n/root/rules\n", is_packaged=False)
    assert f"{directory}/rules runs before it, and may set up a packet filter" in refused(tmp_path)


def test_a_script_of_a_package(tmp_path: Path) -> None:
    script(tmp_path, f"{PRE_UP}/tool", "#!/bin/sh\nethtool -K $IFACE tso off\n", is_packaged=True)
    assert refused(tmp_path) == ""
    script(tmp_path, f"{PRE_UP}/tool", "#!/bin/sh\n/sbin/iptables-restore </etc/rules\n", is_packaged=True)
    assert f"{PRE_UP}/tool runs before it" in refused(tmp_path)


def test_what_is_not_executable_does_not_run(tmp_path: Path) -> None:
    put(tmp_path, f"{PRE_UP}/rules", "#!/bin/sh\n/root/rules\n")
    (tmp_path / PRE_UP[1:] / "rules").chmod(0o644)
    assert refused(tmp_path) == ""


def test_a_link_to_a_script(tmp_path: Path) -> None:
    put(tmp_path, "/root/rules", "#!/bin/sh\n")
    (tmp_path / "root/rules").chmod(0o755)
    link(tmp_path, f"{PRE_UP}/rules", "/root/rules")
    assert "/root/rules runs before it" in refused(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "  up ip -4 link set dev ens3 up mtu 1400 || true",
        "  up ifconfig ens3 mtu 1400 txqueuelen 1000",
        "\tpost-up /sbin/ethtool -K ens3 tso off; ip link set ens3 mtu 9000",
        "  down /root/rules",
        "  # up /root/rules",
        "  dns-nameservers 10.0.2.3",
        "  up ethtool -K $IFACE tso off >/dev/null 2>&1 || true",
        "iface ens3 inet6 auto",
        "iface ens3 inet  dhcp",
        "iface ens3 inet6 \t auto",
        "  privext 0\n  dad-attempts 9\n\n",
        "  ethernet-wol d\n  offload-gro off\n  wpa-ssid x\n  metric 7\n  mtu 1400\n  hostname web",
        "allow-hotplug ens4\nauto ens5 ens6\nno-auto-down ens4",
        "source /etc/network/interfaces.d/*",
        "source interfaces.d/*.cfg",
        "source-directory /etc/network/interfaces.d",
        "source-directory /run/network/interfaces.d",
    ],
)
def test_commands_that_set_up_the_interface(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/network/interfaces", f"{IFACE}{line}\n")
    assert refused(tmp_path) == ""


@pytest.mark.parametrize("file", ["/etc/network/interfaces", "/etc/network/interfaces.d/ens3"])
@pytest.mark.parametrize(
    "line",
    [
        "  pre-up iptables-restore < /etc/iptables.up.rules",
        "  up /root/rules",
        "  post-up ip link set ens3 up; /root/rules",
        "  up ip -batch $(/root/rules)",
        "  up \\\n  /root/rules",
        "  up ip link set ens3 up && nft -f /etc/rules",
        "  up ip link set dev ens3 xdp obj /etc/filter.o",
        "  up ip route add blackhole 10.0.0.0/8",
        "  up ip route add 10.0.0.0/8 via 10.0.2.2 dev ens3 || true",
        "  up ip link set ens3 xdpgeneric obj /etc/filter.o",
        "  up ip -b /root/rules",
        "  up ip xfrm policy add dir in action block",
        "  up ip link set ens3 master vrf-x",
        "  up ethtool -N ens3 flow-type tcp4 dst-port 80 action -1",
        "  up ethtool --config-ntuple ens3 flow-type tcp4 action -1",
        "    client 1234",
        "    vendor x",
        "  up ip netns exec x /root/rules",
        "  up tc filter add dev ens3 ingress protocol ip flower action drop",
        "source /etc/network/more",
        "source interfaces.d/../more",
        "iface ens4 inet static",
        "iface ens3 inet6 static",
        "  accept_ra 0",
        "  ip-rp-filter 1",
        "  privext 2",
        "  vlan-raw-device ens3",
        "  bridge_ports ens3",
        "  hwaddress ether 52:54:00:00:00:01",
        "source-directory /root/interfaces",
        "mapping ens3\n  script /root/rules",
    ],
)
def test_commands_that_may_filter(tmp_path: Path, file: str, line: str) -> None:
    put(tmp_path, file, f"{IFACE}{line}\n")
    assert f"{file} has `" in refused(tmp_path)


@pytest.mark.parametrize("file", ["/etc/dhcpcd.enter-hook", "/etc/dhcpcd.exit-hook"])
def test_the_hooks_of_dhcpcd(tmp_path: Path, file: str) -> None:
    put(tmp_path, file, "/root/rules\n")
    assert f"{file} runs before it" in refused(tmp_path)


def test_the_script_of_dhclient(tmp_path: Path) -> None:
    conf = "/etc/dhcp/dhclient.conf"
    put(tmp_path, conf, '#script "/sbin/dhclient-script";\nsend host-name = gethostname();\n')
    assert refused(tmp_path) == ""
    put(tmp_path, conf, 'interface "ens3" {\n  script "/root/rules";\n}\n')
    assert f'{conf} has `interface "ens3" {{ script' in refused(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "reject 192.0.2.1",
        'alias { interface "ens3"; fixed-address 192.0.2.7 }',
        "lease { fixed-address 192.0.2.7 }",
        "supersede routers 192.0.2.1",
        'send dhcp-client-identifier "a"',
        "require subnet-mask",
        "ignore routers",
        "request subnet-mask, domain-name-servers",
        'supersede domain-name "#"; supersede routers 192.0.2.1',
        'include "/etc/dhcp/more.conf"',
    ],
)
def test_another_lease_than_init_s(tmp_path: Path, statement: str) -> None:
    debian = (
        "option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;\n"
        "request subnet-mask, routers,\n\tntp-servers;\n"
    )
    put(tmp_path, "/etc/dhcp/dhclient.conf", f"{debian}timeout 60;\nprepend domain-name-servers 127.0.0.1;\n")
    assert refused(tmp_path) == ""
    put(tmp_path, "/etc/dhcp/dhclient.conf", f"{debian}{statement};\n")
    assert "/etc/dhcp/dhclient.conf has `" in refused(tmp_path)


def test_what_run_parts_passes_by(tmp_path: Path) -> None:
    for name in ("tool.dpkg-old", "rules.sh"):
        put(tmp_path, f"{PRE_UP}/{name}", "#!/bin/sh\niptables-restore </etc/rules\n")
        (tmp_path / PRE_UP[1:] / name).chmod(0o755)
    assert refused(tmp_path) == ""


DEBIAN_S_DHCPCD = """# Inform the DHCP server of our hostname for DDNS.
hostname
persistent
vendorclassid
option domain_name_servers, domain_name, domain_search
option classless_static_routes
option interface_mtu
option rapid_commit
require dhcp_server_identifier
slaac private
interface ens3
  metric 100
"""


@pytest.mark.parametrize(
    "line",
    [
        "static ip_address=10.0.0.2/24",
        "script /root/rules",
        "inform 10.0.0.2",
        "duid",
        "clientid machine",
        "nogateway",
        "nooption routers",
        "denyinterfaces ens3",
        "noipv4",
        "request 10.0.0.2",
        "include /etc/more",
    ],
)
def test_dhcpcd_s_own_configuration(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/dhcpcd.conf", f"#{line}\n{DEBIAN_S_DHCPCD}")
    assert refused(tmp_path) == ""
    put(tmp_path, "/etc/dhcpcd.conf", f"{DEBIAN_S_DHCPCD}{line}\n")
    assert f"/etc/dhcpcd.conf has `{line}`, and init's DHCP client does not do that" in refused(tmp_path)


@pytest.mark.parametrize(
    ("path", "delivered", "edited", "shown"),
    [
        ("/usr/lib/dhcpcd/dhcpcd-hooks/20-resolv.conf", "echo\n", "echo\n/root/rules\n", "runs before it"),
        (
            "/usr/lib/udev/rules.d/80-net-setup-link.rules",
            'IMPORT{program}="/lib/udev/tool"\n',
            'IMPORT{program}="/root/rules"\n',
            "runs `/root/rules`",
        ),
    ],
)
def test_a_package_s_file_edited_in_place(
    tmp_path: Path, path: str, delivered: str, edited: str, shown: str
) -> None:
    script(tmp_path, path, delivered, is_packaged=True)
    assert refused(tmp_path) == ""
    put(tmp_path, path, edited)
    assert f"{path} {shown}" in refused(tmp_path)


@pytest.mark.parametrize("name", ["dhclient-enter-hooks", "dhclient-exit-hooks"])
def test_a_hook_of_dhclient_s_without_a_directory(tmp_path: Path, name: str) -> None:
    """dhclient-script(8) names exactly these two."""
    read_facts(tmp_path)
    assert f"/etc/dhcp/{name}" in set(map(str, deciding(ImageRoot(tmp_path), "app.service").files))
    put(tmp_path, f"/etc/dhcp/{name}", "echo\n")
    assert f"/etc/dhcp/{name} runs before it" in refused(tmp_path)


def read_facts(base: Path) -> None:
    assert refused(base) == ""


@pytest.mark.parametrize("path", ["/usr/lib/dhcpcd/dhcpcd-hooks/99-rules.sh", "/etc/udhcpc/default.script"])
def test_a_hook_of_another_client(tmp_path: Path, path: str) -> None:
    script(tmp_path, path, "ip link set $interface up\n", is_packaged=True)
    assert refused(tmp_path) == ""
    facts = deciding(ImageRoot(tmp_path), "app.service")
    assert {path, str(Path(path).parent)} & {*map(str, facts.files), *map(str, facts.places)}
    script(tmp_path, path, "ip link set $interface up\n", is_packaged=False)
    assert f"{path} runs before it" in refused(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "ip link set dev ens3 address 02:00:00:00:00:99",
        "ifconfig ens3 hw ether 02:00:00:00:00:99",
        "ip addr add 192.0.2.7/32 dev ens3",
    ],
)
def test_a_command_for_another_address(tmp_path: Path, command: str) -> None:
    put(tmp_path, "/etc/network/interfaces", f"{IFACE}    pre-up {command}\n")
    assert f"`pre-up {command}`" in refused(tmp_path)


def test_a_command_that_goes_on_within_a_word(tmp_path: Path) -> None:
    put(tmp_path, "/etc/network/interfaces", f"{IFACE}  pre-\\\nup /root/rules\n")
    assert "has `pre-up /root/rules`" in refused(tmp_path)


def test_a_hook_of_dhclient_runs_without_being_executable(tmp_path: Path) -> None:
    put(tmp_path, f"{EXIT}/rules", "iptables-restore </etc/rules\n")
    (tmp_path / EXIT[1:] / "rules").chmod(0o644)
    assert f"{EXIT}/rules runs before it" in refused(tmp_path)


def test_a_package_s_script_that_the_administrator_has_changed(tmp_path: Path) -> None:
    text = "#!/bin/sh\nethtool -K $IFACE tso off\n"
    script(tmp_path, f"{UP}/tool", text, is_packaged=True)
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    status = "Package: tool\nStatus: install ok installed\nVersion: 1\nArchitecture: all\nConffiles:\n"
    put(tmp_path, "/var/lib/dpkg/status", f"{status} {UP}/tool {digest}\n\n")
    assert refused(tmp_path) == ""
    put(tmp_path, f"{UP}/tool", f"{text}/root/rules\n")
    assert f"{UP}/tool runs before it" in refused(tmp_path)


def test_implausible_files(tmp_path: Path) -> None:
    put(tmp_path, "/etc/network/interfaces", "#" * (1 << 20) + "\n")
    assert "/etc/network/interfaces is too long" in refused(tmp_path)
    put(tmp_path, "/etc/network/interfaces", IFACE)
    for number in range(257):
        put(tmp_path, f"/etc/network/interfaces.d/{number}", "")
    assert "more than 256 scripts and files" in refused(tmp_path)


def test_a_script_that_is_added_later_is_noticed(tmp_path: Path) -> None:
    assert refused(tmp_path) == ""
    places = set(map(str, deciding(ImageRoot(tmp_path), "app.service").places))
    assert {PRE_UP, UP, ENTER, EXIT} <= places
