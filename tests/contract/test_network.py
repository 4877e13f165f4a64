"""Init's network: a fallback gives the card back.

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
        (place / name).write_text(text(name).replace("/newroot/", f"{place}/newroot/"))
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


@pytest.mark.parametrize("network", ["ifupdown", "networkd"])
@pytest.mark.parametrize("wait", ["leased", "begun", ":"])
def test_the_stock_boot_gets_the_card_as_it_was(tmp_path: Path, network: str, wait: str) -> None:
    """Nobody would renew the lease. The script of a client that is told to end may still be running."""
    (tmp_path / "settings").write_text(
        "setting always net/ipv6/conf/all/disable_ipv6 1\nsetting as-built net/ipv6/conf/*/accept_ra 2\n"
    )
    script = f"{STOCK}; start_dhcp; {wait}; boot_stock why; show"
    lines = ran(tmp_path, script, {"NETWORK": network}, is_slow=True)
    assert lines[0] == "fallback 1: why; the stock init takes over"
    assert addresses(lines) == []
    assert [
        line for line in lines if line.split()[0] in ("accept_ra", "addr_gen_mode", "disable_ipv6")
    ] == UNTOUCHED
    assert "UP" not in lines[1].partition("<")[2].partition(">")[0].split(",")


def test_a_client_that_does_not_end_is_killed(tmp_path: Path) -> None:
    client = "sh -c 'trap : TERM; while :; do sleep 5; done' & DHCP=$!; usleep 100000"
    script = f"{client}; end_dhcp; usleep 50000; lives $DHCP || echo gone"
    assert ran(tmp_path, script) == ["gone"]


def test_the_second_half_gives_it_back_as_well() -> None:
    fall_back = text("second").partition("\nfall_back() {\n")[2].partition("\n}\n")[0]
    assert "\tgive_back_network\n" in fall_back
    assert fall_back.index("give_back_network") < fall_back.index("umount -l /fast")


@pytest.mark.parametrize(
    ("setting", "as_built", "accept_ra"),
    [
        ("always net/ipv6/conf/ens3/accept_ra 0", False, "0"),
        ("always net/ipv6/conf/*/accept_ra 0", False, "0"),
        ("always net/ipv6/conf/*/accept_ra 0 net/ipv6/conf/ens3/accept_ra", False, "1"),
        ("as-built net/ipv6/conf/ens3/accept_ra 0", True, "0"),
        ("as-built net/ipv6/conf/ens3/accept_ra 0", False, "1"),
        ("always net/ipv6/conf/other/accept_ra 0", False, "1"),
    ],
)
def test_sysctl_d_comes_before_the_first_advertisement(
    tmp_path: Path, setting: str, as_built: bool, accept_ra: str
) -> None:
    """What the card has at the moment when it is brought up."""
    (tmp_path / "settings").write_text(f"setting {setting}\nsetting always kernel/hostname other\n")
    words = {"BUILD_MOUNTS": "1", "BUILD_WTIME": "1"} if as_built else {}
    watch = 'ip() { [ "$*" != "link set ens3 up" ] || cat /proc/sys/net/ipv6/conf/ens3/accept_ra; busybox ip "$@"; }; '
    assert ran(tmp_path, f"{watch}start_dhcp; end_dhcp; cat /proc/sys/kernel/hostname", words) == [
        accept_ra,
        Path("/proc/sys/kernel/hostname").read_text().strip(),
    ]
