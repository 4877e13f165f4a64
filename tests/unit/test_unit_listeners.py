"""Sockets that a boot starts, and that a process of any user could bind before systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import read_unit
from quickstart.inspect.unit.listeners import is_open_to_all
from tests.unit.unitreader import put

PLACE = "/usr/lib/systemd/system"
PORTS = "net.ipv4.ip_unprivileged_port_start"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    put(tmp_path, f"{PLACE}/app.service", "[Service]\nExecStart=/bin/app\n")
    return tmp_path


def socket(base: Path, text: str, name: str = "other", target: str = "sockets.target") -> None:
    put(base, f"{PLACE}/{name}.socket", f"[Socket]\n{text}\n")
    put(base, f"{PLACE}/{name}.service", "[Service]\nExecStart=/bin/x\n")
    link = base / "etc/systemd/system" / f"{target}.wants" / f"{name}.socket"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(f"{PLACE}/{name}.socket")


def read(base: Path) -> None:
    read_unit(ImageRoot(base), "app.service")


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("22", False),
        ("0.0.0.0:443", False),
        ("[::]:1023", False),
        ("1024", True),
        ("127.0.0.1:2222", True),
        ("[::1]:16514", True),
        ("@ISCSIADM_ABSTRACT_NAMESPACE", True),
        ("@name:22", True),
        ("/run/../tmp/x", True),
        ("/run/x.sock", False),
        ("%t/x.sock", False),
        ("/tmp/x.sock", True),
        ("/var/tmp//x.sock", True),
        ("/dev/shm/x", True),
        ("/tmpfiles/x", False),
        ("/run/lock/x", True),
        ("/var/lock/x", True),
        ("/var/run/lock/x", True),
        ("%t/lock/x", True),
        ("vsock::22", False),
        ("vsock:2:5000", True),
        ("%i", True),
        ("99999", True),
    ],
)
def test_whether_anybody_could_listen_there(base: Path, address: str, *, is_open: bool) -> None:
    assert is_open_to_all(address, 1024) is is_open
    socket(base, f"ListenStream=\nListenStream={address}")
    if is_open:
        with pytest.raises(UnsupportedUnitError, match=r"other\.socket listens on"):
            read(base)
    else:
        read(base)


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("ListenDatagram", "@x"),
        ("ListenSequentialPacket", "@x"),
        ("ListenFIFO", "/tmp/x"),
        ("ListenMessageQueue", "/x"),
    ],
)
def test_other_kinds_of_sockets(base: Path, kind: str, address: str) -> None:
    socket(base, f"{kind}={address}")
    with pytest.raises(UnsupportedUnitError, match=r"other\.socket listens on @?[/x]"):
        read(base)


@pytest.mark.parametrize("name", ["open-iscsi", "iscsid", "multipathd"])
def test_a_service_that_binds_such_an_address(base: Path, name: str) -> None:
    """open-iscsi's passwords go to whoever has bound its address."""
    put(base, f"{PLACE}/{name}.service", "[Service]\nExecStart=/bin/x\n")
    read(base)
    link = base / "etc/systemd/system/sysinit.target.wants" / f"{name}.service"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"{PLACE}/{name}.service")
    with pytest.raises(UnsupportedUnitError, match=rf"{name}\.service listens on @"):
        read(base)


def test_a_socket_that_no_boot_starts(base: Path) -> None:
    socket(base, "ListenStream=2222", target="never.target")
    socket(base, "ListenNetlink=route 1", "netlink")
    put(base, f"{PLACE}/off.socket", "[Socket]\nListenStream=2222\n")
    (base / "etc/systemd/system/never.target.wants/other.socket").unlink()
    read(base)


def test_the_applications_own_socket(base: Path) -> None:
    """Init binds it."""
    socket(base, "ListenStream=2222", "app")
    put(base, f"{PLACE}/app.service", "[Service]\nExecStart=/bin/app\n")
    read(base)


def test_the_first_unprivileged_port_is_a_setting(base: Path) -> None:
    socket(base, "ListenStream=443")
    put(base, f"{PLACE}/systemd-sysctl.service", "[Service]\n")
    read(base)
    put(base, "/etc/sysctl.d/ports.conf", f"{PORTS}=80\n")
    with pytest.raises(UnsupportedUnitError, match=r"other\.socket listens on 443"):
        read(base)
    put(base, "/etc/sysctl.d/ports.conf", f"{PORTS}=444\n")
    read(base)
