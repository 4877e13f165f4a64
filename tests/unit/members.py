"""Members of a stranger's archive, and the stream in which they come home."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from quickstart.inspect.foreign.home import Limits, NotHome, bring_home
from quickstart.inspect.foreign.members import Kind, Member, read_members, write_end, write_member

BLOCK = 4096
ROOM = Limits(data_bytes=10 * BLOCK, members=10, file_bytes=20 * BLOCK)


def mine(path: str, kind: Kind, **fields: Any) -> Member:
    """A member that whoever runs the tests may make."""
    return Member(path=path, kind=kind, **{"uid": os.getuid(), "gid": os.getgid(), "mode": 0o755, **fields})


def stream_of(*members: tuple[Member, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    for member, data in members:
        write_member(out, member, iter([data]))
    write_end(out)
    out.seek(0)
    return out


def file(path: str, data: bytes = b"x") -> tuple[Member, bytes]:
    whole = ((0, len(data)),)
    return mine(path, Kind.FILE, size_bytes=len(data), segments=whole), data


def pieces(count: int) -> tuple[Member, bytes]:
    """A sparse file with so many pieces of one byte, each in a block of its own."""
    segments = tuple((number * BLOCK, 1) for number in range(count))
    return mine("holes", Kind.FILE, size_bytes=count * BLOCK, segments=segments), b"x" * count


def home(tree: Path, *members: tuple[Member, bytes], limits: Limits = ROOM) -> NotHome:
    return bring_home(read_members(stream_of(*members), "it"), tree, limits, "it")
