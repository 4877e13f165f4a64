"""A hostile DHCP server: udhcpc's script (initramfs/init/udhcpc) neither executes what it sends nor writes it
to a file unchecked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces

LEASE = {"interface": "lo", "ip": "10.0.2.15", "mask": "24", "lease": "86400"}
# In a network of its own, with PID 1 of a namespace of its own, which the script sends a signal.
RUN = 'ip link set lo up; "$1/busybox" chroot "$1" /fast/quickstart/udhcpc bound || exit; ip -4 route show default'


def bound(root: Path, said: dict[str, str]) -> tuple[str, str]:
    """resolv.conf, and the route after a lease with these values."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    place = root / "fast/quickstart"
    for name in ("bin", "run"):
        (place / name).mkdir(parents=True)
    shutil.copy(door.tool_path("busybox"), root / "busybox")
    shutil.copy(door.tool_path("busybox"), place / "busybox")
    script = resources.files("quickstart.initramfs").joinpath("init", "udhcpc")
    (place / "udhcpc").write_bytes(script.read_bytes())
    (place / "udhcpc").chmod(0o755)
    done = subprocess.run(
        [*own_namespaces(network=True), "sh", "-c", RUN, "sh", str(root)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **LEASE, **said},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (place / "run/lease").read_text() == "10.0.2.15/24 86400\n"
    assert sorted(path.name for path in root.iterdir()) == ["busybox", "fast"]
    return (place / "run/resolv.conf").read_text(), done.stdout.decode().strip()


def test_an_ordinary_lease(tmp_path: Path) -> None:
    said = {"domain": "example.org a-b.example", "dns": "10.0.2.3 fd00::3", "router": "10.0.2.2 10.0.2.1"}
    resolver, route = bound(tmp_path, said)
    assert resolver == "search example.org a-b.example\nnameserver 10.0.2.3\nnameserver fd00::3\n"
    assert route == "default via 10.0.2.2 dev lo"


@pytest.mark.parametrize(
    "value",
    [
        "x\nnameserver 6.6.6.6",
        "$(touch /pwned)",
        "`touch /pwned`",
        "; touch /pwned",
        "*",
        "x\toptions",
        "a\\nb",
        "\x1b[2J",
        "caf\xe9",
        "x\r",
    ],
)
def test_a_hostile_one(tmp_path: Path, value: str) -> None:
    """What is no name and no address is left out."""
    resolver, route = bound(tmp_path, {"domain": value, "dns": value, "router": value})
    assert resolver == ""
    assert route == ""
