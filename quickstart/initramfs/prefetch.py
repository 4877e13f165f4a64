"""Define the prefetch plan, and write it as texts for the files in part A of the initramfs
(docs/internals/prefetch.md). The plan lists the reads that init requests from the root volume in one batch. The
functions are pure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Prefetch:
    """The prefetch plan, which lists the reads of the root volume that init requests in advance.

    ``ranges`` are ranges of the volume that contain metadata of the file system, each as (offset, length) in bytes.
    ``files`` are the files that init requests completely. ``parts`` are the requested parts of larger files, each as
    (file, offset, length) in bytes. The parts of one file are next to each other in this list. ``later`` has the reads
    that init requests only when the application is ready.
    """

    ranges: tuple[tuple[int, int], ...]
    files: tuple[PurePosixPath, ...]
    parts: tuple[tuple[PurePosixPath, int, int], ...] = ()
    later: Prefetch | None = None

    @property
    def ranges_text(self) -> bytes:
        """One line for each range of the volume. The line has the range's offset and length in bytes."""
        return b"".join(b"%d %d\n" % each for each in self.ranges)

    @property
    def names_text(self) -> bytes:
        """The names of the files that init requests completely, relative to the root. Each name ends with a NUL."""
        return b"".join(os.fsencode(str(path))[1:] + b"\0" for path in self.files)

    @property
    def parts_text(self) -> bytes:
        """One record for each part of a file. A record has the part's offset, the part's length, and the name of the
        file. The two numbers are in bytes. The name is relative to the root and ends with a NUL.
        """
        return b"".join(
            b"%d %d %s\0" % (offset, length, os.fsencode(str(path))[1:])
            for path, offset, length in self.parts
        )


NOTHING_KNOWN = Prefetch((), ())
