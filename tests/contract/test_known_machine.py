"""Init decides whether cloud-init has already run on this machine. The host's BusyBox runs it in a root of its own (as root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door

DMI, XEN = "sys/class/dmi/id/product_uuid", "sys/hypervisor/uuid"
MINE, OTHER = "01234567-89ab-cdef-0123-456789abcdef", "ec2e1916-9099-7caf-fd21-012345abcdef"
MAC = "52:54:00:12:34:56"
# networkd asks for DHCP.
ASKS = {"systemd/network/00-own.network": "[Match]\nName=ens3 eth0\n[Network]\nDHCP=yes\n"}
IFUPDOWN = {
    "network/interfaces": "source /etc/network/interfaces.d/*\n",
    "network/interfaces.d/x": "auto ens3\niface ens3 inet dhcp\n",
}
ZERO = "00000000-0000-0000-0000-000000000000"
NOT_YET = "cloud-init has not been through this machine yet"
NO_NAME = "nothing tells this machine from others, so cloud-init may not have been through it"


def asked(
    root: Path,
    early: str,
    link: str,
    named: dict[str, str],
    fstab: str = "",
    network: dict[str, str] | None = None,
    interface: str = "ens3",
    service: str = "",
) -> str:
    """``known``, or why not, in a machine that has these files of names, and this link's text on its volume."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    shutil.copy(door.tool_path("busybox"), root / "busybox")
    cloud = resources.files("quickstart.initramfs").joinpath("init", "cloud")
    (root / "cloud").write_bytes(cloud.read_bytes())
    for name in ("bin", "dev", "newroot", *(str(Path(place).parent) for place in named)):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "dev/null").touch()
    for name in ("grep", "head", "readlink"):
        (root / "bin" / name).symlink_to("/busybox")
    driver = root / f"sys/class/net/{interface}/device/driver"
    driver.parent.mkdir(parents=True)
    driver.symlink_to("/sys/bus/virtio/drivers/virtio_net")
    for place, name in named.items():
        (root / place).write_text(f"{name}\n")
    if link:
        (root / "newroot/.quickstart.instance").symlink_to(link)
    (root / "newroot/etc").mkdir(parents=True, exist_ok=True)
    (root / "newroot/etc/fstab").write_text(fstab)
    for place, text in (ASKS if network is None else network).items():
        (root / "newroot/etc" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "newroot/etc" / place).write_text(text)
    given = (
        f"INTERFACE={interface} MAC={MAC} NETWORK={service} EARLY={early} CLOUD_INIT=yes"
        " ROOT_OPTIONS=rw,data=ordered LATE_PLACES=/boot/efi"
    )
    script = f'. /cloud; {given}; known_to_cloud_init && echo known || echo "$STALE"'
    done = subprocess.run(
        ["chroot", str(root), "/busybox", "sh", "-c", script],
        capture_output=True,
        env={"PATH": "/bin:/usr/sbin:/usr/bin"},
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    ("early", "link", "named", "answer"),
    [
        ("always", "", {}, "known"),
        ("seen", f"1:{MINE}", {DMI: MINE}, "known"),
        ("seen", "", {DMI: MINE}, NOT_YET),
        ("seen", f"1:{OTHER}", {DMI: MINE}, NOT_YET),
        ("seen", MINE, {DMI: MINE}, NOT_YET),
        ("seen", f"1:{OTHER}", {XEN: OTHER}, "known"),
        ("seen", f"1:{OTHER}", {DMI: ZERO, XEN: OTHER}, "known"),
        # As the tool in the machine has it: SMBIOS's comes first.
        ("seen", f"1:{MINE}", {DMI: MINE, XEN: OTHER}, "known"),
        ("seen", f"1:{OTHER}", {DMI: MINE, XEN: OTHER}, NOT_YET),
        ("seen", "1:", {}, NO_NAME),
        ("seen", f"1:{ZERO}", {DMI: ZERO}, NO_NAME),
        ("seen", f"1:{ZERO}", {XEN: ZERO}, NO_NAME),
        ("seen", "1:", {DMI: ""}, NO_NAME),
    ],
)
def test_known(early: str, link: str, named: dict[str, str], answer: str, tmp_path: Path) -> None:
    assert asked(tmp_path, early, link, named) == answer


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("", True),
        ("# /dev/vdb /srv ext4 defaults 0 2", True),
        ("UUID=1 / ext4 rw,discard 0 1\nUUID=2 /boot/efi vfat umask=077 0 1\n/swap none swap sw 0 0", True),
        ("proc /proc proc defaults 0 0\n/dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0", True),
        # systemd mounts it where a unit needs it.
        ("/dev/vdb /srv ext4 noauto 0 0", False),
        ("/dev/vdb /mnt ext4 noauto 0 2", False),
        ("tmpfs /run/app tmpfs defaults 0 0", False),
        # As cloud-init writes the user data's `mounts`.
        (
            "/dev/vdb /var/lib/mysql auto defaults,nofail,x-systemd.requires=cloud-init.service,_netdev 0 2",
            False,
        ),
        ("nas:/x /srv nfs noauto,x-systemd.automount 0 0", False),
        ("proc /proc proc hidepid=2 0 0", False),
        # The unit has no guard against these.
        ("UUID=2 /boot ext4 defaults 0 2", False),
        ("UUID=2 /efi vfat defaults 0 2", False),
        ("UUID=2 /boot/efi/../x vfat defaults 0 2", False),
        ("UUID=2 /boot/efi/x vfat defaults 0 2", True),
        ("UUID=2 /srv ext4 noauto,auto 0 2", False),
        ("UUID=2 /srv ext4 noauto,comment=systemd.automount 0 2", False),
        ("UUID=1 / ext4 rw 0 1\n/dev/vdb /srv ext4 defaults 0 2", False),
        ("/dev/vdb /srv/dev/data ext4 defaults 0 2", False),
        ("/dev/vdb /srv/none ext4 defaults 0 2", False),
        ("tmpfs /srv/run/x tmpfs defaults 0 0", False),
        ("PARTUUID=1 / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1", True),
        # The build's own line had it.
        ("UUID=1 / ext4 rw,data=ordered 0 1", True),
    ],
)
def test_a_mount_that_the_build_has_not_seen(line: str, is_known: bool, tmp_path: Path) -> None:
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, f"{line}\n")
    assert answer == ("known" if is_known else f"/etc/fstab mounts {line.splitlines()[-1].split()[1]}")


