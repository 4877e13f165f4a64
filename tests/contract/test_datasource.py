"""Init asks whether a machine brings user data for cloud-init. The host's BusyBox runs it in a root of its own (as root)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.datasourcebox import (
    BTRFS,
    EC2_UUID,
    EXFAT,
    EXT4,
    FAT,
    FAT32,
    ISO,
    LABEL,
    NITRO,
    NOT_YET,
    PC,
    QEMU,
    SUM,
    UUID,
    WIDE,
    XEN,
    Box,
    fat,
)
from tests.contract.imdsbox import MODES

pytestmark = pytest.mark.host_root


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_machine_of_qemu_without_a_seed(box: Box) -> None:
    assert box.asked(QEMU, UUID) == "known"
    # What is copied from disks is for root only.
    assert (box.root / "loaded").read_text() == "late 0077\n"
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
        ({**QEMU, "board_serial": "0123"}, UUID, "SMBIOS has a board_serial"),
        ({**QEMU, "board_name": "LXD"}, UUID, "SMBIOS has a board_name"),
        (QEMU, EC2_UUID, "by its UUID, cloud-init takes it for one of EC2"),
        (QEMU, "45E12AEC-DCD1-B213-94ED-012345ABCDEF", "by its UUID, cloud-init takes it for one of EC2"),
        ({**QEMU, "product_name": "OpenStack Nova"}, UUID, "init does not ask a machine of QEMU (OpenStack Nova) for user data"),
        ({"sys_vendor": "Google"}, UUID, "init does not ask a machine of Google (no name) for user data"),
        ({**QEMU, "sys_vendor": "VMware, Inc."}, UUID, f"init does not ask a machine of VMware, Inc. ({PC}) for user data"),
        ({}, UUID, "init does not ask a machine of no vendor (no name) for user data"),
        (XEN, UUID, "init does not ask a machine of Xen (HVM domU) for user data"),
    ],
)  # fmt: skip
def test_a_cloud_that_init_does_not_know(box: Box, names: dict[str, str], uuid: str, why: str) -> None:
    assert box.asked(names, uuid) == f"{NOT_YET}, and {why}"


def test_a_board_that_has_the_machines_name(box: Box) -> None:
    assert box.asked({**QEMU, "board_name": PC}, UUID) == "known"


def test_cloud_init_asks_ec2_in_any_machine(box: Box) -> None:
    why = "by its configuration, cloud-init asks for EC2's metadata service in any machine"
    assert box.asked(QEMU, UUID, ec2_alone="yes") == f"{NOT_YET}, and {why}"
    assert box.asked(NITRO, EC2_UUID, ec2_alone="yes") == "known"


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


@pytest.mark.parametrize(
    "place",
    [
        *("var/lib/cloud/seed/nocloud", "var/lib/cloud/seed/nocloud-net", "var/lib/cloud/data/seed/bigstep"),
        *("config-drive/openstack", "writable/system-data", "etc/vultr", "var/run/scaleway"),
    ],
)
def test_a_seed_on_the_root_volume(box: Box, place: str) -> None:
    (box.root / "newroot" / place).mkdir(parents=True)
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /{place} may be a seed of cloud-init"


@pytest.mark.parametrize(
    "way",
    [
        *("etc/cloud", "var", "var/lib", "var/lib/cloud", "var/lib/cloud/seed", "var/lib/cloud/data"),
        *("var/lib/cloud/data/seed", "config-drive", "writable"),
    ],
)
def test_a_seed_behind_a_link(box: Box, way: str) -> None:
    """From the initramfs, an absolute link leads nowhere."""
    (box.root / "newroot/srv/elsewhere").mkdir(parents=True)
    link = box.root / "newroot" / way
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/srv/elsewhere")
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /{way} is a link"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("vdb", FAT), ("vdb", FAT32), ("sr0", ISO), ("vdc", LABEL), ("vdb", LABEL.upper())),
        *(("vdb", WIDE), ("vdb", EXFAT), ("vdb", BTRFS), ("vdb", LABEL.replace(b"config-2", b"CLOUDMD"))),
    ],
)
def test_a_seed_on_another_disk(box: Box, name: str, content: bytes) -> None:
    box.disk(name, content)
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/{name} may be a seed of cloud-init"
    assert box.asked(NITRO, EC2_UUID) == f"{NOT_YET}, and /dev/{name} may be a seed of cloud-init"


def test_a_seed_in_a_partition_of_another_disk(box: Box) -> None:
    box.disk("vdb", EXT4, partitions={"vdb1": ISO})
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/vdb1 may be a seed of cloud-init"


@pytest.mark.parametrize(
    "content",
    [
        *(ISO, LABEL, EXFAT, fat("CIDATA"), fat("cidata"), fat("CLOUDMD"), fat("CONTEXT"), fat("cidata", is_32=True)),
        *(fat(entry="CIDATA"), fat(entry="CDROM"), fat(entry="CONFIG-2", is_32=True), fat(entry="CIDATA", is_32=True, cluster=9)),
        # The numbers lead behind the end of the partition.
        fat()[:11] + b"\xff" * 43 + fat()[54:],
    ],
)  # fmt: skip
def test_a_seed_in_a_partition_of_the_roots_own_disk(box: Box, content: bytes) -> None:
    box.disk("vda", EXT4, partitions={"vda2": content})
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/vda2 may be a seed of cloud-init"


@pytest.mark.parametrize(
    "content", [fat(), fat("ESP", "ESP"), fat(is_32=True), fat("EFI", is_32=True, cluster=9)]
)
def test_an_esp_of_the_roots_own_disk(box: Box, content: bytes) -> None:
    box.disk("vda", EXT4, partitions={"vda2": content})
    assert box.asked(QEMU, UUID) == "known"


def test_a_disk_that_cannot_be_read(box: Box) -> None:
    box.disk("vdb", None)
    (box.root / "sys/devices/vdb/size").write_text("2097151\n")
    (box.root / "dev/vdb").mkdir()
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and /dev/vdb cannot be read"
    # A CD drive without a medium has this size.
    box.stubs += """\
