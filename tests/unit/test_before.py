"""An early start would lack some work that a stock boot does before a service starts: such a build is
refused, and the work is named.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import refuse_filters, settling_files, settling_places
from quickstart.inspect.unit.facts import deciding
from quickstart.inspect.unit.read import HAND_OFF_DROP_IN
from tests.unit.test_unit_sockets import link
from tests.unit.unitreader import SERVICE, put, read

FILTER = "[Unit]\nWants=network-pre.target\nBefore=network-pre.target shutdown.target\n[Service]\nExecStart=/bin/nft\n"


def enable(root: Path, name: str, target: str) -> None:
    place = root / f"etc/systemd/system/{target}.wants"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).symlink_to(f"/usr/lib/systemd/system/{name}")


@pytest.mark.parametrize("target", ["sysinit.target", "multi-user.target"])
def test_a_packet_filter_is_not_overtaken(tmp_path: Path, target: str) -> None:
    """The application would answer everybody until the rules are there."""
    put(tmp_path, "/usr/lib/systemd/system/nftables.service", FILTER)
    read(tmp_path, SERVICE)
    enable(tmp_path, "nftables.service", target)
    with pytest.raises(
        UnsupportedUnitError, match=r"nftables\.service is enabled and goes before the network"
    ):
        read(tmp_path, SERVICE)


def test_nor_one_that_a_drop_in_orders(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/wall.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n")
    enable(tmp_path, "wall.service", "multi-user.target")
    read(tmp_path, SERVICE)
    put(tmp_path, "/etc/systemd/system/wall.service.d/a.conf", "[Unit]\nBefore=network-pre.target\n")
    with pytest.raises(UnsupportedUnitError, match=r"wall\.service"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("key", ["Wants", "Requires"])
def test_nor_one_that_an_enabled_unit_names(tmp_path: Path, key: str) -> None:
    put(tmp_path, "/usr/lib/systemd/system/wall.service", FILTER)
    put(
        tmp_path,
        "/usr/lib/systemd/system/front.service",
        f"[Unit]\n{key}=wall.service\n[Service]\nExecStart=/x\n",
    )
    read(tmp_path, SERVICE)
    enable(tmp_path, "front.service", "multi-user.target")
    with pytest.raises(UnsupportedUnitError, match=r"wall\.service is enabled and goes before the network"):
        read(tmp_path, SERVICE)
    put(tmp_path, "/usr/lib/systemd/system/wall.service", "[Service]\nExecStart=/x\n")
    put(tmp_path, "/usr/lib/systemd/system/auditd.service", "[Service]\nExecStart=/x\n")
    read(tmp_path, SERVICE)
    put(tmp_path, "/etc/systemd/system/front.service.d/a.conf", "[Unit]\nWants=auditd.service\n")
    with pytest.raises(UnsupportedUnitError, match=r"auditd\.service is enabled"):
        read(tmp_path, SERVICE)


def test_nor_one_that_a_target_upholds(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/wall.service", FILTER)
    place = tmp_path / "etc/systemd/system/multi-user.target.upholds"
    place.mkdir(parents=True)
    (place / "wall.service").symlink_to("/usr/lib/systemd/system/wall.service")
    with pytest.raises(UnsupportedUnitError, match=r"wall\.service"):
        read(tmp_path, SERVICE)


def test_many_names_of_one_long_unit_are_not_read_for_hours(tmp_path: Path) -> None:
    """A tar of 2 MiB has thousands of links to one file."""
    put(tmp_path, "/usr/lib/systemd/system/long.service", "[Unit]\n" + "After=x.service\n" * 100_000)
    for number in range(12):
        (tmp_path / f"usr/lib/systemd/system/b{number}.service").symlink_to("long.service")
    with pytest.raises(UnsupportedUnitError, match="have more than 16777216 characters"):
        list(settling_files(ImageRoot(tmp_path)))
    for number in range(12):
        enable(tmp_path, f"b{number}.service", "multi-user.target")
    with pytest.raises(UnsupportedUnitError, match="have more than 16777216 characters"):
        read(tmp_path, SERVICE)


def test_many_drop_ins_of_many_services_are_not_read_for_each(tmp_path: Path) -> None:
    """They belong to each service with this beginning."""
    for number in range(100):
        put(tmp_path, f"/etc/systemd/system/u-.service.d/{number}.conf", "[Unit]\nAfter=x.service\n")
        put(tmp_path, f"/usr/lib/systemd/system/u-{number}.service", "[Unit]\n")
        enable(tmp_path, f"u-{number}.service", "other.target")
    root = ImageRoot(tmp_path)
    list(settling_files(root))
    refuse_filters(root, "app.service")
    assert root._spent[1] < 2000
    put(tmp_path, "/etc/systemd/system/u-.service.d/7.conf", "[Unit]\nBefore=network-pre.target\n")
    with pytest.raises(UnsupportedUnitError, match=r"u-0\.service is enabled"):
        refuse_filters(root, "app.service")


@pytest.mark.parametrize("place", ["service.d", "u-.service.d", "alias.service.d"])
def test_a_drop_in_of_another_name(tmp_path: Path, place: str) -> None:
    put(tmp_path, "/usr/lib/systemd/system/u-1.service", "[Service]\nExecStart=/x\n")
    enable(tmp_path, "u-1.service", "multi-user.target")
    (tmp_path / "etc/systemd/system/alias.service").symlink_to("/usr/lib/systemd/system/u-1.service")
    refuse_filters(ImageRoot(tmp_path), "app.service")
    put(tmp_path, f"/etc/systemd/system/{place}/a.conf", "[Unit]\nBefore=network-pre.target\n")
    with pytest.raises(UnsupportedUnitError, match=r"u-1\.service is enabled"):
        refuse_filters(ImageRoot(tmp_path), "app.service")


def test_an_image_has_no_thousands_of_services(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/a.service", "[Unit]\n")
    for number in range(2048):
        (tmp_path / f"usr/lib/systemd/system/b{number}.service").symlink_to("a.service")
    with pytest.raises(UnsupportedUnitError, match="the image has 2049 services"):
        list(settling_files(ImageRoot(tmp_path)))


def test_a_masked_one_and_others_of_the_early_boot_do_not_matter(tmp_path: Path) -> None:
    for name in ("nftables.service", "cloud-init-local.service", "systemd-network-generator.service"):
        put(tmp_path, f"/usr/lib/systemd/system/{name}", FILTER)
        enable(tmp_path, name, "sysinit.target")
    (tmp_path / "etc/systemd/system/nftables.service").symlink_to("/dev/null")
    read(tmp_path, SERVICE)


@pytest.mark.parametrize(
    ("place", "conf", "is_refused"),
    [
        # Debian 12: the package's own link, and Audit= is off by default.
        ("/usr/lib/systemd/system", "#Audit=no\n", False),
        ("/usr/lib/systemd/system", "[Journal]\nAudit=yes\n", True),
        # Since Debian 13, `systemctl enable` makes the link, and Audit= is on by default.
        ("/etc/systemd/system", "[Journal]\n#Audit=yes\n", True),
        ("/etc/systemd/system", "", True),
        ("/etc/systemd/system", "[Journal]\nAudit=no\n", False),
        ("/etc/systemd/system", "[Journal]\nAudit=yes\nAudit=\n", False),
        ("/etc/systemd/system", "[Journal]\nAudit=keep\n", False),
        # Without the socket.
        ("/tmp", "[Journal]\nAudit=yes\n", False),
    ],
)
@pytest.mark.parametrize("file", ["journald.conf", "journald.conf.d/own.conf"])
def test_audit_by_journald(tmp_path: Path, place: str, conf: str, file: str, is_refused: bool) -> None:
    """The kernel gives an audit context to nobody who was forked before audit was on."""
    name = "systemd-journald-audit.socket"
    put(tmp_path, f"/usr/lib/systemd/system/{name}", "[Socket]\nListenNetlink=audit 1\n")
    put(tmp_path, f"/etc/systemd/{file}", conf)
    link(tmp_path, f"{place}/sockets.target.wants/{name}", f"/usr/lib/systemd/system/{name}")
    if not is_refused:
        read(tmp_path, SERVICE)
        return
    with pytest.raises(UnsupportedUnitError, match=r"journald-audit\.socket is enabled, .* never audited"):
        read(tmp_path, SERVICE)
    link(tmp_path, f"/etc/systemd/system/{name}", "/dev/null")
    read(tmp_path, SERVICE)


@pytest.mark.parametrize("name", ["auditd.service", "audit-rules.service"])
def test_who_is_to_be_audited_is_not_started_before_it(tmp_path: Path, name: str) -> None:
    """The kernel gives an audit context to nobody who was forked before audit was on."""
    put(tmp_path, f"/usr/lib/systemd/system/{name}", "[Unit]\nBefore=sysinit.target\n")
    read(tmp_path, SERVICE)
    enable(tmp_path, name, "multi-user.target")
    with pytest.raises(UnsupportedUnitError, match=f"{name} is enabled, and .* never audited"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize(
    "line", ["NoNewPrivileges=yes", "CapabilityBoundingSet=~CAP_SYS_PTRACE", "SystemCallArchitectures=native"]
)
def test_what_system_conf_says_for_all_is_not_lost(tmp_path: Path, line: str) -> None:
    put(tmp_path, "/etc/systemd/system.conf", f"[Manager]\n#{line}\nLogLevel=info\n")
    read(tmp_path, SERVICE)
    put(tmp_path, "/etc/systemd/system.conf.d/hard.conf", f"[Manager]\n{line}\n")
    with pytest.raises(UnsupportedUnitError, match=f"system.conf has {line.partition('=')[0]}"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("name", ["zzzz-quickstart.conf", "zzzzz.conf", "é.conf"])
@pytest.mark.parametrize("place", ["app.service.d", "service.d"])
def test_a_drop_in_that_would_undo_the_adoption(tmp_path: Path, name: str, place: str) -> None:
    """With an ExecStart= of its own, systemd would start the application beside the one that runs, or refuse the unit."""
    put(tmp_path, f"/etc/systemd/system/{place}/zzzz-a.conf", "[Service]\nNice=1\n")
    read(tmp_path, SERVICE)
    put(tmp_path, f"/etc/systemd/system/{place}/{name}", "[Service]\nNice=2\n")
    with pytest.raises(UnsupportedUnitError, match="is read after what the hand-off says"):
        read(tmp_path, SERVICE)


def test_the_hand_offs_drop_in_is_called_so() -> None:
    script = resources.files("quickstart.initramfs").joinpath("init", "hand-off").read_bytes()
    assert b"/$UNIT.d/%s" % HAND_OFF_DROP_IN in script


@pytest.mark.parametrize("unit", ["networking.service", "systemd-networkd.service"])
def test_a_network_that_is_switched_off_later_is_noticed(tmp_path: Path, unit: str) -> None:
    """A stock boot has no network then, and the application answers nobody."""
    read(tmp_path, SERVICE)
    put(tmp_path, f"/usr/lib/systemd/system/{unit}", "[Service]\nExecStart=/bin/true\n")
    enable(tmp_path, unit, "multi-user.target")
    files = set(map(str, deciding(ImageRoot(tmp_path), "app.service").files))
    assert f"/etc/systemd/system/multi-user.target.wants/{unit}" in files
    assert {"/etc/default/networking", "/system-update", "/etc/cloud/cloud-init.disabled"} <= files


def test_what_cloud_init_does_not_write_is_compared_with_it_too(tmp_path: Path) -> None:
    read(tmp_path, SERVICE)
    put(tmp_path, "/usr/lib/systemd/system/cloud-init.service", "[Service]\nExecStart=/bin/true\n")
    before = deciding(ImageRoot(tmp_path), "app.service")
    enable(tmp_path, "cloud-init.service", "cloud-init.target")
    after = deciding(ImageRoot(tmp_path), "app.service")
    left_out = {*map(str, before.files), *map(str, before.places)} - {
        *map(str, after.files),
        *map(str, after.places),
    }
    assert left_out == {
        *("/etc/fstab", "/etc/network/interfaces"),
        *("/etc/network/interfaces.d", "/etc/systemd/network", "/etc/netplan", "/etc/udev/rules.d"),
    }


def test_drop_ins_of_the_network_s_files_are_compared(tmp_path: Path) -> None:
    read(tmp_path, SERVICE)
    put(tmp_path, "/etc/systemd/network/10-wired.network", "[Network]\nDHCP=yes\n")
    put(tmp_path, "/usr/lib/systemd/network/80-wifi.network", "[Network]\nDHCP=yes\n")
    facts = deciding(ImageRoot(tmp_path), "app.service")
    own = "/etc/systemd/network"
    assert {f"{own}/10-wired.network.d", f"{own}/80-wifi.network.d"} <= set(map(str, facts.places))
    assert {"/etc/dhcpcd.conf", "/etc/systemd/networkd.conf"} <= set(map(str, facts.files))


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("install ip_tables /sbin/modprobe --ignore-install ip_tables && nft -f /etc/rules", True),
        ("install floppy /bin/true", False),
        ("install floppy /usr/bin/false ", False),
        ("install floppy /bin/false # not here", False),
        ("install floppy true", False),
        ("install floppy  true", False),
        ("install floppy /bin/true-not", True),
        ("# install x y", False),
        ("options floppy install=y", False),
    ],
)
def test_commands_in_place_of_a_module(tmp_path: Path, line: str, *, is_refused: bool) -> None:
    put(tmp_path, "/etc/modprobe.d/own.conf", f"blacklist x\n{line}\n")
    if not is_refused:
        read(tmp_path, SERVICE)
        return
    with pytest.raises(UnsupportedUnitError, match=r"modprobe\.d/own\.conf has `install"):
        read(tmp_path, SERVICE)


def test_a_file_of_modprobe_s_that_no_package_has(tmp_path: Path) -> None:
    """Those of packages come with upgrades, and are for their own modules."""
    path = "/usr/lib/modprobe.d/nvidia.conf"
    put(tmp_path, path, "install nvidia \\\n  modprobe -i nvidia-current\n")
    with pytest.raises(UnsupportedUnitError, match=r"modprobe\.d/nvidia\.conf has `install nvidia"):
        read(tmp_path, SERVICE)
    put(
        tmp_path,
        "/var/lib/dpkg/status",
        "Package: nvidia\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n",
    )
    put(tmp_path, "/var/lib/dpkg/info/nvidia.list", f"/.\n{path}\n")
    read(tmp_path, SERVICE)


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("0.0 0 0.0\n0\nLOCAL\n", True),
        ("0.0 0 0.0\n0\nUTC\n", False),
        ("0.0 0 0.0\n0\nUTC\nLOCAL\n", False),
        # systemd's own ends of lines.
        ("0.0 0 0.0\n0\nLOCAL\r\n", True),
        ("0.0 0 0.0\r0\rLOCAL\r", True),
    ],
)
def test_a_hardware_clock_with_the_local_time(tmp_path: Path, text: str, *, is_refused: bool) -> None:
    put(tmp_path, "/etc/adjtime", text)
    if not is_refused:
        read(tmp_path, SERVICE)
        return
    with pytest.raises(UnsupportedUnitError, match="the hardware clock has the local time"):
        read(tmp_path, SERVICE)


def test_the_word_on_the_hardware_clock_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/adjtime").symlink_to("/var/lib/adjtime")
    with pytest.raises(UnsupportedUnitError, match="/etc/adjtime is a link"):
        read(tmp_path, SERVICE)


def test_templates_of_cloud_init(tmp_path: Path) -> None:
    assert "/etc/cloud/templates" in {str(path) for path in settling_places(ImageRoot(tmp_path))}


def test_drop_ins_of_link_files(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/network/99-default.link", "[Link]\nNamePolicy=keep\n")
    put(tmp_path, "/usr/local/lib/systemd/network/5-lan.network.d/a.conf", "")
    places = {str(path) for path in settling_places(ImageRoot(tmp_path))}
    assert {
        "/etc/systemd/network/99-default.link.d",
        "/usr/local/lib/systemd/network/99-default.link.d",
        "/usr/local/lib/systemd/network/5-lan.network.d",
    } <= places


def test_an_early_policy_of_apparmor(tmp_path: Path) -> None:
    put(tmp_path, "/etc/apparmor/earlypolicy/app", "x")
    with pytest.raises(UnsupportedUnitError, match="earlypolicy/app confines services"):
        read(tmp_path, SERVICE)


def test_a_split_usr(tmp_path: Path) -> None:
    put(tmp_path, "/lib/systemd/system/other.service", SERVICE)
    with pytest.raises(UnsupportedUnitError, match="/lib/systemd/system is not in /usr/lib"):
        read(tmp_path, SERVICE)


def test_places_outside_of_the_usual_ones_are_compared(tmp_path: Path) -> None:
    read(tmp_path, SERVICE)
    places = set(map(str, deciding(ImageRoot(tmp_path), "app.service").places))
    assert {"/etc/apparmor/earlypolicy", "/usr/local/lib/udev/rules.d", "/etc/cloud/handlers"} <= places


def test_an_empty_order_takes_nothing_back(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/wall.service", FILTER)
    put(tmp_path, "/etc/systemd/system/wall.service.d/a.conf", "[Unit]\nBefore=\n")
    enable(tmp_path, "wall.service", "multi-user.target")
    with pytest.raises(UnsupportedUnitError, match=r"wall\.service is enabled and goes before the network"):
        read(tmp_path, SERVICE)


@pytest.mark.parametrize("before", ["network-%i.target", "network-pre.target"])
def test_an_instance_that_is_a_filter(tmp_path: Path, before: str) -> None:
    text = f"[Unit]\nBefore={before}\n[Service]\nExecStart=/bin/nft\n"
    put(tmp_path, "/usr/lib/systemd/system/fw@.service", text)
    place = tmp_path / "etc/systemd/system/multi-user.target.wants"
    place.mkdir(parents=True)
    (place / "fw@pre.service").symlink_to("/usr/lib/systemd/system/fw@.service")
    with pytest.raises(UnsupportedUnitError, match=r"fw@pre\.service is enabled and goes before the network"):
        read(tmp_path, SERVICE)
