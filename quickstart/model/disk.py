"""The data classes for a disk that somebody else has made: its partitions, and the findings of `quickstart inspect`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

WHOLE_DISK = 0


class Table(enum.StrEnum):
    """The partition table of a disk."""

    GPT = "gpt"
    MBR = "mbr"
    NONE = "none"


class Loader(enum.StrEnum):
    """A way in which firmware starts the disk's kernel."""

    GRUB_BIOS = "grub-bios"
    GRUB_UEFI = "grub-uefi"
    SYSTEMD_BOOT = "systemd-boot"
    UKI = "uki"


class InitramfsMaker(enum.StrEnum):
    """The program that makes the system's initramfs."""

    INITRAMFS_TOOLS = "initramfs-tools"
    DRACUT = "dracut"
    NONE = "none"


class NetworkManager(enum.StrEnum):
    """The program that sets up the system's network."""

    IFUPDOWN = "ifupdown"
    NETWORKD = "networkd"
    NETPLAN = "netplan"
    NETWORK_MANAGER = "NetworkManager"


@dataclass(frozen=True, kw_only=True)
class Content:
    """The facts about a file system in the report of the appliance, which is a small guest of ours. Paths begin with
    ``/`` and are relative to the root of the file system.

    ``files`` are small files with their content. ``boot`` are the sizes in bytes of all files in the directories of
    kernels and boot loaders. ``present`` are the programs and files that the appliance has looked for and found.
    ``links`` are symlinks with their targets. ``enabled`` are the links of enabled units. ``top`` are the names in the
    top directory.
    """

    size_bytes: int
    free_bytes: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    boot: Mapping[str, int] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    enabled: frozenset[str] = frozenset()
    top: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition. If the disk has no partition table, this object stands for the whole disk, and has the number
    ``WHOLE_DISK``.

    ``type_id`` is the type of the partition: a GUID for a GPT, or a number such as ``0x83`` for an MBR. ``usage`` and
    ``kind`` are libblkid's words for the content. Examples of such pairs are ``filesystem`` and ``ext4``, ``crypto``
    and ``crypto_LUKS``, and ``raid`` and ``LVM2_member``. When the appliance could not mount the file system,
    ``content`` is None, and ``fault`` says why. ``subvolume`` is the subvolume of btrfs to which ``content`` belongs, or
    empty for the whole file system. When the file system was not unmounted, ``is_clean`` is false, and
    ``content`` lacks the changes that are only in the file system's journal.
    """

    number: int
    begin_bytes: int
    size_bytes: int
    type_id: str = ""
    part_uuid: str = ""
    name: str = ""
    usage: str = ""
    kind: str = ""
    uuid: str = ""
    label: str = ""
    content: Content | None = None
    subvolume: str = ""
    is_clean: bool = True
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class DiskFacts:
    """The facts about a disk in the report of the appliance, which is a small guest of ours. ``boot_sector`` has the
    first 512 bytes of the disk.
    """

    size_bytes: int
    sector_bytes: int
    table: Table
    table_uuid: str
    boot_sector: bytes
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True)
class BootEntry:
    """An entry of a boot loader. ``config`` is the file that has the entry. ``kernel`` and ``initramfs`` are paths in
    the file system of partition ``partition``. If ``is_unified`` is true, all of them are the path of one unified
    kernel image.
    """

    title: str
    config: str
    partition: int
    kernel: str
    initramfs: tuple[str, ...]
    command_line: str
    is_unified: bool = False


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """The findings of `quickstart inspect` about a disk. ``root``, ``boot`` and ``esp`` are the numbers of the root
    partition, of the partition for /boot, and of the EFI system partition. ``boot`` is None when /boot is a directory
    of the root file system. ``esp_place`` is the directory on which the system mounts the EFI system partition, or
    empty. ``refusals`` are the reasons for which `quickstart build --image` would refuse the disk.
    """

    facts: DiskFacts
    system: str
    root: int | None
    boot: int | None
    esp: int | None
    esp_place: str
    root_name: str
    loaders: tuple[Loader, ...]
    entry: BootEntry | None
    initramfs_maker: InitramfsMaker
    network: tuple[NetworkManager, ...]
    has_cloud_init: bool
    grows_root: bool
    refusals: tuple[str, ...]

    def partition(self, number: int | None) -> Partition | None:
        """The partition with this number."""
        return next((each for each in self.facts.partitions if each.number == number), None)
