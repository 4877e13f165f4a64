"""The directory where targets put the files of an input: a tree of a few names, made again for each input."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

# A line of an input that begins so names the file that the lines after it are of.
MARK = b"%%% "


def parts_of(data: bytes, names: Sequence[str]) -> Mapping[str, bytes]:
    """The files in an input by their names; what has another name is none. What comes before the first name is of the first."""
    found: dict[str, bytes] = {}
    name = names[0]
    for number, piece in enumerate((b"\n" + data).split(b"\n" + MARK)):
        if number:
            head, _, piece = piece.partition(b"\n")
            name = head.decode(errors="replace")
        else:
            piece = piece[1:]
        if name in names and (piece or number):
            found[name] = piece
    return found


def joined(files: Mapping[str, bytes]) -> bytes:
    """An input that has these files."""
    return b"\n".join(MARK + name.encode() + b"\n" + content for name, content in files.items())


def put(base: Path, files: Mapping[str, bytes], names: Sequence[str]) -> Path:
    """Have of ``names`` below ``base`` just these files; returns ``base``."""
    for name in names:
        path = base / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        else:
            path.unlink(missing_ok=True)
    return base


def put_nodes(base: Path, data: bytes) -> Path:
    """A tree that ``data`` describes line by line: `d PATH`, `f PATH`, `l PATH TARGET`; at most 64 nodes. Returns its root.

    Paths stay below the root and links are made, never followed.
    """
    top = base / "nodes"
    _remove(top)
    top.mkdir()
    for line in data.split(b"\n")[:64]:
        kind, _, rest = line.partition(b" ")
        name, _, target = rest.partition(b" ")
        parts = [
            part for part in PurePosixPath("/", os.fsdecode(name).replace("\0", "")).parts[1:] if part != ".."
        ]
        if not parts or len(parts) > 8 or any(len(os.fsencode(part)) > 255 for part in parts):
            continue
        path = top.joinpath(*parts)
        # From the top down: behind a link there may be anything.
        above = [each for each in (*reversed(path.parents), path) if each.is_relative_to(top)]
        if any(each.is_symlink() or each.is_file() for each in above):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == b"d":
            path.mkdir(exist_ok=True)
        elif kind == b"f" and not path.exists():
            path.touch()
        elif kind == b"l" and not path.exists() and target and b"\0" not in target and len(target) < 4096:
            path.symlink_to(os.fsdecode(target))
    return top


def _remove(path: Path) -> None:
    if not path.is_symlink() and path.is_dir():
        for each in path.iterdir():
            _remove(each)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