dd() {
    [ "$1" != if=/dev/vdb ] || { echo "dd: can't open '/dev/vdb': No medium found" >&2; return 1; }
    command dd "$@"
}
"""
    assert box.asked(QEMU, UUID) == "known"


def test_disks_that_are_no_seeds(box: Box) -> None:
    box.disk("vdb", EXT4)
    box.disk("vdc", b"")
    # No medium.
    box.disk("sr0", None)
    box.disk("loop0", ISO)
    # One of the ways to nvme0n1 has a size, but no node in /dev.
    box.disk("nvme0c0n1", None)
    (box.root / "sys/devices/nvme0c0n1/size").write_text("8192\n")
    (box.root / "sys/devices/nvme0c0n1/dev").unlink()
    box.device("virtio", "virtio0", "0x0001", driver=False)
    box.device("virtio", "virtio1", "0x0002", driver=True)
    box.device("pci", "0000:00:01.1", "0x010180", driver=True)
    box.device("pci", "0000:00:02.0", "0x030000", driver=False)
    assert box.asked(QEMU, UUID) == "known"


@pytest.mark.parametrize(
    ("bus", "name", "kind"),
    [
        *(("pci", "0000:00:01.1", "0x010180"), ("scsi", "0:0:0:0", "5"), ("scsi", "0:0:1:0", "0")),
        *(("virtio", "virtio3", "0x0002"), ("virtio", "virtio3", "0x0008")),
    ],
)
def test_a_drive_without_a_driver(box: Box, bus: str, name: str, kind: str) -> None:
    box.device(bus, name, kind, driver=False)
    assert (
        box.asked(QEMU, UUID)
        == f"{NOT_YET}, and a drive or its controller ({name}) has no driver in the initramfs"
    )


# QEMU's SATA controller, and lines of modules.alias.
AHCI = "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01"
OTHERS = (
    "# Aliases.\nalias pci:v00008086d00007010sv*sd*bc*sc*i* ata_piix\nalias pci:v*d*sv*sd*bc01sc08i02* nvme\n"
)


@pytest.mark.parametrize(
    ("modules", "alias", "says"),
    [
        (OTHERS, AHCI, ""),
        (f"{OTHERS}alias pci:v*d*sv*sd*bc01sc06i01* ahci\n", AHCI, "has no driver"),
        (f"{OTHERS}alias pci:v00008086d00002922sv*sd*bc*sc*i* ahci\n", AHCI, "has no driver"),
        (OTHERS, "", "has no driver"),
        (OTHERS, "virtio:d00000002v00001AF4", "has no driver"),
        ("", AHCI, "has no driver"),
    ],
)
def test_a_controller_for_which_the_system_has_no_driver(
    box: Box, modules: str, alias: str, says: str
) -> None:
    """Then cloud-init sees no disk of it."""
    box.modules(modules)
    box.device("pci", "0000:00:1f.2", "0x010601", driver=False)
    (box.root / "sys/bus/pci/devices/0000:00:1f.2/modalias").write_text(f"{alias}\n" if alias else "")
    answer = box.asked(QEMU, UUID)
    assert says in answer if says else answer == "known"


@pytest.mark.parametrize("kind", ["0x080501", "0x0c0330"])
@pytest.mark.parametrize("driver", [False, True])
def test_a_controller_whose_disks_come_later(box: Box, kind: str, *, driver: bool) -> None:
    box.device("pci", "0000:00:1d.0", kind, driver=driver)
    why = "a controller of USB or of SD cards (0000:00:1d.0) may have any disk"
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and {why}"


def test_a_floppy_drive(box: Box) -> None:
    """QEMU's i440FX always has the controller."""
    for number, path in enumerate(("\\_SB_.PCI0.ISA_.FDC0", "\\_SB_.PCI0.ISA_.COM1")):
        place = box.root / f"sys/bus/acpi/devices/device:{number:02x}"
        place.mkdir(parents=True)
        (place / "path").write_text(f"{path}\n")
    assert box.asked(QEMU, UUID) == "known"
    (place / "path").write_text("\\_SB_.PCI0.ISA_.FDC0.FLPA\n")
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and a floppy drive has no driver in the initramfs"
    box.disk("fd0", EXT4)
    assert box.asked(QEMU, UUID) == "known"


