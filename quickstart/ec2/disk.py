"""What an image has to know of a disk. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection

from quickstart.errors import BadInputError
from quickstart.model.disk import Inspected, Loader
from quickstart.model.words import BootMode

# libblkid's word.
_FAT = "vfat"


def fats_of(found: Inspected) -> tuple[tuple[int, int], ...]:
    """The partitions with FAT file systems, as (offset, size) in bytes."""
    return tuple((each.begin_bytes, each.size_bytes) for each in found.facts.partitions if each.kind == _FAT)


def boot_mode_of(loaders: Collection[Loader], asked: BootMode | None = None) -> BootMode:
    """The boot mode ``asked`` for a disk with these boot loaders, or by default the best one. Raises BadInputError when no
    boot loader of the disk can start with it.
    """
    has_bios = Loader.GRUB_BIOS in loaders
    has_uefi = bool(set(loaders) - {Loader.GRUB_BIOS})
    possible = {
        BootMode.UEFI_PREFERRED: has_bios and has_uefi,
        BootMode.UEFI: has_uefi,
        BootMode.LEGACY_BIOS: has_bios,
    }
    modes = [mode for mode, is_possible in possible.items() if is_possible]
    if not modes:
        raise BadInputError("the disk has no boot loader", hint="`quickstart inspect` shows what it has")
    if asked is not None and asked not in modes:
        raise BadInputError(
            f"the disk has no boot loader for the boot mode {asked}", hint=f"--boot-mode {modes[0]}"
        )
    return asked or modes[0]
