"""A machine in a root of its own, for init's question whether it brings user data: its names, devices and volumes."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.initramfs.layout import _APPLETS
from tests.contract.imdsbox import USER_DATA
from tests.contract.initscript import function

NOT_YET = "cloud-init has not been through this machine yet"
SUM = hashlib.sha256(USER_DATA).hexdigest()
PC = "Standard PC (i440FX + PIIX, 1996)"
QEMU = {"sys_vendor": "QEMU", "product_name": PC}
NITRO = {
    "sys_vendor": "Amazon EC2",
    "product_name": "m7i.large",
    "product_serial": "ec2f1c8e",
    "chassis_asset_tag": "Amazon EC2",
}
XEN = {"sys_vendor": "Xen", "product_name": "HVM domU"}
UUID = "01234567-89ab-cdef-0123-456789abcdef"
EC2_UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
SECTOR = bytes(512)
FAT = bytes(54) + b"FAT16   " + bytes(36864)
FAT32 = bytes(82) + b"FAT32   " + bytes(36864)
ISO = bytes(32769) + b"CD001" + bytes(4096)
LABEL = bytes(1024 + 120) + b"config-2" + bytes(36864)
# F2FS has its label in UTF-16, exFAT beyond the beginning, btrfs behind 64 KiB.
WIDE = bytes(1024 + 124) + "config-2".encode("utf-16-le") + bytes(36864)
EXFAT = b"\xeb\x76\x90EXFAT   " + bytes(36864)
BTRFS = bytes(65536 + 64) + b"_BHRfS_M" + bytes(227) + b"config-2" + bytes(3072)
EXT4 = bytes(1024 + 120) + b"data" + bytes(36864)
STUBS = f"""\
LEASE_LIMIT_S=60
{function("lib", "wait_for_lease")}
load() {{ echo "$1 $(umask)" >>/loaded; }}
all_loaded() {{ :; }}
note() {{ echo "note: $*" >>/notes; }}
lives() {{ [ "$1" = alive ]; }}
"""


def fat(label: str = "NO NAME", entry: str = "", *, is_32: bool = False, cluster: int = 2) -> bytes:
    """A FAT with ``label`` at its beginning, and with ``entry`` in its root directory, which is behind 68 KiB."""
    reserved, entries, short = (32, 0, 0) if is_32 else (1, 512, 100)
    start = bytearray(
        struct.pack("<11xHBHBHHBHHHII", 512, 4, reserved, 2, entries, 0, 0xF8, short, 63, 255, 0, 4096)
    )
    if is_32:
        start += struct.pack("<IHHI", 100, 0, 0, cluster) + bytes(16)
    start += struct.pack(
        "<BBBI11s8s",
        0x80,
        0,
        0x29,
        0x1234ABCD,
        label.encode().ljust(11),
        b"FAT32   " if is_32 else b"FAT16   ",
    )
    directory = (reserved + 2 * 100 + (4 * (cluster - 2) if is_32 else 0)) * 512
    # EFI has a place before the label.
    names = (
        b"EFI        \x10" + bytes(20) + (entry.encode().ljust(11) + b"\x08" + bytes(20) if entry else b"")
    )
    return bytes(start).ljust(directory, b"\0") + names.ljust(512 * 32, b"\0")


class Box:
    """A machine's names, devices and volumes."""

    stubs = STUBS

    def __init__(self, root: Path) -> None:
        if os.geteuid() != 0:
            pytest.fail("run the contract tests as root: they chroot")
        self.root = root
        shutil.copy(door.tool_path("busybox"), root / "busybox")
        for name in ("cloud", "datasource"):
            source = resources.files("quickstart.initramfs").joinpath("init", name)
            (root / name).write_bytes(source.read_bytes())
        for name in ("bin", "dev", "q/run", "newroot/etc", "sys/class/dmi/id", "sys/class/block"):
            (root / name).mkdir(parents=True)
        (root / "dev/null").touch()
        (root / "newroot/etc/network").mkdir()
        (root / "newroot/etc/network/interfaces").write_text("auto ens3\niface ens3 inet dhcp\n")
        # Only what is in part A.
        for name in _APPLETS:
            (root / "bin" / name).symlink_to("/busybox")
        self.disk("vda", EXT4, partitions={"vda1": EXT4, "vda15": FAT})
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/uptime").write_text("1.25 0.50\n")
        self.lease()

    def lease(self, *, there: bool = True) -> None:
        (self.root / "q/run/lease").unlink(missing_ok=True)
        if there:
            (self.root / "q/run/lease").write_text("10.0.2.15/24 86400\n")

    @property
    def name(self) -> str:
        """The name that init would give to the machine."""
        place = self.root / "q/run/name"
        return place.read_text().strip() if place.exists() else ""

    def disk(self, name: str, content: bytes | None, partitions: dict[str, bytes] | None = None) -> None:
        """A disk, or further partitions of a disk that is there."""
        devices = {name: content, **(partitions or {})}
        for each, data in devices.items():
            place = self.root / "sys/devices" / (name if each == name else f"{name}/{each}")
            if place.exists():
                continue
            place.mkdir(parents=True)
            if each != name:
                (place / "partition").write_text("1\n")
            (self.root / "sys/class/block" / each).symlink_to(
                f"../../devices/{place.relative_to(self.root / 'sys/devices')}"
            )
            (place / "dev").write_text("254:0\n")
            (place / "size").write_text(f"{len(data or b'') // 512}\n")
            if data is not None:
                (self.root / "dev" / each).write_bytes(data)

    def device(self, bus: str, name: str, kind: str, *, driver: bool) -> None:
        place = self.root / "sys/bus" / bus / "devices" / name
        (place / "driver").mkdir(parents=True) if driver else place.mkdir(parents=True)
        (place / {"pci": "class", "scsi": "type", "virtio": "device"}[bus]).write_text(f"{kind}\n")

    def modules(self, text: str) -> None:
        """What modules.alias of the kernel on the root volume says."""
        (self.root / "proc/sys/kernel").mkdir(parents=True)
        (self.root / "proc/sys/kernel/osrelease").write_text("6.1.0\n")
        (self.root / "newroot/lib/modules/6.1.0").mkdir(parents=True)
        (self.root / "newroot/lib/modules/6.1.0/modules.alias").write_text(text)

    def asked(
        self,
        names: dict[str, str],
        uuid: str,
        mode: str = "none",
        *,
        sums: str = "",
        dhcp: str = "gone",
        link: str = "",
        ec2_alone: str = "",
    ) -> str:
        for name, value in {**names, "product_uuid": uuid}.items():
            (self.root / "sys/class/dmi/id" / name).write_text(f"{value}\n")
        if link:
            (self.root / "newroot/.quickstart.instance").symlink_to(link)
        given = (
            f"Q=/q INTERFACE=ens3 MAC=x EARLY=ask CLOUD_INIT=yes ROOT_OPTIONS=rw DEVICE=/dev/vda1 DHCP={dhcp} USER_DATA='{sums}'"
            f" EC2_ALONE={ec2_alone}"
        )
        script = (
            f"{self.stubs} . /cloud; . /datasource; {given}; umask 022; "
            'known_to_cloud_init && echo known || echo "$STALE"; umask >/umask'
        )
        box = Path(__file__).with_name("imdsbox.py")
        argv = ["unshare", "--net", sys.executable, str(box), mode, str(self.root), script]
        done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        # User data and the beginnings of other disks must not stay where every user may read.
        assert {each.name for each in (self.root / "q/run").iterdir()} <= {"lease", "name"}
        assert (self.root / "umask").read_text() == "0022\n"
        return done.stdout.decode().strip()
