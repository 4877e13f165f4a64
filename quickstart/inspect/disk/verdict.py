"""Find the root partition, the boot loader and the operating system of a disk, and the reasons to refuse the disk."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import GuestError
from quickstart.host.cpulimit import LIMIT_S, cpu_limit
from quickstart.inspect.disk.facts import disk_facts
from quickstart.inspect.disk.fstab import file_text, fstab_lines, named_partition
from quickstart.inspect.disk.grub import default_entry
from quickstart.inspect.disk.records import parse_records
from quickstart.inspect.disk.systemdboot import ENTRIES, Menu, read_menu
from quickstart.model.disk import (
    WHOLE_DISK,
    BootEntry,
    Content,
    DiskFacts,
    InitramfsMaker,
    Inspected,
    Loader,
    NetworkManager,
    Partition,
    Table,
)
from quickstart.parse.printable import brief

_ESP = ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "0xef")
_BIOS_BOOT = "21686148-6449-6e6f-744e-656564454649"
# Contents of a partition that are no file system that we can read.
_REFUSED_KINDS = {
    "crypto_LUKS": "is encrypted (LUKS)",
    "LVM2_member": "is a physical volume of LVM",
    "linux_raid_member": "is a member of a RAID",
    "ddf_raid_member": "is a member of a RAID",
    "isw_raid_member": "is a member of a RAID",
    "BitLocker": "is encrypted (BitLocker)",
    "zfs_member": "is a member of a ZFS pool",
    "bcachefs": "has bcachefs",
}
_ROOT_KINDS = ("ext4", "xfs", "btrfs")
_SYSTEMD = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
_GRUB_FILES = ("grub/grub.cfg", "grub2/grub.cfg")
# A boot loader has less than 4 MiB; a kernel with its initramfs has more.
_LEAST_UKI_BYTES = 4 << 20
# Our kernel, both parts and some room for the next kernel's package.
_LEAST_FREE_BYTES = 96 << 20
# Options of FAT with which only root can read the files.
_CLOSED = frozenset(("umask=0077", "umask=077"))
# A table in a circle has more than two hundred.
_MOST_OVERLAPS = 4
_GRUB_IN_MBR = b"GRUB"
_SLOW = "look for very many or very long lines in its menus and in /etc/fstab"


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The partitions that have a role in a boot. ``boot`` is the partition with the kernels, and may be the same
    partition as ``root``. ``esp_place`` is the directory on which the system mounts the EFI system partition. It is
    empty when fstab does not name this partition.
    """

    root: Partition | None
    boot: Partition | None
    esp: Partition | None
    root_name: str
    esp_place: str = ""


def examined(said: bytes) -> Inspected:
    """What is on a disk, according to ``said``, the output of the appliance. The appliance is our small guest that
    reads the disk (`inspect/disk/records.py` parses its output).

    Raises GuestError when ``said`` cannot be the output of the appliance. Raises TooSlowError when reading ``said``
    takes too long.
    """
    with cpu_limit("what the appliance said about the disk", LIMIT_S, _SLOW):
        try:
            records = parse_records(said)
        except ValueError as error:
            raise GuestError(f"what the appliance said cannot be read: {error}") from error
        return inspected(disk_facts(records))


def inspected(facts: DiskFacts) -> Inspected:
    """The findings about a disk with the given facts, and the reasons to refuse the disk. The function is pure."""
    found = _found(facts)
    content = found.root.content if found.root and found.root.content else _NO_CONTENT
    loaders = tuple(_loaders(facts, found))
    menu = _menu(found, loaders)
    entry = _grub_entry(found) if menu is None else _menu_entry(found, menu)
    return Inspected(
        facts=facts,
        system=_system_name(content),
        root=found.root.number if found.root else None,
        boot=found.boot.number if found.boot and found.boot is not found.root else None,
        esp=found.esp.number if found.esp else None,
        esp_place=found.esp_place,
        root_name=found.root_name,
        loaders=loaders,
        entry=entry,
        initramfs_maker=_initramfs_maker(content, entry),
        network=tuple(_network(content)),
        has_cloud_init="/usr/bin/cloud-init" in content.present
        and "/etc/cloud/cloud-init.disabled" not in content.present,
        grows_root=_grows_root(content),
        refusals=(*_refusals(facts, found, loaders, entry), *_of_menu(found, menu)),
    )


