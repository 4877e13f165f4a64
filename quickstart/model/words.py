"""Words that are used in profiles, manifests and command lines, as enums whose values are the words
(StrEnum).

A member is equal to its word, and is written as the word to JSON and TOML. This module imports no module of
QuickStart.
"""

from __future__ import annotations

import enum


class FileSystem(enum.StrEnum):
    """The file system of a root volume."""

    EXT4 = "ext4"
    XFS = "xfs"
    BTRFS = "btrfs"


KNOWN_FILE_SYSTEMS = "ext4, xfs and btrfs"


class ReadyKind(enum.StrEnum):
    """How the readiness request is made."""

    HTTP = "http"
    """A GET request for a path is answered with the expected status."""
    TCP = "tcp"
    """The port accepts a connection."""
    MYSQL = "mysql"
    """The server answers `show databases`, for an account without a password."""
    EXEC = "exec"
    """A command ends with status 0 in the guest."""


class Early(enum.StrEnum):
    """Which machines start early. The values ASK, SEEN and ALWAYS differ only for images with cloud-init."""

    SEEN = "seen"
    """Machines that cloud-init has already configured."""
    ASK = "ask"
    """These, and a machine that brings no user data for cloud-init; init asks for them."""
    ALWAYS = "always"
    NEVER = "never"
    """No machine, because an early start is not faster than the stock boot."""


class Payload(enum.StrEnum):
    """The form of the initramfs (docs/internals/payload.md)."""

    CPIO = "cpio"
    """Not compressed: the kernel only unpacks the archive."""
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SQUASHFS = "squashfs"
    """Not compressed; part B is a file system in one file, which init mounts."""

    @property
    def compresses(self) -> bool:
        """Whether an initramfs of this form consists of compressed streams."""
        return self in (Payload.GZIP, Payload.LZ4, Payload.ZSTD)

    @property
    def tools(self) -> tuple[str, ...]:
        """The host's programs that are needed to make an initramfs of this form."""
        return ("sqfstar",) if self is Payload.SQUASHFS else ()


class KernelOptions(enum.StrEnum):
    """A set of kernel options: no options, the options that builds add by default, or the bench's experimental options.

    No artefact is built with the set ``OURS``, because some of its options are unsuitable for a machine in production.
    """

    STOCK = "stock"
    BOOT = "boot"
    OURS = "ours"


class Target(enum.StrEnum):
    """The kind of platform for which an artefact is made. The target decides which backend starts the artefact."""

    QEMU = "qemu"
    """Kernel, initramfs and root disk as separate files, as QEMU's -kernel needs them."""
    DISK = "disk"
    """A disk with a partition table and a boot loader, which any machine's firmware can start."""


class Firmware(enum.StrEnum):
    """The firmware of a machine that boots from its disk alone."""

    BIOS = "bios"
    UEFI = "uefi"


class DiskFormat(enum.StrEnum):
    """The format of a root disk."""

    RAW = "raw"
    QCOW2 = "qcow2"


class ImageSource(enum.StrEnum):
    """Where the image of a new profile comes from. The value is the option of `build` that gives the same image."""

    PACKAGES = ""
    ROOTFS = "--rootfs"
    DISK = "--image"


class BootMode(enum.StrEnum):
    """The firmware with which a machine of an AMI starts (Amazon EC2 User Guide, "Boot modes")."""

    LEGACY_BIOS = "legacy-bios"
    UEFI = "uefi"
    UEFI_PREFERRED = "uefi-preferred"
    """UEFI where the instance type has it, otherwise a BIOS."""
