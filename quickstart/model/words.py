"""Words that profiles, manifests and command lines choose from, as enums whose values are those words (StrEnum).

A member equals its word, and is written as that to JSON and TOML. Imports nothing of ours.
"""

from __future__ import annotations

import enum


class ReadyKind(enum.StrEnum):
    """How the readiness request is made."""

    HTTP = "http"
    """GET of a path answers with a status."""
    TCP = "tcp"
    """The port accepts a connection."""
    MYSQL = "mysql"
    """`show databases` of an account without a password is answered."""
    EXEC = "exec"
    """A command ends with status 0 in the guest."""


class Early(enum.StrEnum):
    """Which machines with cloud-init start early."""

    SEEN = "seen"
    """Those that cloud-init has been through before."""
    ALWAYS = "always"


class Payload(enum.StrEnum):
    """The form of the initramfs (docs/internals/payload.md)."""

    CPIO = "cpio"
    """Plain: nothing to be unpacked but the archive itself."""
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SQUASHFS = "squashfs"
    """Plain, with part B as a file system in one file, which init mounts in place of having it unpacked."""

    @property
    def compresses(self) -> bool:
        """Whether the parts are compressed streams."""
        return self in (Payload.GZIP, Payload.LZ4, Payload.ZSTD)

    @property
    def tools(self) -> tuple[str, ...]:
        """The host's tools that make it."""
        return ("sqfstar",) if self is Payload.SQUASHFS else ()


class KernelOptions(enum.StrEnum):
    """A set of kernel options: none, those that every build puts in, or the bench's experimental ones.

    No artefact is built with ``OURS``: some of these should not last on a machine in production.
    """

    STOCK = "stock"
    BOOT = "boot"
    OURS = "ours"


class Target(enum.StrEnum):
    """What an artefact is made for, and so which backend starts it."""

    QEMU = "qemu"
    """Kernel, initramfs and root disk apart, as QEMU's -kernel takes them."""


class DiskFormat(enum.StrEnum):
    """The format of a root disk."""

    RAW = "raw"
    QCOW2 = "qcow2"
