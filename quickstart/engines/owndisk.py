"""Run `build --target disk`. `build --target disk` makes a disk that boots by itself, from a profile or from a user's
own root file system (docs/adr/0028-own-disk.md).

The module first makes a *stock disk*. A stock disk has a partition table, a boot loader and the system, but nothing of
QuickStart. The stock disk stays in the store. The module engines/image.py then makes a copy of the stock disk that
starts fast, as it does with a disk that somebody else has made.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.engines.boot import Built
from quickstart.engines.image import ImageOptions, build_image, check_early
from quickstart.engines.ownsystem import OwnSystem, execute_in, script_of
from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.image.ext4 import created_of, disk_recipe, write_disk
from quickstart.image.fat import write_fat
from quickstart.image.gpt import BIOS_BOOT, ESP, ROOT_X86_64, GptPartition
from quickstart.image.partitioned import Filled, write_partitioned
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import MIB, Profile, ReferenceImage
from quickstart.model.words import KernelOptions
from quickstart.reference import entry
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.rootfs import examine, reference_of
from quickstart.store.context import Context
from quickstart.store.store import source_digest

_STAGE, _DISK, _ROOT, _ESP = "stock-disk", "disk.raw", "root.raw", "esp.raw"
_ROOT_STEP = "writing the files of a disk with their owners"
_TOOLS = (
    *("mkfs.ext4", "debugfs", "mkfs.vfat", "qemu-system-x86_64"),
    *("busybox", "strace", "cc", "musl-gcc"),
)
# What clouds read a machine's messages from.
_WORDS = "console=tty0 console=ttyS0,115200"
# As in Debian's cloud images: the root is the first partition by its number, and the last one by its place.
_ROOT_NUMBER, _BIOS_NUMBER, _ESP_NUMBER = 1, 14, 15
_BIOS_MIB = 3
_GRUB_FILES = (
    "/usr/sbin/grub-install",
    "/usr/lib/grub/i386-pc/boot.img",
    "/usr/lib/grub/x86_64-efi/moddep.lst",
)
_BOOT_FILES = ("/usr/bin/bootctl", "/usr/bin/kernel-install", "/usr/lib/systemd/boot/efi/systemd-bootx64.efi")


class OwnLoader(enum.StrEnum):
    """The boot loader of a stock disk."""

    SYSTEMD_BOOT = "systemd-boot"
    """Only for machines with UEFI."""
    GRUB = "grub"
    """For machines with a BIOS, and for machines with UEFI."""


@dataclass(frozen=True, kw_only=True)
class _Needs:
    """What a boot loader needs. ``packages`` have the loader, and ``files`` are files of these packages. With
    systemd-boot, the EFI system partition has the kernels, too.
    """

    packages: tuple[str, ...]
    files: tuple[str, ...]
    esp_mib: int
    has_bios: bool


_LOADERS = {
    OwnLoader.SYSTEMD_BOOT: _Needs(
        packages=("systemd-boot",), files=_BOOT_FILES, esp_mib=512, has_bios=False
    ),
    OwnLoader.GRUB: _Needs(packages=("grub-cloud-amd64",), files=_GRUB_FILES, esp_mib=124, has_bios=True),
}


@dataclass(frozen=True, kw_only=True)
class OwnDiskOptions:
    """The options of `build --target disk`. ``rootfs`` is a user's own root file system. With ``bios``, machines with a
    BIOS can boot the disk, too. When ``kernel_options`` is None, the profile's kernel options apply.
    """

    out: Path
    rootfs: Path | None = None
    bios: bool = False
    force: bool = False
    keep: bool = False
    kernel_options: KernelOptions | None = None

    @property
    def loader(self) -> OwnLoader:
        return OwnLoader.GRUB if self.bios else OwnLoader.SYSTEMD_BOOT


def build_own_disk(profile: Profile, options: OwnDiskOptions, context: Context) -> Built:
    """Write a disk with the profile's system to ``options.out``. The disk boots by itself, and starts the profile's
    units early. After an error, ``options.out`` is unchanged.
    """
    check_early(profile)
    door.need_root(_ROOT_STEP)
    door.need_tools(*_TOOLS)
    image = stock_disk(profile, options.rootfs, options.loader, context)
    return build_image(
        profile,
        ImageOptions(
            image=image,
            out=options.out,
            force=options.force,
            keep=options.keep,
            kernel_options=options.kernel_options,
        ),
        context,
    )


def stock_disk(profile: Profile, rootfs: Path | None, loader: OwnLoader, context: Context) -> Path:
    """A disk that boots the profile's system with ``loader``. If the store does not have the disk, the function makes
    it. The system on the disk itself installs the boot loader, so the disk's bytes differ from store to store.

    Raises BadInputError when the user's own root file system ``rootfs`` lacks the boot loader.
    """
    reference = _reference(profile, rootfs, loader, context)
    inputs = {
        "image": reference.image_hash,
        "size_mib": profile.disk_mib,
        "volume": [reference.volume_uuid, reference.volume_label],
        "loader": loader.value,
        "recipe": source_digest("quickstart.engines.owndisk", "quickstart.image"),
        **disk_recipe(),
    }

    def make(directory: Path) -> None:
        with context.progress.step("stock disk: partitions"):
            _assemble(reference, profile.disk_mib, loader, directory)
        with context.progress.step(f"stock disk: {loader}"):
            _install_loader(reference, loader, directory / _DISK, context)

    return context.store.get_or_make(_STAGE, inputs, make).path / _DISK


def _reference(profile: Profile, rootfs: Path | None, loader: OwnLoader, context: Context) -> ReferenceImage:
    """The profile's reference image, with the boot loader's packages and without the package quickstart-guest, which
    engines/image.py installs.
    """
    wanted = _LOADERS[loader]
    if rootfs is None:
        with_loader = dataclasses.replace(profile, packages=(*profile.packages, *wanted.packages))
        return make_reference(with_loader, context, guest_package=False)
    with context.progress.step(f"hash {rootfs}"):
        own = examine(rootfs)
    reference = reference_of(profile, own, context, guest_package=False)
    check_loader(ImageRoot(reference.tree), loader, rootfs)
    return reference


def check_loader(root: ImageRoot, loader: OwnLoader, rootfs: Path) -> None:
    """Raise BadInputError when the root file system lacks a file that installs ``loader``."""
    wanted = _LOADERS[loader]
    missing = [path for path in wanted.files if not root.resolve(PurePosixPath(path)).canonical]
    if missing:
        raise BadInputError(
            f"{rootfs} has no {missing[0]}, with which its system installs {loader} on a disk",
            hint=f"install {' '.join(wanted.packages)} in it",
        )


def partitions(reference: ReferenceImage, root_mib: int, loader: OwnLoader) -> tuple[GptPartition, ...]:
    """The partitions of a stock disk (pure). The root is the last one, so it can grow."""
    identity = uuid.UUID(reference.volume_uuid)

    def places() -> Iterator[tuple[int, int, uuid.UUID]]:
        if _LOADERS[loader].has_bios:
            yield _BIOS_NUMBER, _BIOS_MIB, BIOS_BOOT
        yield _ESP_NUMBER, _LOADERS[loader].esp_mib, ESP
        yield _ROOT_NUMBER, root_mib, ROOT_X86_64

    made, at_mib = [], 1
    for number, size_mib, kind in places():
        made.append(
            GptPartition(
                number=number,
                begin_bytes=at_mib * MIB,
                size_bytes=size_mib * MIB,
                type_id=kind,
                identifier=uuid.uuid5(identity, f"partition {number}"),
                name="",
            )
        )
        at_mib += size_mib
    return tuple(made)


def esp_id(reference: ReferenceImage) -> str:
    """The serial number of the EFI system partition's file system, as fstab(5) has it."""
    digits = uuid.uuid5(uuid.UUID(reference.volume_uuid), "esp").hex[:8].upper()
    return f"{digits[:4]}-{digits[4:]}"