@pytest.mark.parametrize("option", ["noexec", "nodev", "nosuid", "ro", "usrquota", "data=journal", "noauto"])
def test_an_option_of_the_root_that_the_build_has_not_seen(option: str, tmp_path: Path) -> None:
    fstab = f"UUID=1 / ext4 errors=remount-ro,{option} 0 1\n"
    assert asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, fstab) == f"/etc/fstab mounts / with {option}"


@pytest.mark.parametrize("early", ["seen", "always"])
def test_a_mask_of_a_rule(early: str, tmp_path: Path) -> None:
    """Debian's cloud images have one, for the names of network cards."""
    rules = tmp_path / "newroot/etc/udev/rules.d"
    rules.mkdir(parents=True)
    (rules / "80-net-setup-link.rules").symlink_to("/dev/null")
    assert asked(tmp_path, early, f"1:{MINE}", {DMI: MINE}) == "known"


@pytest.mark.parametrize("early", ["seen", "always"])
def test_the_last_line_and_slashes_at_its_end_count(early: str, tmp_path: Path) -> None:
    """Also where the profile or the command line says that cloud-init does not matter."""
    fstab = "UUID=1 / ext4 rw 0 1\nfs-1:/ /var/lib/mysql/ efs defaults 0 0"
    assert asked(tmp_path, early, f"1:{MINE}", {DMI: MINE}, fstab) == "/etc/fstab mounts /var/lib/mysql"


