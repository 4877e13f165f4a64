"""Rules of udev that may filter packets or give a network card another address, and rules that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hookscripts import refused, script
from tests.unit.test_unit_sockets import put


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


def test_rules_of_udev_that_do_not(tmp_path: Path) -> None:
    text = """\
SUBSYSTEM=="net", ACTION=="add", ATTR{address}=="52:54:00:12:34:56", NAME="lan0"
SUBSYSTEM=="net", ACTION=="add", RUN+="/sbin/ethtool -K $name tso off", RUN+="/sbin/ip link set %k mtu 1400"
SUBSYSTEM=="net", ACTION=="add", RUN+="/sbin/ethtool -K lan0 tso off", RUN{builtin}+="kmod load bonding"
SUBSYSTEM=="block", IMPORT{builtin}="blkid", IMPORT{file}="/etc/x"
"""
    put(tmp_path, "/etc/udev/rules.d/80-net.rules", text)
    assert refused(tmp_path) == ""