def _assemble(reference: ReferenceImage, root_mib: int, loader: OwnLoader, directory: Path) -> None:
    root, esp = directory / _ROOT, directory / _ESP
    write_disk(
        reference.tree,
        root,
        root_mib,
        reference.volume_uuid,
        reference.volume_label,
        entry.devices_of(reference),
        created_s=created_of(reference.image_hash),
    )
    write_fat(esp, _LOADERS[loader].esp_mib, "ESP", esp_id(reference))
    sources = {_ROOT_NUMBER: root, _ESP_NUMBER: esp}
    places = partitions(reference, root_mib, loader)
    # The second copy of the table takes less than a MiB.
    size_bytes = max(each.begin_bytes + each.size_bytes for each in places) + MIB
    filled = [Filled(each, sources.get(each.number)) for each in places]
    identifier = uuid.uuid5(uuid.UUID(reference.volume_uuid), "disk")
    write_partitioned(directory / _DISK, filled, size_bytes, identifier)
    root.unlink()
    esp.unlink()


def _install_loader(reference: ReferenceImage, loader: OwnLoader, disk: Path, context: Context) -> None:
    system = OwnSystem(
        name="the profile",
        kernel=reference.kernel,
        initrd=reference.initrd,
        root_uuid=reference.volume_uuid,
    )
    files: dict[str, bytes | Path] = {
        "loader": script_of("loader"),
        "words": f"{_WORDS}\n".encode(),
        "layout": f"{_ROOT_NUMBER} {_ESP_NUMBER} {esp_id(reference)} {loader}\n".encode(),
    }
    execute_in(disk, system, "loader", files, context)
