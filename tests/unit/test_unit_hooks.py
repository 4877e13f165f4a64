"""The scripts and commands of ifupdown, which an early start leaves out: one that may filter packets is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.hooks import writes_resolver
from quickstart.inspect.unit.read import read_unit
from tests.unit.test_unit_sockets import UNITS, link, put

PRE_UP = "/etc/network/if-pre-up.d"
UP = "/etc/network/if-up.d"
ENTER, EXIT = (f"/etc/dhcp/dhclient-{kind}-hooks.d" for kind in ("enter", "exit"))
IFACE = "auto ens3\niface ens3 inet dhcp\n"


def refused(base: Path) -> str:
    put(base, "/usr/bin/app", "")
    put(base, f"{UNITS}/app.service", "[Service]\nExecStart=/usr/bin/app\n")
    try:
        read_unit(ImageRoot(base), "app.service")
    except UnsupportedUnitError as error:
        return error.message
    return ""


def script(base: Path, path: str, text: str, *, is_packaged: bool) -> None:
    put(base, path, text)
    (base / path[1:]).chmod(0o755)
    put(
        base,
        "/var/lib/dpkg/status",
        "Package: tool\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n",
    )
    put(base, "/var/lib/dpkg/info/tool.list", f"/.\n{path}\n" if is_packaged else "/.\n")
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    put(base, "/var/lib/dpkg/info/tool.md5sums", f"{digest}  {path[1:]}\n" if is_packaged else "")


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


def test_a_hook_of_dhcpcd_edited_in_place(tmp_path: Path) -> None:
    hook = "/usr/lib/dhcpcd/dhcpcd-hooks/20-resolv.conf"
    script(tmp_path, hook, "echo\n", is_packaged=True)
    assert refused(tmp_path) == ""
    put(tmp_path, hook, "echo\n/root/rules\n")
    assert f"{hook} runs before it" in refused(tmp_path)


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ('RUN+="/usr/sbin/nft -f /etc/rules"', "/usr/sbin/nft -f /etc/rules"),
        ('RUN="/root/rules"', "/root/rules"),
        ('RUN{program}+="/root/rules"', "/root/rules"),
        ('PROGRAM=="/root/rules $name"', "/root/rules $name"),
        ('IMPORT{program}="/root/rules"', "/root/rules"),
        ('\\\n RUN+="/root/rules"', "/root/rules"),
        ('RUN+=e"/root/rules"', "/root/rules"),
        ('RUN+="/root/rules', "/root/rules"),
        ('RUN+="/sbin/ip link set eth0 up; /root/rules"', "/sbin/ip link set eth0 up; /root/rules"),
    ],
)
def test_rules_of_udev_that_may_filter(tmp_path: Path, action: str, command: str) -> None:
    put(tmp_path, "/etc/udev/rules.d/80-net.rules", f'ACTION=="add", SUBSYSTEM=="net", {action}\n')
    assert f"/etc/udev/rules.d/80-net.rules runs `{command}`" in refused(tmp_path)


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


def test_a_rule_of_a_package_s_edited_in_place(tmp_path: Path) -> None:
    rules = "/usr/lib/udev/rules.d/80-net-setup-link.rules"
    script(tmp_path, rules, 'IMPORT{program}="/lib/udev/tool"\n', is_packaged=True)
    assert refused(tmp_path) == ""
    put(tmp_path, rules, 'IMPORT{program}="/root/rules"\n')
    assert f"{rules} runs `/root/rules`" in refused(tmp_path)


@pytest.mark.parametrize(
    ("command", "is_harmless"),
    [
        ("/bin/sh -c 'echo none > /sys/block/%k/queue/scheduler'", True),
        ("/bin/sh -c 'echo 1024 >/sys/class/block/%k/queue/read_ahead_kb; true'", True),
        ("/bin/sh -c 'echo none > /sys/block/%k/queue/scheduler; /root/rules'", False),
        ("/bin/sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'", False),
        ("/bin/sh -c 'echo none > /sys/block/../../proc/x'", False),
        ("/bin/sh -c 'echo `/root/rules`'", False),
        ("/root/sh -c 'echo none'", False),
    ],
)
def test_a_rule_of_udev_for_disks(tmp_path: Path, command: str, *, is_harmless: bool) -> None:
    rule = f'ACTION=="add", KERNEL=="vd*", SUBSYSTEM=="block", RUN+="{command}"\n'
    put(tmp_path, "/etc/udev/rules.d/60-disks.rules", rule)
    assert (refused(tmp_path) == "") is is_harmless


def test_a_rule_of_udev_for_another_mac_address(tmp_path: Path) -> None:
    put(tmp_path, "/etc/udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ATTR{address}="02:00:00:00:00:99"\n')
    assert "gives a network card another address or setting" in refused(tmp_path)


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


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("/etc/systemd/system-generators/harden", True),
        ("/usr/local/lib/systemd/system-generators/harden", True),
        ("/usr/lib/systemd/system-generators/harden", True),
        ("/etc/systemd/system-environment-generators/50-x", True),
        ("/usr/lib/systemd/system-environment-generators/50-x", True),
        ("/usr/lib/systemd/user-generators/x", False),
    ],
)
def test_a_generator(tmp_path: Path, path: str, *, is_refused: bool) -> None:
    put(tmp_path, path, "#!/bin/sh\n")
    # systemd runs what is executable.
    assert refused(tmp_path) == ""
    (tmp_path / path[1:]).chmod(0o755)
    assert refused(tmp_path) == (
        f"app.service cannot be started early: the generator {path} may change it at each boot"
        if is_refused
        else ""
    )


def test_a_package_s_generator_and_a_mask(tmp_path: Path) -> None:
    script(tmp_path, "/usr/lib/systemd/system-generators/tool", "#!/bin/sh\n", is_packaged=True)
    link(tmp_path, "/etc/systemd/system-generators/tool", "/dev/null")
    assert refused(tmp_path) == ""


@pytest.mark.parametrize("place", ["/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d"])
def test_rules_of_udev_outside_of_etc(tmp_path: Path, place: str) -> None:
    text = 'SUBSYSTEM=="net", RUN+="/usr/sbin/nft -f /etc/rules"\n'
    put(tmp_path, f"{place}/99-fw.rules", text)
    assert f"{place}/99-fw.rules runs `" in refused(tmp_path)
    # A package's own are those of the reference boot as well.
    script(tmp_path, f"{place}/99-fw.rules", text, is_packaged=True)
    assert bool(refused(tmp_path)) is place.startswith("/usr/local")


@pytest.mark.parametrize(
    "line",
    [
        'SUBSYSTEM=="net", RU\\\nN+="/root/rules"',
        'SUBSYSTEM=="net", SYSCTL{net.ipv4.ip_forward}="1"',
        'SUBSYSTEM=="net", ATTR{flags}="0x0"',
        'SUBSYSTEM=="net", ATTR{[net/ens3]address}="02:00:00:00:00:99"',
    ],
)
def test_rules_of_udev_in_other_words(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/udev/rules.d/80-net.rules", f"{line}\n")
    assert "/etc/udev/rules.d/80-net.rules" in refused(tmp_path)


def test_a_command_that_goes_on_within_a_word(tmp_path: Path) -> None:
    put(tmp_path, "/etc/network/interfaces", f"{IFACE}  pre-\\\nup /root/rules\n")
    assert "has `pre-up /root/rules`" in refused(tmp_path)


def test_a_mask_of_a_generator_of_the_environment(tmp_path: Path) -> None:
    name = "/usr/lib/systemd/system-environment-generators/snapd-env-generator"
    script(tmp_path, name, "#!/bin/sh\n", is_packaged=True)
    assert f"the generator {name}" in refused(tmp_path)
    link(tmp_path, "/etc/systemd/system-environment-generators/snapd-env-generator", "/dev/null")
    assert refused(tmp_path) == ""


def test_rules_of_udev_that_do_not(tmp_path: Path) -> None:
    text = """\
