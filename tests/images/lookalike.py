"""Make disks as vendors do. Each has Debian bookworm with a boot loader, and netplan on systemd-networkd and
systemd-resolved. The one of the layout CLOUD also has cloud-init. The system installs its own boot loader, in a VM with the disk.
"""

from __future__ import annotations

import dataclasses
import io
import shlex
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from quickstart.engines.launching import launcher_for
from quickstart.guest import executing
from quickstart.host.holes import data_chunks, write_at
from quickstart.image.ext4 import write_disk
from quickstart.image.gpt import BIOS_BOOT, ESP, ROOT_X86_64, GptPartition, gpt
from quickstart.image.partitioned import Filled, write_partitioned
from quickstart.model import MIB, FileRules, Profile, Readiness, ReferenceImage
from quickstart.model.machine import machine
from quickstart.model.words import Early, ReadyKind
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import Variant
from quickstart.store.context import Context
from quickstart.store.store import source_digest
from tests.images.layouts import ROOT_PART, Layout, base_of, is_moved, set_up_script

# The disk ends with the root, so that growroot has nothing to do while it is set up.
ROOT_MIB, BOOT_MIB, ESP_MIB = 2048, 256, 512
DISK_NAME = "disk.raw"
ROOT_UUID = "5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0a01"
_DISK_ID = uuid.UUID("5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0c01")
_MBR = struct.Struct("<440xIxx64sH")
_MBR_ENTRY = struct.Struct("<B3sB3sII")
_BOOT_CODE_BYTES = 440
_LINUX = 0x83
_SECTORS_PER_MIB = 2048
_SET_UP_S = 900.0

# The files that differ from Debian's packages, as Debian's cloud team writes them (debian-cloud-images, config_space).
_NETPLAN = "network:\n    version: 2\n    ethernets:\n" + "".join(
    f"""\
        all-{name}:
            match:
                name: {name}*
            dhcp4: true
            dhcp4-overrides:
                use-domains: true
            dhcp6: true
            dhcp6-overrides:
                use-domains: true
"""
    for name in ("en", "eth")
)
_CLOUD = "apt_preserve_sources_list: true\nmanage_etc_hosts: true\n"
_DIFFERENCES = Variant(
    name="look-alike",
    # cloud-init needs dhclient for itself.
    purged=("ifupdown",),
    written={
        "etc/netplan/90-default.yaml": _NETPLAN,
        "etc/cloud/cloud.cfg.d/01_debian_cloud.cfg": _CLOUD,
    },
    ran=(("systemctl", "enable", "systemd-networkd.service", "systemd-resolved.service"),),
)
# apt removes initramfs-tools, whose command our reference images call at their end. The disk does not have it.
_COMMAND = "/usr/sbin/update-initramfs"
_BY_DRACUT = (
    "#!/bin/sh\nfor kernel in /boot/vmlinuz-*; do\n"
    '\t/etc/kernel/postinst.d/dracut "${kernel#/boot/vmlinuz-}" || exit\ndone\n'
)
# An initramfs for this host alone would lack the drivers of a guest.
_DRACUT = dataclasses.replace(
    _DIFFERENCES,
    name="look-alike-dracut",
    written={**_DIFFERENCES.written, "etc/dracut.conf.d/look-alike.conf": "hostonly=no\n"},
    ran=(
        *_DIFFERENCES.ran,
        ("sh", "-c", f"printf %s {shlex.quote(_BY_DRACUT)} >{_COMMAND} && chmod +x {_COMMAND}"),
    ),
)


_ROOT_NUMBER, _SOURCE_NUMBER = 1, 2


_WITH_SYSTEMD_BOOT = (Layout.SYSTEMD_BOOT, Layout.UNIFIED)


@dataclass(frozen=True)
class LookAlike:
    """A disk, in raw format."""

    disk: Path


def root_at_mib(layout: Layout) -> int:
    """Where the root partition begins."""
    if layout in _WITH_SYSTEMD_BOOT:
        return 1 + ESP_MIB
    return 1 + BOOT_MIB if base_of(layout) is Layout.APART else 128


def disk_mib(layout: Layout) -> int:
    """A MiB behind the root has the second copy of a GPT."""
    return root_at_mib(layout) + ROOT_MIB + 1


def _mbr(places_mib: tuple[tuple[int, int], ...]) -> bytes:
    """A table of Linux partitions, of which the first one is marked as active."""
    entries = b"".join(
        _MBR_ENTRY.pack(
            0 if number else 0x80,
            b"\xfe\xff\xff",
            _LINUX,
            b"\xfe\xff\xff",
            begin * _SECTORS_PER_MIB,
            size * _SECTORS_PER_MIB,
        )
        for number, (begin, size) in enumerate(places_mib)
    )
    return _MBR.pack(0x5A1F3A60, entries.ljust(64, b"\0"), 0xAA55)


def partitions(layout: Layout) -> tuple[GptPartition, ...]:
    """As in Debian's cloud images: 3 MiB for GRUB's core image, 124 MiB for the ESP, then the root. systemd-boot has the
    kernels on the ESP, and needs no core image.
    """

    def partition(number: int, at_mib: int, size_mib: int, kind: uuid.UUID) -> GptPartition:
        identifier = uuid.UUID(ROOT_PART) if number == _ROOT_NUMBER else uuid.uuid5(_DISK_ID, str(number))
        return GptPartition(
            number=number,
            begin_bytes=at_mib * MIB,
            size_bytes=size_mib * MIB,
            type_id=kind,
            identifier=identifier,
            name="",
        )

    root = partition(_ROOT_NUMBER, root_at_mib(layout), ROOT_MIB, ROOT_X86_64)
    if layout in _WITH_SYSTEMD_BOOT:
        return (root, partition(15, 1, ESP_MIB, ESP))
    return (
        root,
        partition(14, 1, 3, BIOS_BOOT),
        partition(15, 4, 124, ESP),
    )


