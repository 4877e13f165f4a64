"""Init's network card: what it has when it is brought up, its name, and that a fallback gives it back as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.networkbox import ran, text

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
