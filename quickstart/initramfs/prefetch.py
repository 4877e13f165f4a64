"""The requests that init makes of the root volume in one batch, and part A's files that tell the prefetcher
(prefetch.md); pure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Prefetch:
    """The expected reads from the root volume beside the start set: ``ranges`` of the volume with metadata,
    as (offset, length) in bytes, and ``files`` that are read there.
    """

    ranges: tuple[tuple[int, int], ...]
    files: tuple[PurePosixPath, ...]

    @property
    def ranges_text(self) -> bytes:
        """A line for each range: offset and length in bytes."""
        return b"".join(b"%d %d\n" % each for each in self.ranges)

    @property
    def names_text(self) -> bytes:
        """The names of the files, relative to the root, each ended by a NUL."""
        return b"".join(os.fsencode(str(path))[1:] + b"\0" for path in self.files)


NOTHING_KNOWN = Prefetch((), ())
