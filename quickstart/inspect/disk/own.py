"""Decide whether `build --image` can make the system of a disk start fast. Find the words of the boot loader's command
line that QuickStart keeps. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from quickstart.errors import BadInputError
from quickstart.inspect.disk.systemdboot import ENTRIES, OWN_SORT_KEY
from quickstart.model.disk import BootEntry, Content, InitramfsMaker, Inspected, Loader, Partition
from quickstart.model.rootdisk import subvolume
from quickstart.model.words import KNOWN_FILE_SYSTEMS, FileSystem
from quickstart.parse.printable import brief, command

# Discoverable Partitions Specification: systemd-boot reads a menu there, too.
_XBOOTLDR = "bc13c2ff-59e6-4262-a352-b275fd6f7172"
_GRUB = {Loader.GRUB_BIOS, Loader.GRUB_UEFI}
# What QuickStart says itself in each boot of its own: the root volume, the console, what runs, and what loads it.
_OF_THE_ENTRY = re.compile(r"(?:root|console|init|initrd|BOOT_IMAGE|panic)=.*|ro|rw|quiet|splash|--")

_PLACE = re.compile(r"(?:/[A-Za-z0-9_.-]+)+", re.ASCII)
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


# systemd-boot starts the kernel of a unified kernel image with our initramfs only as a file of its own.
KERNEL_ON_ESP = "/quickstart/vmlinuz"


def kernel_path(found: Inspected) -> PurePosixPath:
    """The path at which the system has the kernel of the default entry.

    Raises ValueError when there is no default entry.
    """
    if found.entry is None:
        raise ValueError("the disk has no default entry")
    return system_path(found, found.entry.kernel)


def system_path(found: Inspected, path: str) -> PurePosixPath:
    """The path at which the system has ``path``, a file that the default entry of the boot loader names.

    Raises ValueError when there is no default entry.
    """
    if found.entry is None:
        raise ValueError("the disk has no default entry")
    place = "/"
    if found.entry.partition in (found.boot, found.esp):
        place = "/boot" if found.entry.partition == found.boot else found.esp_place
    return PurePosixPath(place, path.lstrip("/"))


def entry_line(line: str, root_uuid: str) -> str:
    """The kernel's command line for a boot with our initramfs. The function makes this command line from ``line``, the
    command line of the boot loader's default entry. The command line names the root volume by its UUID, because our
    init looks for the UUID. The command line also makes the kernel reboot after a panic, so that the boot loader can
    start the distribution's own entry.
    """
    words = (word for word in line.split() if not re.fullmatch(r"(?:root|panic|BOOT_IMAGE)=.*", word))
    return " ".join((f"root=UUID={root_uuid}", *words, "panic=10"))


def esp_place(found: Inspected) -> dict[str, bytes]:
    """The file `esp` for our scripts in image/targets/disk. It says where the system mounts the EFI system partition,
    with systemd-boot's menu. With GRUB, the result is empty.
    """
    return {"esp": f"{found.esp_place}\n".encode()} if _is_of_systemd_boot(found) else {}


def menu_entry(entry: BootEntry, line: str) -> str:
    """The file of QuickStart's entry in systemd-boot's menu (Boot Loader Specification, "Type #1"). The entry starts the
    kernel of ``entry``, the system's own default entry. If this kernel is in a unified kernel image, a copy of the kernel
    is on the EFI system partition. ``line`` is the command line. The word that is appended to
    this line tells image/targets/disk/systemd-boot which entry a boot comes from, and means nothing to the kernel.
    """
    fields = {
        "title": "QuickStart",
        "sort-key": OWN_SORT_KEY,
        "linux": KERNEL_ON_ESP if entry.is_unified else entry.kernel,
        "initrd": "/quickstart/initramfs.img",
        "options": f"{line} quickstart.entry",
    }
    return "".join(f"{key:11}{value}\n" for key, value in fields.items())


def has_entry(content: Content, entry: BootEntry) -> bool:
    """Whether the boot loader's menu has an entry of QuickStart. ``content`` is what the partition with the menu has.
    ``entry`` is the system's own default entry.
    """
    if entry.is_unified or entry.config.startswith(ENTRIES):
        return f"{ENTRIES}quickstart+1.conf" in content.files
    return b"--id quickstart {" in content.files.get(entry.config, b"")


def _is_of_systemd_boot(found: Inspected) -> bool:
    return found.loaders == (Loader.SYSTEMD_BOOT,)


def _not_yet(found: Inspected) -> Iterator[str]:
    """The reasons why `build --image` does not support a disk so far, although nothing is wrong with the disk."""
    root, boot = found.partition(found.root), found.partition(found.boot)
    if root is None:
        return
    if root.kind not in list(FileSystem):
        yield f"the root file system is {brief(root.kind)}, and `build --image` knows only {KNOWN_FILE_SYSTEMS} so far"
    if boot is not None and boot.kind != "ext4":
        yield f"the file system of /boot is {brief(boot.kind)}, and `build --image` knows only ext4 so far"
    if not _is_of_systemd_boot(found) and not set(found.loaders) <= _GRUB:
        names = " and ".join(found.loaders)
        yield f"the boot loader is {names}, and `build --image` knows only GRUB or systemd-boot so far"
    if found.initramfs_maker is InitramfsMaker.NONE:
        yield "neither initramfs-tools nor dracut makes the initramfs, as `build --image` needs it so far"
    entry = found.entry
    if entry is None:
        return
    flags = [word for word in entry.command_line.split() if word.startswith("rootflags=")]
    if flags and (root.kind == FileSystem.EXT4 or len(flags) > 1):
        yield f"the command line of the default entry has {brief(' '.join(flags))}, with which init boots the stock way"
    if root.kind == FileSystem.BTRFS:
        yield from _of_btrfs(found, root, "".join(flags[:1]))
    if strange := [word for word in entry.command_line.split() if not _WORD.fullmatch(word)]:
        yield f"the command line of the default entry has a word with quotes or other special characters: {brief(strange[0])}"
    if any(word.startswith("systemd.machine_id=") for word in entry.command_line.split()):
        yield "the command line of the default entry has systemd.machine_id=, with which init boots the stock way"
    if for_dracut := [word for word in entry.command_line.split() if word.startswith("rd.")]:
        yield f"the command line of the default entry has {brief(for_dracut[0])}, with which init boots the stock way"
    if _is_of_systemd_boot(found):
        yield from _of_systemd_boot(found, entry)
    else:
        yield from _of_grub(boot, entry)


def _of_btrfs(found: Inspected, root: Partition, flags: str) -> Iterator[str]:
    named = subvolume(flags)
    if named != root.subvolume:
        yield (
            f"the system is in {_subvolume_name(root.subvolume)}, and the command line of the default entry names "
            f"{_subvolume_name(named)} in rootflags="
        )
    if not _is_of_systemd_boot(found) and found.boot is None:
        yield "GRUB cannot write to btrfs, and so could not note that a boot failed: /boot needs a partition of its own"


def _subvolume_name(name: str) -> str:
    return f"the subvolume {brief(name)}" if name else "no subvolume"


def _of_grub(boot: Partition | None, entry: BootEntry) -> Iterator[str]:
    is_apart = boot is not None and entry.partition == boot.number
    if boot is not None and not is_apart:
        yield "GRUB's menu is not in the partition of /boot"
    directory = PurePosixPath("/" if is_apart else "/boot")
    if PurePosixPath(entry.kernel).parent != directory or len(entry.initramfs) != 1:
        count = len(entry.initramfs)
        yield f"the default entry starts {brief(entry.kernel)} with {count} initramfs files, not a kernel in /boot with one"


def _of_systemd_boot(found: Inspected, entry: BootEntry) -> Iterator[str]:
    if found.esp_place and not _PLACE.fullmatch(found.esp_place):
        yield f"the EFI system partition is on {brief(found.esp_place)}, a name with special characters"
    if not _PLACE.fullmatch(entry.kernel) or ".." in PurePosixPath(entry.kernel).parts:
        yield f"the path of the default entry's kernel has special characters: {brief(entry.kernel)}"
    if len(entry.initramfs) != 1:
        yield f"the default entry has {len(entry.initramfs)} initramfs files, not one"
    if any(each.type_id == _XBOOTLDR for each in found.facts.partitions):
        yield "the disk has an extended boot loader partition (XBOOTLDR), which `build --image` does not know so far"
