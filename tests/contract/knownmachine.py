"""A machine with cloud-init in a root of its own, for init's question whether it may start early there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.contract.firstbox import lay_out, printed

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
    root_options: str = "rw",
) -> str:
    """``known``, or why not, in a machine that has these files of names, and this link's text on its volume. ``network``
    has files in /etc, for ``interface``, the card's name, and ``service``, which sets up the network. ``root_options``
    are those of the root volume at the build.
    """
    lay_out(root, "cloud", ("grep", "head", "readlink"))
    write_machine(root, link, named, fstab, ASKS if network is None else network)
    driver = root / f"sys/class/net/{interface}/device/driver"
    driver.parent.mkdir(parents=True)
    driver.symlink_to("/sys/bus/virtio/drivers/virtio_net")
    given = (
        f"INTERFACE={interface} MAC={MAC} NETWORK={service} EARLY={early} CLOUD_INIT=yes"
        f" ROOT_OPTIONS={root_options} LATE_PLACES=/boot/efi"
    )
    return printed(root, f'. /cloud; {given}; known_to_cloud_init && echo known || echo "$STALE"')


def write_machine(
    root: Path, link: str, named: dict[str, str], fstab: str, network: Mapping[str, str]
) -> None:
    """The machine's names, and the files of its volume."""
    for place, name in named.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(f"{name}\n")
    (root / "newroot/etc").mkdir(parents=True, exist_ok=True)
    if link:
        (root / "newroot/.quickstart.instance").symlink_to(link)
    # A link of the test's would lead out of its directory.
    if not (root / "newroot/etc/fstab").is_symlink():
        (root / "newroot/etc/fstab").write_text(fstab)
    for place, text in network.items():
        (root / "newroot/etc" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "newroot/etc" / place).write_text(text)