_NO_CONTENT = Content(size_bytes=0, free_bytes=0)


# ---------------------------------------------------------------- partitions


def _found(facts: DiskFacts) -> _Found:
    roots = _roots(facts)
    root = roots[0] if len(roots) == 1 else None
    if root is None or root.content is None:
        return _Found(root=None, boot=None, esp=_esp(facts), root_name="")
    lines = {each.place: each for each in fstab_lines(root.content)}
    boot = named_partition(facts, lines["/boot"].device) if "/boot" in lines else root
    root_name = lines["/"].device if "/" in lines else ""
    esp = _esp(facts)
    places = (
        place
        for place, line in lines.items()
        if esp is not None and named_partition(facts, line.device) is esp
    )
    return _Found(root=root, boot=boot, esp=esp, root_name=root_name, esp_place=next(places, ""))


def _roots(facts: DiskFacts) -> list[Partition]:
    """The partitions whose file system has systemd and a file os-release."""
    return [
        each
        for each in facts.partitions
        if each.content
        and any(path in each.content.present for path in _SYSTEMD)
        and any(path in each.content.files for path in ("/etc/os-release", "/usr/lib/os-release"))
    ]


def _esp(facts: DiskFacts) -> Partition | None:
    return next((each for each in facts.partitions if each.type_id in _ESP and each.kind == "vfat"), None)


# ---------------------------------------------------------------- boot loaders


def _loaders(facts: DiskFacts, found: _Found) -> Iterator[Loader]:
    has_place = facts.table is Table.MBR or any(each.type_id == _BIOS_BOOT for each in facts.partitions)
    if _GRUB_IN_MBR in facts.boot_sector and has_place:
        yield Loader.GRUB_BIOS
    files = _efi_files(found.esp)
    names = {path.rpartition("/")[2].lower() for path in files}
    if names & {"grubx64.efi", "grub.efi"}:
        yield Loader.GRUB_UEFI
    if any(re.fullmatch(r"systemd-bootx64\.efi(?:\.signed)?", name) for name in names):
        yield Loader.SYSTEMD_BOOT
    elif any(
        size >= _LEAST_UKI_BYTES and path.lower() == "/efi/boot/bootx64.efi" for path, size in files.items()
    ):
        yield Loader.UKI


def _efi_files(esp: Partition | None) -> dict[str, int]:
    boot = esp.content.boot if esp and esp.content else {}
    return {path: size for path, size in boot.items() if path.lower().endswith(".efi")}


def _menu(found: _Found, loaders: Sequence[Loader]) -> Menu | None:
    """The menu of systemd-boot. The result is None when systemd-boot is not the only boot loader."""
    if tuple(loaders) != (Loader.SYSTEMD_BOOT,) or found.esp is None or found.esp.content is None:
        return None
    return read_menu(found.esp.content.files, found.esp.content.boot)


def _menu_entry(found: _Found, menu: Menu) -> BootEntry | None:
    """The default entry of systemd-boot's menu."""
    entry = menu.default
    if entry is None or found.esp is None:
        return None
    return BootEntry(
        title=entry.title,
        config=entry.kernel if entry.is_unified else f"{ENTRIES}{entry.name}",
        partition=found.esp.number,
        kernel=entry.kernel,
        initramfs=entry.initramfs,
        command_line=entry.command_line,
        is_unified=entry.is_unified,
    )


