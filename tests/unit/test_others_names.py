"""Name servers that the reference boot made before the unit read them: which the lease gives, and who waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.initramfs.guestconfig import Given
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op
from quickstart.model.started import Changed
from quickstart.pack.given import can_await_name_servers, needed_before_ready, refuse_names_too_early
from tests.unit.imagebuilder import trace
from tests.unit.madebefore import UNITS_OF_APP, put_client, refused
from tests.unit.test_unit_sockets import link, put

MINE = "nameserver 10.0.2.9\n"


def test_name_servers_that_init_does_not_write(tmp_path: Path) -> None:
    """Those of networkd, those of dhclient.conf, and those behind a link."""
    put_client(tmp_path)
    put(tmp_path, "/usr/lib/systemd/system/systemd-networkd.service", "")
    wants = "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
    link(tmp_path, wants, "/usr/lib/systemd/system/systemd-networkd.service")
    assert "/etc/resolv.conf" in refused(tmp_path, "/etc/resolv.conf")
    (tmp_path / wants[1:]).unlink()
    assert refused(tmp_path, "/etc/resolv.conf") == ""
    put_client(tmp_path, "prepend domain-name-servers 127.0.0.1;\n")
    assert "/etc/resolv.conf" in refused(tmp_path, "/etc/resolv.conf")
    link(tmp_path, "/etc/resolv.conf", "/run/resolvconf/resolv.conf")
    assert "/run/resolvconf/resolv.conf" in refused(tmp_path, "/run/resolvconf/resolv.conf")


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/etc/machine-id", Given(machine_id=True)),
        ("/var/lib/dbus/machine-id", Given(machine_id=True)),
        # Of a resolver that reads it again, as glibc's does.
        ("/etc/resolv.conf", Given()),
        ("/etc/hosts", Given()),
    ],
)
def test_what_a_boot_gives_and_the_unit_reads(tmp_path: Path, path: str, given: Given) -> None:
    assert needed_before_ready([trace((Op.OPEN, path))], UNITS_OF_APP, ImageRoot(tmp_path)) == given
    assert needed_before_ready([trace((Op.LOOKUP, path))], UNITS_OF_APP, ImageRoot(tmp_path)) == Given()


@pytest.mark.parametrize(
    ("after", "interfaces", "waits"),
    [
        ("network.target", "auto lo\niface lo inet loopback\nauto ens3\niface ens3 inet dhcp\n", True),
        ("network.target", "allow-auto ens3\niface ens3 inet dhcp\n", True),
        ("nss-lookup.target network-online.target", "auto lo ens3\niface ens3 inet dhcp\n", True),
        # As in QuickStart's own images: nothing waits for it.
        (
            "network-online.target",
            "auto lo\niface lo inet loopback\nallow-hotplug ens3\niface ens3 inet dhcp\n",
            False,
        ),
        ("nss-lookup.target", "auto ens3\niface ens3 inet dhcp\n", False),
    ],
)
def test_names_are_looked_up_behind_the_lease_where_stock_waits(
    tmp_path: Path, after: str, interfaces: str, waits: bool
) -> None:
    """Apache leaves a virtual host out whose name does not resolve, and the access rules in it."""
    put(tmp_path, "/usr/lib/systemd/system/app.service", f"[Unit]\nAfter={after}\n[Service]\nExecStart=/a\n")
    put(tmp_path, "/etc/network/interfaces", interfaces)
    put_client(tmp_path)
    root, traces = ImageRoot(tmp_path), [trace((Op.OPEN, "/etc/resolv.conf"))]
    assert needed_before_ready(traces, UNITS_OF_APP, root) == Given(name_servers=waits, network=waits)
    assert needed_before_ready([trace()], UNITS_OF_APP, root) == Given(network=waits)
    refuse_names_too_early(traces, UNITS_OF_APP, root)
    link(tmp_path, "/etc/resolv.conf", "/run/resolvconf/resolv.conf")
    if waits:
        with pytest.raises(UnsupportedUnitError, match="which another program writes before it"):
            refuse_names_too_early(traces, UNITS_OF_APP, root)
    else:
        refuse_names_too_early(traces, UNITS_OF_APP, root)


@pytest.mark.parametrize(
    ("client", "conf"),
    [
        ("dhclient", "supersede domain-name-servers 10.0.2.9;\n"),
        ("dhclient", "prepend domain-name-servers 127.0.0.1;\n"),
        ("udhcpc", ""),
        ("dhcpcd", "option domain_name_servers\nnohook resolv.conf\n"),
    ],
)
def test_name_servers_that_the_client_does_not_take_of_the_lease_alone(
    tmp_path: Path, client: str, conf: str
) -> None:
    """Init would wait for the lease and leave the servers of the previous boot in the file."""
    put(
        tmp_path,
        "/usr/lib/systemd/system/app.service",
        "[Unit]\nAfter=network.target\n[Service]\nExecStart=/a\n",
    )
    put(tmp_path, f"/sbin/{client}", "")
    put(tmp_path, "/usr/lib/dhcpcd/dhcpcd-hooks/20-resolv.conf", "")
    for path in ("/etc/dhcp/dhclient.conf", "/etc/dhcpcd.conf"):
        put(tmp_path, path, conf)
    put(tmp_path, "/etc/network/interfaces", "allow-hotplug ens3\niface ens3 inet dhcp\n")
    root, traces = ImageRoot(tmp_path), [trace((Op.OPEN, "/etc/resolv.conf"))]
    refuse_names_too_early(traces, UNITS_OF_APP, root)
    put(tmp_path, "/etc/network/interfaces", "auto ens3\niface ens3 inet dhcp\n")
    with pytest.raises(UnsupportedUnitError, match="which another program writes before it") as caught:
        refuse_names_too_early(traces, UNITS_OF_APP, root)
    assert "write the servers of the lease alone" in str(caught.value.hint)
    refuse_names_too_early([trace()], UNITS_OF_APP, root)


@pytest.mark.parametrize(
    ("conf", "file", "is_kept"),
    [
        (
            "supersede domain-name-servers 10.0.2.9, 10.0.2.8;\n",
            "nameserver 10.0.2.9\nnameserver 10.0.2.8\n",
            True,
        ),
        ("supersede domain-name-servers 10.0.2.9;\n", "nameserver 10.0.2.3\n", False),
        # Init would write the lease's into it, in the first boot.
        ("supersede domain-name-servers 10.0.2.9;\n", "", False),
        ("request subnet-mask, routers;\n", "# mine\nnameserver\t10.0.2.9\n", True),
        ("request subnet-mask, routers;\n", "#nameserver 10.0.2.9\n", False),
        ("ignore domain-name-servers;\n", "nameserver 10.0.2.9\n", True),
        (
            "request routers, subnet-mask;\nalso request domain-name-servers;\nprepend domain-name x;\n",
            MINE,
            False,
        ),
        ("supersede domain-name-servers 10.0.2.9;\nappend domain-name-servers 10.0.2.8;\n", MINE, False),
        ("default domain-name-servers 10.0.2.9;\n", MINE, False),
    ],
)
def test_name_servers_that_do_not_depend_on_the_lease(
    tmp_path: Path, conf: str, file: str, is_kept: bool
) -> None:
    put_client(tmp_path, conf)
    put(tmp_path, "/etc/resolv.conf", file)
    assert can_await_name_servers(ImageRoot(tmp_path)) is is_kept
    # A package's hook writes it in its own way.
    put(tmp_path, "/etc/dhcp/dhclient-enter-hooks.d/resolvconf", "make_resolv_conf() { resolvconf -a x; }\n")
    assert not can_await_name_servers(ImageRoot(tmp_path))


def test_networkd_waits_too(tmp_path: Path) -> None:
    put(
        tmp_path,
        "/usr/lib/systemd/system/app.service",
        "[Unit]\nAfter=network-online.target\n[Service]\nExecStart=/a\n",
    )
    traces, root = [trace((Op.OPEN, "/etc/resolv.conf"))], ImageRoot(tmp_path)
    for name in (
        "multi-user.target.wants/systemd-networkd",
        "network-online.target.wants/systemd-networkd-wait-online",
    ):
        refuse_names_too_early(traces, UNITS_OF_APP, root)
        put(tmp_path, f"/usr/lib/systemd/system/{name.rpartition('/')[2]}.service", "")
        link(
            tmp_path,
            f"/etc/systemd/system/{name}.service",
            f"/usr/lib/systemd/system/{name.rpartition('/')[2]}.service",
        )
    with pytest.raises(UnsupportedUnitError, match="which another program writes before it"):
        refuse_names_too_early(traces, UNITS_OF_APP, root)


def test_name_servers_that_are_read_once_are_awaited(tmp_path: Path) -> None:
    put_client(tmp_path)
    found = replace(trace(), changed=Changed((PurePosixPath("/etc/resolv.conf"),)))
    assert needed_before_ready([found], UNITS_OF_APP, ImageRoot(tmp_path)) == Given(name_servers=True)
    link(tmp_path, "/etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf")
    assert needed_before_ready([found], UNITS_OF_APP, ImageRoot(tmp_path)) == Given()