@pytest.mark.parametrize(
    ("place", "text", "is_known"),
    [
        ("network/interfaces.d/50-cloud-init", "auto ens3\niface ens3 inet dhcp\n    mtu 1500\n", True),
        ("systemd/network/10-cloud-init-ens3.network", "[Match]\nName=ens3\n[Network]\nDHCP=ipv4\n", True),
        ("netplan/50-cloud-init.yaml", "network:\n  ethernets:\n    ens3:\n      dhcp4: true\n", True),
        (
            "netplan/90-default.yaml",
            "---\nnetwork:\n  ethernets:\n    all-en:\n      match:\n        name: en*\n      dhcp4: true\n"
            "      dhcp4-overrides:\n        use-domains: true\n",
            True,
        ),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ATTR{address}="02:00:00:00:00:99"\n', False),
        ("network/interfaces", "auto lo\niface lo inet loopback\nsource /etc/network/interfaces.d/*\n", True),
        ("network/interfaces.d/50-cloud-init", "iface ens5 inet dhcp\n# x\niface ens5 inet6 dhcp\n", True),
        # As cloud-init writes it on EC2 and Azure.
        ("network/interfaces.d/50-cloud-init", "auto eth0\niface eth0 inet dhcp\n    metric 100\n", True),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    eth0:\n      dhcp4: true\n      dhcp4-overrides:\n        route-metric: 100\n"
            "      dhcp6: false\n      match:\n        macaddress: '52:54:00:12:34:56'\n      set-name: eth0\n  version: 2\n",
            True,
        ),
        ("network/interfaces", "source /etc/network/../rules\n", False),
        (
            "udev/rules.d/70-persistent-net.rules",
            'SUBSYSTEM=="net", ACTION=="add", DRIVERS=="?*", ATTR{address}=="52:54:00:12:34:56", NAME="eth0"\n',
            True,
        ),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", RUN+="/root/rules"\n', False),
        ("udev/rules.d/80-net.rules", 'SUBSYSTEM=="net", ENV{SYSTEMD_WANTS}+="rules.service"\n', False),
        ("network/interfaces", "iface ens3 inet dhcp\n    accept_ra 0", False),
        ("network/interfaces", "iface br0 inet dhcp\n    bridge_ports ens3\n", False),
        (
            "systemd/network/10-x.network",
            "[Match]\nMACAddress=52:54:00:00:00:01\n[Network]\nDHCP=yes\n",
            True,
        ),
        (
            "systemd/network/10-x.network",
            "[Link]\nMACAddress=52:54:00:00:00:01\n[Network]\nDHCP=yes\n",
            False,
        ),
        ("systemd/network/10-x.network", "[Network]\nDHCP=No\n", False),
        ("systemd/network/10-x.network", "[Link]\nUnmanaged=yes\n", False),
        ("systemd/network/10-x.netdev", "[NetDev]\nKind=bridge\n", False),
        ("netplan/50-cloud-init.yaml", "network: {ethernets: {ens3: {dhcp4: false}}}\n", False),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      match:\n        name: ens3\n      macaddress: 02:00:00:00:00:99\n",
            False,
        ),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      match:\n        macaddress: 02:00:00:00:00:99\n      dhcp4: true\n",
            True,
        ),
        ("netplan/50-cloud-init.yaml", "network:\n  bridges:\n    br0:\n      dhcp4: true\n", False),
        ("network/interfaces.d/50-cloud-init", "iface ens3 inet static\n    address 10.0.0.2/24\n", False),
        ("network/interfaces", "iface ens3 inet dhcp\n    pre-up iptables-restore /etc/rules\n", False),
        ("systemd/network/10-x.network", "[Network]\nAddress=10.0.0.2/24\n", False),
        ("systemd/network/10-x.network.d/a.conf", "[Network]\nLinkLocalAddressing=no\n", False),
        (
            "netplan/50-cloud-init.yaml",
            "network:\n  ethernets:\n    ens3:\n      addresses:\n      - 10.0.0.2/24\n",
            False,
        ),
    ],
)
def test_a_network_that_the_build_has_not_seen(place: str, text: str, is_known: bool, tmp_path: Path) -> None:
    interface = "eth0" if "eth0" in text else "ens3"
    sources = {"network/interfaces": IFUPDOWN["network/interfaces"]} if "interfaces.d" in place else {}
    network = {**ASKS, **sources, place: text}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network, interface=interface)
    assert answer == ("known" if is_known else f"/etc/{place} wants more than DHCP")