def test_a_machine_of_lxd(box: Box) -> None:
    port = box.root / "sys/class/virtio-ports/vport0p1"
    port.mkdir(parents=True)
    (port / "name").write_text("org.linuxcontainers.lxd\n")
    assert box.asked(QEMU, UUID) == f"{NOT_YET}, and it is a machine of LXD"


HAS_DATA = "this machine has user data that the profile does not name"
NO_TOKEN = "EC2's metadata service gave no token"  # noqa: S105
NO_NAME = "EC2's metadata service gave no name for this machine"
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
    "long token": "EC2's metadata service gave a token that is none",
    "odd token": "EC2's metadata service gave a token that is none",
    "chunked": f"{UNSAID} (no answer)",
    "broken": f"{UNSAID} (500)",
    "large": f"{UNSAID} (no answer)",
    "leading zero": f"{NO_TOKEN} (no answer)",
    "no name": "known",
    "odd name": f"{NO_NAME} (200)",
    "address": f"{NO_NAME} (200)",
    "long name": f"{NO_NAME} (200)",
    "name broken": f"{NO_NAME} (500)",
}


@pytest.mark.parametrize("mode", MODES)
def test_ec2_is_asked(box: Box, mode: str) -> None:
    assert box.asked(NITRO, EC2_UUID, mode).removeprefix(f"{NOT_YET}, and ") == ANSWERS[mode]
    assert box.name == ("ip-10-0-2-15" if mode == "none" else "")


def test_ec2_on_xen_is_asked(box: Box) -> None:
    assert box.asked(XEN, EC2_UUID.upper(), "data") == f"{NOT_YET}, and {HAS_DATA}"


@pytest.mark.parametrize("mode", ["data", "kept open"])
def test_user_data_that_the_profile_names(box: Box, mode: str) -> None:
    other = "0" * 64
    assert box.asked(NITRO, EC2_UUID, mode, sums=f"{other} {SUM}") == "known"
    assert box.name == "ip-10-0-2-15"
    assert box.asked(NITRO, EC2_UUID, mode, sums=other) == f"{NOT_YET}, and {HAS_DATA}"


def test_without_a_lease(box: Box) -> None:
    box.lease(there=False)
    assert box.asked(NITRO, EC2_UUID) == f"{NOT_YET}, and there is no DHCP lease to ask EC2 with"
