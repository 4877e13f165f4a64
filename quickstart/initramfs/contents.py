"""What an initramfs consists of: its regular files and their sizes, of our own archives and of a distribution's."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc_reader import walk_archive


def file_sizes(path: Path) -> Mapping[str, int] | None:
    """Bytes of each regular file by its name, as they are in memory; the last of a name counts, as for the kernel.

    A file with several names has its bytes under one of them. None for an archive that cannot be read whole: compressed by a way
    that we do not read, or damaged.
    """
    try:
        with path.open("rb") as stream:
            found = {each.name: each.size for each, _ in walk_archive(stream) if stat.S_ISREG(each.mode)}
    except ArtefactError:
        return None
    return dict(sorted(found.items()))
