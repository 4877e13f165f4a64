"""The data classes for the parts of files that a boot used, and for a profile's table [prefetch], which says which data
to read in advance. This module imports no module of QuickStart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Resident:
    """The parts of a file that were in the guest's page cache at ready.

    ``parts`` are (offset, length) in bytes, in ascending order, in whole pages. The last page may go beyond
    the file's end.
    """

    path: PurePosixPath
    size_bytes: int
    parts: tuple[tuple[int, int], ...]

    @property
    def resident_bytes(self) -> int:
        return sum(length for _, length in self.parts)


@dataclass(frozen=True)
class DataPrefetch:
    """The profile's table [prefetch]. It has globs for data files, and the shell command that makes the first requests
    in the reference boot (the boot that is traced). Without this table in the profile, the globs and the command are
    empty.
    """

    data: tuple[str, ...] = ()
    first_requests: str = ""


NO_DATA = DataPrefetch()
