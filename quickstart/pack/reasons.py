"""Collect the reasons for the files of a start set, within a limit. The image and its programs decide by how many names
a file is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from quickstart.errors import StartSetError
from quickstart.model.reasons import Reason, ReasonSource

# The limit for the texts of all reasons. start-set.json is read up to 16 MiB.
_MOST_CHARACTERS = 8 << 20


class Reasons(dict[PurePosixPath, dict[Reason, None]]):
    """The reasons for each file, by the file's canonical path, in the order in which they were found."""

    def __init__(self) -> None:
        super().__init__()
        self._characters = 0

    def give(self, file: PurePosixPath, reason: Reason) -> None:
        """Add a reason for ``file``. Raises StartSetError when all reasons together are too long."""
        reasons = self.setdefault(file, {})
        if reason in reasons:
            return
        reasons[reason] = None
        self._characters += len(reason.detail)
        if self._characters > _MOST_CHARACTERS:
            raise StartSetError(
                f"the reasons for the files of the start set have more than {_MOST_CHARACTERS} characters",
                hint="does a program of the image use paths with very many links?",
            )

    def give_links(self, links: Iterable[PurePosixPath], path: PurePosixPath) -> None:
        """Add a reason for each of ``links``, which are on the way of ``path``."""
        for link in links:
            self.give(link, Reason(ReasonSource.SYMLINK, f"on the way of {path}"))
