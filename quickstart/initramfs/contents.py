"""List the regular files of an initramfs (QuickStart's or a distribution's) with their sizes."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc_reader import walk_archive


def file_sizes(path: Path) -> Mapping[str, int] | None:
    """The size in bytes of each regular file, by name. When several members of the archive have the same name, the
    last member counts, because the kernel also keeps only the last member.

    A file with several hard links has its size under one of its names, and the size 0 under its other names. The
    result is None for an initramfs that cannot be read completely, because it is damaged or has an unknown
    compression.
    """
    try:
        with path.open("rb") as stream:
            found = {each.name: each.size for each, _ in walk_archive(stream) if stat.S_ISREG(each.mode)}
    except ArtefactError:
        return None
    return dict(sorted(found.items()))