NETPLAN = "network:\n  version: 2\n  ethernets:\n"
CARD = NETPLAN + "    lan:\n      match:\n        macaddress: {}\n      set-name: {}\n      dhcp4: true\n"
NONE = "no file of the network's configuration asks for DHCP on ens3"


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("network/interfaces", "auto ens3\niface ens3 inet dhcp\n", ""),
        ("network/interfaces", "allow-hotplug ens5 ens3\niface ens3 inet dhcp\n", ""),
        # The administrator has taken the machine off the network.
        ("network/interfaces", "auto lo\niface lo inet loopback\n", NONE),
        ("network/interfaces", "iface ens3 inet dhcp\n", NONE),
        ("network/interfaces", "auto ens3\niface ens4 inet dhcp\n", NONE),
        ("network/interfaces", "auto ens3\niface ens3 inet6 dhcp\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    ens3:\n      dhcp4: true\n", ""),
        ("netplan/x.yaml", NETPLAN + "    all:\n      match:\n        name: 'en*'\n      dhcp4: yes\n", ""),
        ("netplan/x.yaml", NETPLAN + "    ens4:\n      dhcp4: true\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    all:\n      match:\n        name: eth*\n      dhcp4: true\n", NONE),
        ("netplan/x.yaml", NETPLAN + "    ens3:\n      dhcp6: true\n", "/etc/netplan/x.yaml"),
        (
            "netplan/x.yaml",
            NETPLAN + "    ens3:\n      optional: true\n    ens4:\n      dhcp4: true\n",
            "/etc/netplan/x.yaml",
        ),
        (
            "netplan/x.yaml",
            NETPLAN + "    ens4:\n      dhcp4: true\n    ens3:\n      dhcp4: true\n  renderer: networkd\n",
            "",
        ),
        ("netplan/x.yaml", CARD.format(MAC, "ens3"), ""),
        ("netplan/x.yaml", CARD.format(f'"{MAC}"', '"ens3"'), ""),
        # Our card has another name in a stock boot, or another card has ours.
        ("netplan/x.yaml", CARD.format(MAC, "wan0"), "/etc/netplan/x.yaml"),
        ("netplan/x.yaml", CARD.format("52:54:00:00:00:01", "ens3"), "/etc/netplan/x.yaml"),
        ("netplan/x.yaml", CARD.format("52:54:00:00:00:01", "ens4"), NONE),
        ("systemd/network/x.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Match]\nType=wlan ether\n[Network]\nDHCP=ipv4\n", ""),
        ("systemd/network/x.network", f"[Match]\nMACAddress={MAC}\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Match]\nName=eth*\n[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "[Match]\nDriver=ena\n[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "[Match]\nDriver=virtio_net\n[Network]\nDHCP=yes\n", ""),
        ("systemd/network/x.network", "[Network]\nDHCP=yes\n", NONE),
        ("systemd/network/x.network", "", NONE),
        # What cannot be told.
        (
            "systemd/network/x.network",
            "[Match]\nName=!lo\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        (
            "systemd/network/x.network",
            "[Match]\nName=ens4\nName=ens3\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        (
            "systemd/network/x.network",
            "[Match]\nMACAddress=52:54:00:12:34:AB\n[Network]\nDHCP=yes\n",
            "/etc/systemd/network/x.network",
        ),
        ("netplan/x.yaml", CARD.format("52:54:00:12:34:AB", "wan0"), "/etc/netplan/x.yaml"),
        (
            "netplan/x.yaml",
            NETPLAN + "    lan:\n      match:\n        driver: virtio*\n      dhcp4: true\n",
            "",
        ),
        (
            "netplan/x.yaml",
            NETPLAN + "    lan:\n      match:\n        driver: ena\n      dhcp4: true\n",
            NONE,
        ),
        # netplan does not read it.
        ("netplan/x.yaml.disabled", NETPLAN + "    ens3:\n      dhcp4: true\n", NONE),
        # Nothing says that ifupdown reads it.
        ("network/interfaces.d/x", "auto ens3\niface ens3 inet dhcp\n", NONE),
        (
            "systemd/network/x.network",
            "[Match]\nName=en*\n[Network]\nDNS=10.0.0.1\n",
            "/etc/systemd/network/x.network",
        ),
    ],
)
def test_a_file_asks_for_dhcp_on_our_card(place: str, text: str, answer: str, tmp_path: Path) -> None:
    """In a stock boot, a card that no file asks for stays without an address."""
    more = "" if answer in ("", NONE) else " wants more than DHCP"
    found = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network={place: text})
    assert found == (f"{answer}{more}" or "known")


