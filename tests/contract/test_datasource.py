"""Init asks whether a machine brings user data for cloud-init. The host's BusyBox runs it in a root of its own (as root)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.initramfs.layout import _APPLETS
from tests.contract.imdsbox import MODES, USER_DATA

pytestmark = pytest.mark.host_root

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
EXT4 = bytes(1024 + 120) + b"data" + bytes(36864)
STUBS = """\
load() { echo "$1" >>/loaded; }
all_loaded() { :; }
note() { echo "note: $*" >>/notes; }
lives() { [ "$1" = alive ]; }
"""


class Box:
    """A machine's names, devices and volumes."""

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
        # Only what is in part A.
        for name in _APPLETS:
            (root / "bin" / name).symlink_to("/busybox")
        self.disk("vda", EXT4, partitions={"vda1": EXT4, "vda15": FAT})
        self.lease()

    def lease(self, *, there: bool = True) -> None:
        (self.root / "q/run/lease").unlink(missing_ok=True)
        if there:
            (self.root / "q/run/lease").write_text("10.0.2.15/24 86400\n")

    def disk(self, name: str, content: bytes | None, partitions: dict[str, bytes] | None = None) -> None:
        devices = {name: content, **(partitions or {})}
        for each, data in devices.items():
            place = self.root / "sys/devices" / (name if each == name else f"{name}/{each}")
            place.mkdir(parents=True)
            if each != name:
                (place / "partition").write_text("1\n")
            (self.root / "sys/class/block" / each).symlink_to(
                f"../../devices/{place.relative_to(self.root / 'sys/devices')}"
            )
            if data is not None:
                (self.root / "dev" / each).write_bytes(data)

    def device(self, bus: str, name: str, kind: str, *, driver: bool) -> None:
        place = self.root / "sys/bus" / bus / "devices" / name
        (place / "driver").mkdir(parents=True) if driver else place.mkdir(parents=True)
        (place / ("class" if bus == "pci" else "type")).write_text(f"{kind}\n")

    def asked(
        self,
        names: dict[str, str],
        uuid: str,
        mode: str = "none",
        *,
        sums: str = "",
        dhcp: str = "gone",
        link: str = "",
    ) -> str:
        for name, value in {**names, "product_uuid": uuid}.items():
            (self.root / "sys/class/dmi/id" / name).write_text(f"{value}\n")
        if link:
            (self.root / "newroot/.quickstart.instance").symlink_to(link)
        given = (
            f"Q=/q EARLY=ask CLOUD_INIT=yes ROOT_OPTIONS=rw DEVICE=/dev/vda1 DHCP={dhcp} USER_DATA='{sums}'"
        )
        script = (
            f'{STUBS} . /cloud; . /datasource; {given}; known_to_cloud_init && echo known || echo "$STALE"'
        )
        box = Path(__file__).with_name("imdsbox.py")
        argv = ["unshare", "--net", sys.executable, str(box), mode, str(self.root), script]
        done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        # User data and the beginnings of other disks must not stay where every user may read.
        assert {each.name for each in (self.root / "q/run").iterdir()} <= {"lease"}
        return done.stdout.decode().strip()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_machine_of_qemu_without_a_seed(box: Box) -> None:
    assert box.asked(QEMU, UUID) == "known"
    assert (box.root / "loaded").read_text() == "all\n"
    assert (box.root / "notes").read_text() == "note: cloud-init gets no user data here\n"


def test_a_machine_that_cloud_init_has_been_through_is_not_asked(box: Box) -> None:
    assert box.asked({"sys_vendor": "Google"}, UUID, link=f"1:{UUID}") == "known"
    assert not (box.root / "loaded").exists()


@pytest.mark.parametrize(
    ("names", "uuid", "why"),
    [
        ({**QEMU, "chassis_asset_tag": "OracleCloud.com"}, UUID, "SMBIOS has a chassis_asset_tag"),
        # Only root may read the value, and everybody the kernel's log.
        ({**QEMU, "product_serial": "ds=nocloud;s=https://user:password@10.0.2.2/"}, UUID, "SMBIOS has a product_serial"),
        ({**QEMU, "product_name": "OpenStack Nova"}, UUID, "init does not ask a machine of QEMU (OpenStack Nova) for user data"),
        ({"sys_vendor": "Google"}, UUID, "init does not ask a machine of Google (no name) for user data"),
        ({**QEMU, "sys_vendor": "VMware, Inc."}, UUID, f"init does not ask a machine of VMware, Inc. ({PC}) for user data"),
        ({}, UUID, "init does not ask a machine of no vendor (no name) for user data"),
        (XEN, UUID, "init does not ask a machine of Xen (HVM domU) for user data"),
    ],
)  # fmt: skip
def test_a_cloud_that_init_does_not_know(box: Box, names: dict[str, str], uuid: str, why: str) -> None:
    assert box.asked(names, uuid) == f"{NOT_YET}, and {why}"