def _grub_entry(found: _Found) -> BootEntry | None:
    """The default entry of GRUB's menu. The result is None when the disk has no such menu, or when we do not
    understand the menu.
    """
    for place in (found.boot, found.root):
        content = place.content if place else None
        for prefix in ("/boot/", "/") if content else ():
            for name in _GRUB_FILES:
                config = f"{prefix}{name}"
                if content is None or config not in content.files:
                    continue
                environment = content.files.get(config.replace("grub.cfg", "grubenv"), b"")
                entry = default_entry(file_text(content, config), environment)
                if entry is None or not entry.kernel or place is None:
                    return None
                return BootEntry(
                    title=entry.title,
                    config=config,
                    partition=place.number,
                    kernel=entry.kernel,
                    initramfs=entry.initramfs,
                    command_line=entry.command_line,
                )
    return None


# ---------------------------------------------------------------- the system


def _system_name(content: Content) -> str:
    text = file_text(content, "/etc/os-release") or file_text(content, "/usr/lib/os-release")
    for line in text.splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return ""


def _initramfs_maker(content: Content, entry: BootEntry | None) -> InitramfsMaker:
    if entry is not None and not entry.initramfs:
        return InitramfsMaker.NONE
    if "/usr/sbin/update-initramfs" in content.present:
        return InitramfsMaker.INITRAMFS_TOOLS
    return InitramfsMaker.DRACUT if "/usr/bin/dracut" in content.present else InitramfsMaker.NONE


def _network(content: Content) -> Iterator[NetworkManager]:
    """The programs that set up the network. NetworkManager and systemd-networkd are in the result when their units are
    enabled. netplan and ifupdown are in the result when they are installed. When netplan is in the result,
    systemd-networkd is not.
    """
    enabled = {path.rpartition("/")[2] for path in content.enabled}
    if "NetworkManager.service" in enabled:
        yield NetworkManager.NETWORK_MANAGER
    if "/usr/sbin/netplan" in content.present:
        yield NetworkManager.NETPLAN
    elif "systemd-networkd.service" in enabled:
        yield NetworkManager.NETWORKD
    if content.present & {"/usr/sbin/ifup", "/sbin/ifup"}:
        yield NetworkManager.IFUPDOWN


def _grows_root(content: Content) -> bool:
    """Whether the first boot enlarges the root partition or the root file system."""
    by_initramfs = "/usr/share/initramfs-tools/scripts/local-bottom/growroot" in content.present
    by_fstab = "x-systemd.growfs" in file_text(content, "/etc/fstab")
    by_cloud_init = {"/usr/bin/growpart", "/usr/bin/cloud-init"} <= content.present
    return by_initramfs or by_fstab or by_cloud_init


# ---------------------------------------------------------------- refusals


def _refusals(
    facts: DiskFacts, found: _Found, loaders: Sequence[Loader], entry: BootEntry | None
) -> Iterator[str]:
    if facts.table is Table.NONE:
        yield "the disk has no partition table, so no firmware starts it"
    if facts.sector_bytes != 512:
        yield f"the disk has sectors of {facts.sector_bytes} bytes"
    yield from _of_partitions(facts)
    if found.root is None:
        count = len(_roots(facts))
        what = f"{count} partitions have a system" if count else "no partition has a system with systemd"
        yield f"{what}, so the root volume is not known"
        return
    yield from _of_root(facts, found)
    if not loaders:
        yield "the disk has no boot loader that is known (GRUB, systemd-boot, a unified kernel image)"
    elif entry is None and not {Loader.SYSTEMD_BOOT, Loader.UKI} & set(loaders):
        yield "the default entry of GRUB's menu is not understood"
    yield from _of_system(found.root)


def _of_partitions(facts: DiskFacts) -> Iterator[str]:
    placed = sorted((each.begin_bytes, each.size_bytes, each.number) for each in facts.partitions)
    overlaps = [
        f"the partitions {number} and {other} overlap"
        for (begin, size, number), (following, _, other) in itertools.pairwise(placed)
        if begin + size > following
    ]
    yield from overlaps[:_MOST_OVERLAPS]
    if len(overlaps) > _MOST_OVERLAPS:
        yield f"{len(overlaps) - _MOST_OVERLAPS} more pairs of partitions overlap"
    for each in facts.partitions:
        if each.begin_bytes + each.size_bytes > facts.size_bytes:
            yield f"partition {each.number} goes beyond the end of the disk"
        if each.kind in _REFUSED_KINDS:
            yield f"partition {each.number} {_REFUSED_KINDS[each.kind]}"
        elif each.fault and each.usage == "filesystem":
            yield f"partition {each.number} ({brief(each.kind)}) cannot be mounted: {brief(each.fault)}"


