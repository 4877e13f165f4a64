"""Runs init's own functions for the network with the host's BusyBox, and a DHCP server, in a network of their own."""

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