def test_a_disk_that_cloud_init_has_been_on(box: Box) -> None:
    """A copy of a used disk, or a machine in which cloud-init does something at each boot."""
    place = box.root / "newroot/var/lib/cloud"
    place.mkdir(parents=True)
    (place / "instance").symlink_to("/var/lib/cloud/instances/i-0123")
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and the volume has another instance of it"
    assert box.asked(QEMU, UUID, link=f"1:{UUID}") == "known"


def test_a_configuration_of_ds_identify(box: Box) -> None:
    (box.root / "newroot/etc/cloud").mkdir()
    (box.root / "newroot/etc/cloud/ds-identify.cfg").touch()
    assert (
        box.asked(QEMU, UUID) == f"{NOT_YET}, and /etc/cloud/ds-identify.cfg says how it finds its datasource"
    )


@pytest.mark.parametrize("place", ["seed/nocloud", "seed/nocloud-net", "data/seed/bigstep"])
def test_a_seed_on_the_root_volume(box: Box, place: str) -> None:
    (box.root / "newroot/var/lib/cloud" / place).mkdir(parents=True)
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /var/lib/cloud/{place} is a seed"


@pytest.mark.parametrize(
    ("name", "content"), [("vdb", FAT), ("vdb", FAT32), ("sr0", ISO), ("vdc", LABEL), ("vdb", LABEL.upper())]
)
def test_a_seed_on_another_disk(box: Box, name: str, content: bytes) -> None:
    box.disk(name, content)
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/{name} may be a seed of cloud-init"
    assert box.asked(NITRO, EC2_UUID) == f"{NOT_YET}, and /dev/{name} may be a seed of cloud-init"


def test_a_seed_in_a_partition_of_another_disk(box: Box) -> None:
    box.disk("vdb", EXT4, partitions={"vdb1": ISO})
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/vdb1 may be a seed of cloud-init"


def test_disks_that_are_no_seeds(box: Box) -> None:
    box.disk("vdb", EXT4)
    box.disk("vdc", b"")
    # No medium.
    box.disk("sr0", None)
    box.disk("loop0", ISO)
    box.device("pci", "0000:00:01.1", "0x010180", driver=True)
    box.device("pci", "0000:00:02.0", "0x030000", driver=False)
    assert box.asked(QEMU, UUID) == "known"


@pytest.mark.parametrize(
    ("bus", "name", "kind"),
    [("pci", "0000:00:01.1", "0x010180"), ("pci", "0000:00:1d.0", "0x0c0330"), ("scsi", "0:0:0:0", "5"), ("scsi", "0:0:1:0", "0")],
)  # fmt: skip
def test_a_drive_without_a_driver(box: Box, bus: str, name: str, kind: str) -> None:
    box.device(bus, name, kind, driver=False)
    assert (
        box.asked(QEMU, UUID)
        == f"{NOT_YET}, and a drive or its controller ({name}) has no driver in the initramfs"
    )


def test_a_machine_of_lxd(box: Box) -> None:
    port = box.root / "sys/class/virtio-ports/vport0p1"
    port.mkdir(parents=True)
    (port / "name").write_text("org.linuxcontainers.lxd\n")
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and it is a machine of LXD"


HAS_DATA = "this machine has user data that the profile does not name"
NO_TOKEN = "EC2's metadata service gave no token"  # noqa: S105
UNSAID = "EC2's metadata service did not say whether there is user data"
ANSWERS = {
    "none": "known",
    "data": HAS_DATA,
    "kept open": HAS_DATA,
    "slow": f"{NO_TOKEN} (no answer)",
    "no token": f"{NO_TOKEN} (403)",
    "version 1": f"{NO_TOKEN} (404)",
    "cut": f"{NO_TOKEN} (no answer)",
    "no service": f"{NO_TOKEN} (no answer)",
    "odd token": "EC2's metadata service gave a token that is none",
    "chunked": f"{UNSAID} (no answer)",
    "broken": f"{UNSAID} (500)",
    "large": f"{UNSAID} (no answer)",
    "leading zero": f"{NO_TOKEN} (no answer)",
}


@pytest.mark.parametrize("mode", MODES)
def test_ec2_is_asked(box: Box, mode: str) -> None:
    assert box.asked(NITRO, EC2_UUID, mode).removeprefix(f"{NOT_YET}, and ") == ANSWERS[mode]


def test_ec2_on_xen_is_asked(box: Box) -> None:
    assert box.asked(XEN, EC2_UUID.upper(), "data") == f"{NOT_YET}, and {HAS_DATA}"


@pytest.mark.parametrize("mode", ["data", "kept open"])
def test_user_data_that_the_profile_names(box: Box, mode: str) -> None:
    other = "0" * 64
    assert box.asked(NITRO, EC2_UUID, mode, sums=f"{other} {SUM}") == "known"
    assert box.asked(NITRO, EC2_UUID, mode, sums=other) == f"{NOT_YET}, and {HAS_DATA}"


def test_without_a_lease(box: Box) -> None:
    box.lease(there=False)
    assert box.asked(NITRO, EC2_UUID) == f"{NOT_YET}, and there is no DHCP lease to ask EC2 with"