def look_alike(context: Context, layout: Layout = Layout.CLOUD) -> LookAlike:
    """The disk, from the store or made now."""
    reference = make_reference(_profile(layout), context, _differences(layout), guest_package=False)
    inputs = {
        "image": reference.image_hash,
        "layout": layout.value,
        "recipe": source_digest("tests.images", "quickstart.image"),
    }

    def make(directory: Path) -> None:
        disk, root = directory / DISK_NAME, directory / "root.raw"
        write_disk(reference.tree, root, ROOT_MIB, ROOT_UUID, "")
        _assemble(disk, root, layout)
        root.unlink()
        _set_up(disk, layout, reference, context)

    made = context.store.get_or_make("look-alike", inputs, make)
    return LookAlike(made.path / DISK_NAME)


def _differences(layout: Layout) -> Variant:
    return _DRACUT if layout is Layout.DRACUT else _DIFFERENCES


def _assemble(disk: Path, root: Path, layout: Layout) -> None:
    spare_mib = ROOT_MIB if is_moved(layout) else 0
    if base_of(layout) is not Layout.APART:
        number = _SOURCE_NUMBER if is_moved(layout) else _ROOT_NUMBER
        places = [Filled(each, root if each.number == number else None) for each in _at_first(layout)]
        write_partitioned(disk, places, (disk_mib(layout) + spare_mib) * MIB, _DISK_ID)
        return
    with disk.open("xb", buffering=0) as file, root.open("rb") as source:
        file.truncate((disk_mib(layout) + spare_mib) * MIB)
        file.write(_mbr(_mbr_places(layout, spare_mib)))
        at_mib = root_at_mib(layout) + spare_mib
        for offset, chunk in data_chunks(source.fileno(), ROOT_MIB * MIB):
            file.seek(at_mib * MIB + offset)
            file.write(chunk)
    disk.chmod(0o600)


def _mbr_places(layout: Layout, spare_mib: int = 0) -> tuple[tuple[int, int], ...]:
    """Where the partitions begin, and their sizes. The last one is there only while the disk is set up."""
    root_mib = root_at_mib(layout)
    places = ((1, BOOT_MIB), (root_mib, ROOT_MIB), (root_mib + ROOT_MIB, spare_mib))
    return places if spare_mib else places[:2]


def _set_up(disk: Path, layout: Layout, reference: ReferenceImage, context: Context) -> None:
    described = machine(
        "look-alike",
        kernel=reference.kernel,
        initrds=(reference.initrd,),
        cmdline=command_line(),
        memory_mib=1024,
        mac="52:54:00:71:73:0b",
        disk=disk,
        keeps_writes=True,
    )
    out = io.BytesIO()
    with launcher_for(reference.kernel, context).launch(described, None) as launched:
        status = executing(launched).execute(set_up_script(layout), out, out, _SET_UP_S, 16 * MIB)
    if status != 0:
        raise AssertionError(
            f"setting the disk up ended with {status}:\n{out.getvalue().decode(errors='replace')}"
        )
    if is_moved(layout):
        _without_source(disk, layout)


def _at_first(layout: Layout) -> tuple[GptPartition, ...]:
    """The partitions while the disk is set up."""
    places = partitions(layout)
    if not is_moved(layout):
        return places
    (root,) = (each for each in places if each.number == _ROOT_NUMBER)
    source = dataclasses.replace(
        root,
        number=_SOURCE_NUMBER,
        begin_bytes=root.begin_bytes + root.size_bytes,
        identifier=uuid.uuid5(_DISK_ID, str(_SOURCE_NUMBER)),
    )
    return (*places, source)


def _without_source(disk: Path, layout: Layout) -> None:
    """Cut the disk behind the root, and write its table anew."""
    size_bytes = disk_mib(layout) * MIB
    first, last = _mbr(_mbr_places(layout)), b""
    if base_of(layout) is not Layout.APART:
        table = gpt(partitions(layout), size_bytes, _DISK_ID)
        first, last = table.first, table.last
    with disk.open("r+b") as file:
        # The boot sector has GRUB.
        boot_code = file.read(_BOOT_CODE_BYTES)
        file.truncate(size_bytes)
        write_at(file.fileno(), boot_code + first[_BOOT_CODE_BYTES:], 0)
        write_at(file.fileno(), last, size_bytes - len(last))


def command_line() -> str:
    """Nothing of the system runs but a shell, which loads the driver of the agent's port."""
    shell = '/bin/sh -- -c "modprobe virtio_console; exec sleep infinity"'
    return f"console=ttyS0 panic=-1 root=UUID={ROOT_UUID} ro rd.driver.blacklist=virtio_console init={shell}"


def _profile(layout: Layout) -> Profile:
    return Profile(
        name="look-alike",
        description="",
        suite="bookworm",
        packages=layout.packages,
        unit="nginx.service",
        run_start_pre=False,
        early=Early.ALWAYS,
        ready=Readiness(kind=ReadyKind.HTTP, port=80, path="/", status=200, command="", timeout_s=600),
        files=FileRules((), (), (), ()),
        memory_mib=1024,
        budget_mib=24,
        disk_mib=ROOT_MIB,
    )
