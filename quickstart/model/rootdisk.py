"""The data class for the root disk from which a machine of the reference image boots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quickstart.model.superblock import Superblock


def subvolume(flags: str) -> str:
    """The subvolume that ``flags`` name, a word `rootflags=` of the kernel's command line (btrfs(5), subvol=), or an empty
    string.
    """
    options = flags.removeprefix("rootflags=").split(",")
    named = [each.removeprefix("subvol=").strip("/") for each in options if each.startswith("subvol=")]
    return named[-1] if named else ""


@dataclass(frozen=True, kw_only=True)
class RootDisk:
    """The tree of the reference image as a file system image, raw and without a partition table.

    With ``whole``, the file system is a partition of the disk ``whole``, from byte ``at_bytes`` on, and ``path`` is a
    copy of the partition. ``archive`` is a tar archive of the partition's files, or None for ext4. ``boot`` is a copy of
    the partition that the system mounts on /boot, or None when /boot is a directory of the root file system. ``options``
    are the words that the disk's own boot loader gives to the kernel, except the words that name the root volume or a
    console.
    """

    path: Path
    size_bytes: int
    superblock: Superblock
    whole: Path | None = None
    at_bytes: int = 0
    boot: Path | None = None
    archive: Path | None = None
    options: tuple[str, ...] = ()

    @property
    def root_flags(self) -> str:
        """The word with which the disk's own boot loader gives options for the mount of the root volume, or an empty
        string.
        """
        return next((word for word in reversed(self.options) if word.startswith("rootflags=")), "")

    @property
    def attached(self) -> Path:
        """The image file that a machine gets as its disk."""
        return self.whole or self.path
