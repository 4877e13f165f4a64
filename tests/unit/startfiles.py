"""A file of a start set, of which a test says what matters to it."""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath
from typing import Any

from quickstart.model import FileKind, StartFile

_PLAIN = StartFile(
    path=PurePosixPath("/"),
    kind=FileKind.FILE,
    mode=0o100644,
    size_bytes=1,
    mtime_s=0,
    ctime_s=0,
    target="",
    interpreter="",
    reasons=(),
)


def start_file(path: str | PurePosixPath, **changes: Any) -> StartFile:
    """A regular file of mode 0644 with one byte and no reasons, but for ``changes``."""
    return dataclasses.replace(_PLAIN, path=PurePosixPath(path), **changes)