def _of_root(facts: DiskFacts, found: _Found) -> Iterator[str]:
    root = found.root
    if root is None:
        return
    if root.kind not in _ROOT_KINDS:
        yield f"the root file system is {brief(root.kind)}, and only {', '.join(_ROOT_KINDS)} are known"
    if not found.root_name:
        yield "the root file system's fstab has no line for /"
    elif (named := named_partition(facts, found.root_name)) is None or named.number != root.number:
        name = brief(found.root_name)
        yield f"fstab's line for / ({name}) is not partition {root.number}, which has the system"
    if found.boot is None:
        yield "fstab's line for /boot is no partition of this disk"
    elif found.boot is not root:
        yield from _of_line(root.content or _NO_CONTENT, "/boot", "GRUB")
    for each in (root,) if found.boot in (None, root) else (root, found.boot):
        if each is not None and not each.is_clean:
            name = "the file system" if each.number == WHOLE_DISK else f"partition {each.number}"
            yield (
                f"{name} was not unmounted, and its last changes are only in its journal: "
                "start its system once, and shut it down"
            )
    content = found.boot.content if found.boot else None
    if content is not None and content.free_bytes < _LEAST_FREE_BYTES:
        yield f"/boot has {content.free_bytes >> 20} MiB free, and {_LEAST_FREE_BYTES >> 20} MiB are needed"


def _of_line(content: Content, place: str, loader: str) -> Iterator[str]:
    """What fstab's line for ``place`` must not say. The partition there has what ``loader`` reads, and a boot that is
    complete writes to it. The build mounts the partition in a machine in which the disk may have another name.
    """
    for line in fstab_lines(content):
        if line.place == place and line.device.startswith("/dev/"):
            yield f"fstab's line for {place} names the device {brief(line.device)}: name it by UUID=, LABEL= or PARTUUID="
        if line.place == place and (options := sorted(line.options & {"noauto", "ro"})):
            yield f"fstab's line for {place} has {options[0]}, so a boot cannot tell {loader} that it is complete"


def _of_menu(found: _Found, menu: Menu | None) -> Iterator[str]:
    """The reasons to refuse systemd-boot's menu, and the partition that has this menu."""
    if menu is None or found.root is None or found.esp is None or found.esp.content is None:
        return
    yield from menu.refusals
    if menu.default is None and not menu.refusals:
        yield "the menu of systemd-boot has no entry that starts a kernel"
    if not found.esp_place:
        yield "fstab does not name the EFI system partition, so a boot cannot tell systemd-boot that it is complete"
    elif found.boot is found.root:
        content = found.root.content or _NO_CONTENT
        yield from _of_line(content, found.esp_place, "systemd-boot")
        if any(each.place == found.esp_place and not each.options & _CLOSED for each in fstab_lines(content)):
            yield f"fstab's line for {found.esp_place} lacks umask=0077, and our initramfs there is for root only"
    if found.esp.content.free_bytes < _LEAST_FREE_BYTES:
        free = found.esp.content.free_bytes >> 20
        yield f"the EFI system partition has {free} MiB free, and {_LEAST_FREE_BYTES >> 20} MiB are needed"


def _of_system(root: Partition) -> Iterator[str]:
    content = root.content or _NO_CONTENT
    if NetworkManager.NETWORK_MANAGER in _network(content):
        yield "NetworkManager sets up the network"
    lines = map(str.strip, file_text(content, "/etc/crypttab").splitlines())
    if any(line and not line.startswith("#") for line in lines):
        yield "crypttab has encrypted volumes"
    init = content.links.get("/sbin/init") or content.links.get("/usr/sbin/init") or ""
    if init and PurePosixPath(init).name != "systemd":
        yield f"/sbin/init is {brief(init)} and not systemd"
