"""The prefetch plan, which lists the reads that init requests from the root volume in one batch, and the
files in part A that have this list (prefetch.md). The functions are pure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Prefetch:
    """The reads that are expected from the root volume in addition to the start set. ``ranges`` are ranges of
    the volume with metadata, as (offset, length) in bytes. ``files`` are files that are read from the volume.
    """

    ranges: tuple[tuple[int, int], ...]
    files: tuple[PurePosixPath, ...]

    @property
    def ranges_text(self) -> bytes:
        """One line for each range: its offset and length in bytes."""
        return b"".join(b"%d %d\n" % each for each in self.ranges)

    @property
    def names_text(self) -> bytes:
        """The names of the files, relative to the root. Each name ends with a NUL."""
        return b"".join(os.fsencode(str(path))[1:] + b"\0" for path in self.files)


NOTHING_KNOWN = Prefetch((), ())
