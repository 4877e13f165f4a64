"""The contents of an initramfs (ours or a distribution's): its regular files and their sizes."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from quickstart.errors import ArtefactError
from quickstart.initramfs.newc_reader import walk_archive


def file_sizes(path: Path) -> Mapping[str, int] | None:
    """The size of each regular file, by name. When a name occurs several times, the last one is used, as by
    the kernel.

    A file with several names has its bytes under one of them. None for an archive that cannot be read
    completely, because it is damaged or compressed in an unknown form.
    """
    try:
        with path.open("rb") as stream:
            found = {each.name: each.size for each, _ in walk_archive(stream) if stat.S_ISREG(each.mode)}
    except ArtefactError:
        return None
    return dict(sorted(found.items()))
