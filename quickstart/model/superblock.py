"""The data class for what QuickStart reads of an ext4 superblock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Superblock:
    """Facts from an ext4 superblock (kernel: Documentation/filesystems/ext4, "Super Block"). ``created_s`` is the time
    of mkfs, by which init knows its volume. Earlier manifests do not have it, so it does not count in a comparison.
    """

    uuid: str
    mount_count: int
    write_time_s: int
    clean: bool
    needs_recovery: bool
    has_errors: bool
    created_s: int = field(default=0, compare=False)
