"""A machine with cloud-init in a root of its own, for init's question whether it may start early there."""

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
    root_options: str = "rw",
) -> str:
    """``known``, or why not, in a machine that has these files of names, and this link's text on its volume. ``network``
    has files in /etc, for ``interface``, the card's name, and ``service``, which sets up the network. ``root_options``
    are those of the root volume at the build.
    """
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
    # A link of the test's would lead out of its directory.
    if not (root / "newroot/etc/fstab").is_symlink():
        (root / "newroot/etc/fstab").write_text(fstab)
    for place, text in (ASKS if network is None else network).items():
        (root / "newroot/etc" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "newroot/etc" / place).write_text(text)
    given = (
        f"INTERFACE={interface} MAC={MAC} NETWORK={service} EARLY={early} CLOUD_INIT=yes"
        f" ROOT_OPTIONS={root_options} LATE_PLACES=/boot/efi"
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
