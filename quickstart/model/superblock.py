"""The data class for what QuickStart reads of a root volume's superblock."""

from __future__ import annotations

from dataclasses import dataclass, field

from quickstart.model.words import FileSystem


@dataclass(frozen=True, kw_only=True)
class Superblock:
    """Facts from the superblock of a root volume (image/superblock.py). ``created_s`` is the time of mkfs, by which init
    knows its volume. Earlier manifests do not have it, so it does not count in a comparison.

    Only ext4 counts its mounts, and has the times of its creation and of its last write, and an error flag. On XFS and
    btrfs, these fields are 0 and False, and ``state`` is a hash of what every use of the volume changes: XFS's log, or
    btrfs's superblock. ``state`` is empty for ext4.
    """

    uuid: str
    mount_count: int
    write_time_s: int
    clean: bool
    needs_recovery: bool
    has_errors: bool
    created_s: int = field(default=0, compare=False)
    file_system: FileSystem = FileSystem.EXT4
    state: str = ""
