"""Find out what is mounted on this host (proc(5), /proc/PID/mountinfo)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def mounted_at(path: Path) -> Iterator[Path]:
    """The mount points at ``path`` and below it, in the order in which they were mounted."""
    top = os.fsencode(path.resolve())
    for fields in _fields():
        point = _unescaped(fields[4])
        if point == top or point.startswith(top + b"/"):
            yield Path(os.fsdecode(point))


def is_on_overlay(path: Path) -> bool:
    """Whether ``path`` is on an overlay file system, as the root of a container usually is."""
    device = path.stat().st_dev
    named = f"{os.major(device)}:{os.minor(device)}".encode()
    # The file system's type is behind the optional fields, which end with a dash.
    return any(fields[2] == named and fields[fields.index(b"-", 6) + 1] == b"overlay" for fields in _fields())


def _fields() -> Iterator[list[bytes]]:
    return (line.split() for line in _MOUNTS.read_bytes().splitlines())


def _unescaped(point: bytes) -> bytes:
    """Decode a field of mountinfo. In such a field, a blank, a tab, a newline or a backslash is written as a
    backslash and three octal digits.
    """
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)