@pytest.mark.parametrize(
    ("network", "service", "is_known"),
    [
        (IFUPDOWN, "", True),
        (IFUPDOWN, "ifupdown", True),
        # A file that another program has left.
        (IFUPDOWN, "networkd", False),
        (ASKS, "ifupdown", False),
        (ASKS, "networkd", True),
    ],
)
def test_the_files_are_those_of_the_service(
    network: dict[str, str], service: str, is_known: bool, tmp_path: Path
) -> None:
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network, service=service)
    assert answer == ("known" if is_known else NONE)


def test_a_source_of_other_files(tmp_path: Path) -> None:
    network = {**IFUPDOWN, "network/interfaces": "source /etc/network/interfaces.d/*.cfg\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == "/etc/network/interfaces wants more than DHCP"


@pytest.mark.parametrize(
    ("text", "own", "is_known"),
    [
        ("[Match]\nName=en*\n[Network]\nDHCP=yes\nIPv6AcceptRA=no\n", None, True),
        ("[Match]\nName=en*\nVirtualization=container\n[Network]\nDHCP=yes\n", None, False),
        ("[Match]\nName=host0\n[Network]\nDHCP=yes\n", None, False),
        ("[Match]\nName=en*\n[Network]\nDHCP=yes\n", "", False),
    ],
)
def test_a_file_of_a_package(text: str, own: str | None, is_known: bool, tmp_path: Path) -> None:
    """The build has seen it. A file in /etc with the same name takes its place."""
    place = tmp_path / "newroot/usr/lib/systemd/network/80-ec2.network"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    network = {} if own is None else {"systemd/network/80-ec2.network": own}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == ("known" if is_known else NONE)


def test_a_drop_in_that_says_for_which_card(tmp_path: Path) -> None:
    network = {**ASKS, "systemd/network/00-own.network.d/x.conf": "[Match]\nName=ens4\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == "/etc/systemd/network/00-own.network.d/x.conf wants more than DHCP"


def test_the_first_file_of_networkd_is_the_card_s(tmp_path: Path) -> None:
    asks, silent = "[Match]\nName=en*\n[Network]\nDHCP=yes\n", "[Match]\nName=ens3\n[Network]\nDNS=10.0.0.1\n"
    files = {"systemd/network/10-a.network": asks, "systemd/network/20-b.network": silent}
    assert asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=files) == "known"


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME="ens3"', True),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME="wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME:="wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME = "wan0"', False),
        (f'SUBSYSTEM=="net", ATTR{{address}}=="{MAC}", NAME+="wan0"', False),
        (f'ATTR{{address}}=="{MAC}", NAME="ens3", OPTIONS="link_priority=1"', True),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:00:00:01", NAME="ens3"', False),
        ('KERNEL=="ens3"NAME="wan0"', False),
        ('SUBSYSTEM=="net", ENV{ID_NET_NAME}="wan0"', True),
        ('NAME="wan0"', False),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:00:00:01", NAME="ens4"', True),
        ('SUBSYSTEM=="net", ATTR{address}=="52:54:00:*", NAME="ens4"', False),
        ('SUBSYSTEM=="net", NAME=="ens3", ENV{X}="1"', True),
        ('SUBSYSTEM=="net", ATTR{address} ="02:00:00:00:00:99"', False),
        ('SUBSYSTEM=="net", ATTR{address}:="02:00:00:00:00:99"', False),
    ],
)
def test_rules_that_name_cards(line: str, is_known: bool, tmp_path: Path) -> None:
    """Once a card is up, udev cannot give it another name."""
    network = {**ASKS, "udev/rules.d/70-x.rules": f"{line}\n"}
    answer = asked(tmp_path, "seen", f"1:{MINE}", {DMI: MINE}, network=network)
    assert answer == ("known" if is_known else "/etc/udev/rules.d/70-x.rules wants more than DHCP")
