"""The data class for the parts of a file that a boot used. This module imports no module of QuickStart."""

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
