"""Who writes /etc/resolv.conf by way of the hooks of a DHCP client."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import settling_files
from quickstart.inspect.unit.hooks import writes_resolver
from tests.unit.hookscripts import ENTER, EXIT, refused, script
from tests.unit.test_unit_sockets import put


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


def test_trixie_s_hooks_for_resolved(tmp_path: Path) -> None:
    """They come with isc-dhcp-client, and ask systemctl(1) whether there is a systemd-resolved."""
    put(tmp_path, "/etc/dhcp/dhclient.conf", "request subnet-mask, routers, domain-name-servers;\n")
    put(tmp_path, "/sbin/dhclient", "")
    text = "if systemctl is-enabled systemd-resolved > /dev/null 2>&1; then\nmake_resolv_conf() { : ; }\nfi\n"
    for path in (f"{ENTER}/resolved-enter", f"{EXIT}/resolved"):
        put(tmp_path, path, text)
    assert writes_resolver(ImageRoot(tmp_path))
    put(tmp_path, "/usr/lib/systemd/systemd-resolved", "")
    assert not writes_resolver(ImageRoot(tmp_path))


# Of Debian's dhcpcd-base 9.4.1 and 10.1, less `duid`.
DHCPCD_CONF = """\
hostname
persistent
vendorclassid
option domain_name_servers, domain_name, domain_search
option classless_static_routes
option host_name
require dhcp_server_identifier
slaac private
"""
DHCPCD_HOOK = "/usr/lib/dhcpcd/dhcpcd-hooks/20-resolv.conf"


@pytest.mark.parametrize(
    ("text", "more", "writes"),
    [
        (DHCPCD_CONF, "", True),
        (f"{DHCPCD_CONF}nohook lookup-hostname, wpa_supplicant\n", "", True),
        (f"{DHCPCD_CONF}nohook resolv.conf\n", "", False),
        (f"{DHCPCD_CONF}interface ens4\nnohook hostname 20-resolv.conf\n", "", False),
        ("option 6\n", "", True),
        ("#option domain_name_servers\n", "", False),
        ("interface ens4\noption domain_name_servers\n", "", False),
        (DHCPCD_CONF, "/etc/resolv.conf.head", False),
        (DHCPCD_CONF, "/etc/resolv.conf.tail", False),
        (DHCPCD_CONF, "/usr/sbin/resolvconf", False),
        # ifupdown takes it first.
        (DHCPCD_CONF, "/sbin/udhcpc", False),
        (DHCPCD_CONF, "/sbin/dhclient", False),
    ],
)
def test_dhcpcd_writes_the_resolver(tmp_path: Path, text: str, more: str, writes: bool) -> None:
    put(tmp_path, "/sbin/dhcpcd", "")
    put(tmp_path, "/etc/dhcpcd.conf", text)
    assert not writes_resolver(ImageRoot(tmp_path))
    put(tmp_path, DHCPCD_HOOK, "")
    if more:
        put(tmp_path, more, "")
    assert writes_resolver(ImageRoot(tmp_path)) is writes


def test_each_boot_compares_what_changes_the_resolver(tmp_path: Path) -> None:
    """A file or program that comes later changes what dhcpcd writes."""
    later = {PurePosixPath("/etc/resolv.conf.head"), PurePosixPath("/usr/sbin/resolvconf")}
    assert later <= {*settling_files(ImageRoot(tmp_path))}
    # A package's, which an upgrade writes anew.
    put(tmp_path, "/usr/sbin/resolvconf", "")
    assert later - {*settling_files(ImageRoot(tmp_path))} == {PurePosixPath("/usr/sbin/resolvconf")}