SUBSYSTEM=="net", ACTION=="add", ATTR{address}=="52:54:00:12:34:56", NAME="lan0"
SUBSYSTEM=="net", ACTION=="add", RUN+="/sbin/ethtool -K $name tso off", RUN+="/sbin/ip link set %k mtu 1400"
SUBSYSTEM=="net", ACTION=="add", RUN+="/sbin/ethtool -K lan0 tso off", RUN{builtin}+="kmod load bonding"
SUBSYSTEM=="block", IMPORT{builtin}="blkid", IMPORT{file}="/etc/x"
"""
    put(tmp_path, "/etc/udev/rules.d/80-net.rules", text)
    assert refused(tmp_path) == ""


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        (
            "option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;\n#supersede domain-name x;\n",
            True,
        ),
        ("request subnet-mask, routers, domain-name-servers;\n", True),
        ("request subnet-mask, routers;\n", False),
        ("ignore domain-name-servers;\n", False),
        ("supersede domain-name-servers 127.0.0.1;\n", False),
        ("prepend domain-name-servers 127.0.0.1;\n", False),
    ],
)
def test_who_writes_the_resolver(tmp_path: Path, text: str, writes: bool) -> None:
    assert not writes_resolver(ImageRoot(tmp_path))
    put(tmp_path, "/etc/dhcp/dhclient.conf", text)
    assert refused(tmp_path) == ""
    # Another client does.
    assert not writes_resolver(ImageRoot(tmp_path))
    put(tmp_path, "/sbin/dhclient", "")
    assert writes_resolver(ImageRoot(tmp_path)) is writes
    script(tmp_path, f"{ENTER}/tool", "make_resolv_conf() { :; }\n", is_packaged=True)
    assert not writes_resolver(ImageRoot(tmp_path))


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
