"""Decide whether `build --image` can make the system of a disk start fast. Find the words of the boot loader's command
line that QuickStart keeps. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError
from quickstart.model.disk import InitramfsMaker, Inspected, Loader
from quickstart.parse.printable import brief, command

_GRUB = {Loader.GRUB_BIOS, Loader.GRUB_UEFI}
# What QuickStart says itself in each boot of its own: the root volume, the console, what runs, and what loads it.
_OF_THE_ENTRY = re.compile(r"(?:root|console|init|initrd|BOOT_IMAGE|panic)=.*|ro|rw|quiet|splash|--")

# What neither GRUB nor a shell would read as more than a word.
_WORD = re.compile(r"[A-Za-z0-9=.,:/_@%+~^*-]+", re.ASCII)


def check_image_disk(path: Path, found: Inspected) -> None:
    """Raise BadInputError, with all reasons, when `build --image` cannot make the system of the disk start fast."""
    if reasons := (*found.refusals, *_not_yet(found)):
        raise BadInputError(
            f"{path} cannot be made fast:",
            hint=f"`{command('quickstart', 'inspect', str(path)) or 'quickstart inspect'}` shows what the disk has",
            details=reasons,
        )


def own_words(found: Inspected) -> tuple[str, ...]:
    """The words of the kernel's command line that every boot of the system needs, for example net.ifnames=0. These
    words come from the default entry of the boot loader.
    """
    line = found.entry.command_line if found.entry else ""
    return tuple(word for word in line.split() if not _OF_THE_ENTRY.fullmatch(word))


def kernel_path(found: Inspected) -> PurePosixPath:
    """The path at which the system has the kernel of the default entry.

    Raises ValueError when there is no default entry.
    """
    if found.entry is None:
        raise ValueError("the disk has no default entry")
    is_apart = found.boot is not None and found.entry.partition == found.boot
    return PurePosixPath("/boot" if is_apart else "/", found.entry.kernel.lstrip("/"))


def entry_line(line: str, root_uuid: str) -> str:
    """The kernel's command line for a boot with our initramfs. The function makes this command line from ``line``, the
    command line of the boot loader's default entry. The command line names the root volume by its UUID, because our
    init looks for the UUID. The command line also makes the kernel reboot after a panic, so that the boot loader can
    start the distribution's own entry.
    """
    words = (word for word in line.split() if not re.fullmatch(r"(?:root|panic|BOOT_IMAGE)=.*", word))
    return " ".join((f"root=UUID={root_uuid}", *words, "panic=10"))


def _not_yet(found: Inspected) -> Iterator[str]:
    """The reasons why `build --image` does not support a disk so far, although nothing is wrong with the disk."""
    root, boot = found.partition(found.root), found.partition(found.boot)
    if root is None:
        return
    if root.kind != "ext4":
        yield f"the root file system is {brief(root.kind)}, and `build --image` knows only ext4 so far"
    if boot is not None and boot.kind != "ext4":
        yield f"the file system of /boot is {brief(boot.kind)}, and `build --image` knows only ext4 so far"
    if not _GRUB & set(found.loaders):
        yield "the boot loader is not GRUB, the only one that `build --image` knows so far"
    if found.initramfs_maker is not InitramfsMaker.INITRAMFS_TOOLS:
        yield f"initramfs-tools does not make the initramfs ({found.initramfs_maker}), as `build --image` needs it so far"
    entry = found.entry
    if entry is None:
        return
    if strange := [word for word in entry.command_line.split() if not _WORD.fullmatch(word)]:
        yield f"the command line of the default entry has a word with quotes or other special characters: {brief(strange[0])}"
    is_apart = boot is not None and entry.partition == boot.number
    if boot is not None and not is_apart:
        yield "GRUB's menu is not in the partition of /boot"
    directory = PurePosixPath("/" if is_apart else "/boot")
    if PurePosixPath(entry.kernel).parent != directory or len(entry.initramfs) != 1:
        count = len(entry.initramfs)
        yield f"the default entry starts {brief(entry.kernel)} with {count} initramfs files, not a kernel in /boot with one"
