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
RUN = 'ip link set lo up; "$1/busybox" chroot "$1" /fast/quickstart/udhcpc bound || exit; ip -4 route show dev lo'
# Of the address itself.
OWN = "10.0.2.0/24 proto kernel scope link src 10.0.2.15"


def bound(root: Path, said: dict[str, str]) -> tuple[str, str]:
    """resolv.conf, and the routes after a lease with these values, but for the address's own."""
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
    assert done.returncode == 0
    # ip(8) says what it does not take.
    assert all(line.startswith(b"ip: ") for line in done.stderr.splitlines())
    assert (place / "run/lease").read_text() == "10.0.2.15/24 86400\n"
    assert sorted(path.name for path in root.iterdir()) == ["busybox", "fast"]
    routes = [line.strip() for line in done.stdout.decode().splitlines()]
    return (place / "run/resolv.conf").read_text(), "\n".join(line for line in routes if line != OWN)


def test_an_ordinary_lease(tmp_path: Path) -> None:
    said = {"domain": "example.org a-b.example", "dns": "10.0.2.3 fd00::3", "router": "10.0.2.2 10.0.2.1"}
    resolver, route = bound(tmp_path, said)
    assert resolver == "search example.org a-b.example\nnameserver 10.0.2.3\nnameserver fd00::3\n"
    assert route == "default via 10.0.2.2"


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
    given = dict.fromkeys(("domain", "search", "dns", "router"), value)
    resolver, route = bound(tmp_path, {"TAKES_SEARCH": "dhclient", **given})
    assert resolver == ""
    assert route == ""


@pytest.mark.parametrize(
    ("client", "said", "lines"),
    [
        # dhclient-script(8) of Debian 12 and 13.
        (
            "dhclient",
            {"domain": "a.org", "search": "b.org c.org"},
            ["domain a.org", "search a.org b.org c.org"],
        ),
        ("dhclient", {"domain": "b.org", "search": "a.org b.org"}, ["domain b.org", "search a.org b.org"]),
        ("dhclient", {"domain": "b.org", "search": "a.org b.org."}, ["domain b.org", "search a.org b.org."]),
        ("dhclient", {"search": "b.org"}, ["search b.org"]),
        ("dhclient", {"domain": "a.org b.org"}, ["domain a.org", "search a.org b.org"]),
        # dhcpcd's 20-resolv.conf.
        ("dhcpcd", {"domain": "a.org", "search": "b.org c.org"}, ["domain a.org", "search b.org c.org"]),
        ("dhcpcd", {"domain": "a.org"}, ["domain a.org", "search a.org"]),
        # A client that does not ask for a list.
        ("", {"domain": "a.org", "search": "b.org"}, ["search a.org"]),
        ("dhclient", {"search": "b.org " * 171}, []),
        ("dhclient", {}, []),
    ],
)
def test_a_search_list(tmp_path: Path, client: str, said: dict[str, str], lines: list[str]) -> None:
    resolver, _ = bound(tmp_path, {"TAKES_SEARCH": client, **said})
    assert resolver.splitlines() == lines


ROUTES = {"TAKES_ROUTES": "yes", "router": "10.0.2.2"}


@pytest.mark.parametrize(
    ("said", "routes"),
    [
        ("10.1.0.0/16 10.0.2.9 0.0.0.0/0 10.0.2.1", ["default via 10.0.2.1", "10.1.0.0/16 via 10.0.2.9"]),
        ("10.1.0.0/16 0.0.0.0 10.2.0.0/16", ["10.1.0.0/16 scope link"]),
        ("10.1.0.0/16 $(touch${IFS}/pwned)", []),
        ("10.1.0.0/16;touch${IFS}/pwned 10.0.2.9", []),
        ("default 10.0.2.1", []),
        ("10.1.0.0/16 10.0.2.9/8", []),
        ("/ 10.0.2.9", []),
        ("-6 10.0.2.9 10.1.0.0/16 dev", []),
        ("* * 10.1.0.0/16 *", []),
        ("fd00::/8 fd00::1", []),
        ("10.1.0.0/16 10.0.2.9\nx", ["10.1.0.0/16 via 10.0.2.9"]),
    ],
)
def test_hostile_routes(tmp_path: Path, said: str, routes: list[str]) -> None:
    """Nothing but addresses gets to ip(8). What is there stands for the router (RFC 3442), even if nothing of it is any good."""
    _, found = bound(tmp_path, {**ROUTES, "staticroutes": said})
    assert found.splitlines() == routes


def test_no_end_of_routes(tmp_path: Path) -> None:
    _, found = bound(
        tmp_path,
        {**ROUTES, "staticroutes": " ".join(f"10.1.{number}.0/24 10.0.2.9" for number in range(250))},
    )
    assert len(found.splitlines()) == 32


def test_a_client_that_does_not_ask_for_routes(tmp_path: Path) -> None:
    said = {**ROUTES, "TAKES_ROUTES": "", "staticroutes": "10.1.0.0/16 10.0.2.9"}
    assert bound(tmp_path, said)[1] == "default via 10.0.2.2"


@pytest.mark.parametrize("router", ["10.0.2.2/8", "dev", "10.0.2.2;x", "-6", "fd00::1", "0x0a000202"])
def test_a_router_that_is_no_address(tmp_path: Path, router: str) -> None:
    assert bound(tmp_path, {"router": router})[1] == ""
