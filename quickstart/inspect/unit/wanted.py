"""Find the units that each boot of an image asks for, and that the image does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import all_names, assignments, unit_texts
from quickstart.inspect.unit.mounted import needed_paths
from quickstart.inspect.unit.order import DEFAULT_AFTER, UNIT_NAME, Budget, pulled_by_links, started_units
from quickstart.inspect.unit.words import names_in

_FOR_MOUNTS = ("RequiresMountsFor", "WantsMountsFor")
_TEMPORARY = (PurePosixPath("/tmp"), PurePosixPath("/var/tmp"))  # noqa: S108
# unit_name_escape() in systemd's src/basic/unit-name.c.
_ESCAPED = re.compile(rb"[^A-Za-z0-9:_.]")


def wanted_units(root: ImageRoot, unit: str) -> set[str]:
    """The units without an entry in the unit directories that a unit of each boot names in Wants= and the like, and the
    mounts of the paths that one needs. A package may bring such a unit later, and systemd then starts it.
    """
    found: set[str] = set()
    text_left = Budget()
    for name in sorted(started_units(root, unit, pulled_by_links(root))):
        if not UNIT_NAME.fullmatch(name):
            continue
        try:
            texts = unit_texts(root, name)
        except (StartSetError, UnsupportedUnitError):
            found.add(name)
            continue
        text_left.take(name, texts)
        for key, value in assignments(texts, "[Unit]"):
            if key in _FOR_MOUNTS:
                found |= {each for path in names_in(name, value) for each in _mounts_of(PurePosixPath(path))}
    for path in (*_needed(root, unit), *_TEMPORARY):
        found |= set(_mounts_of(path))
    # Devices and slices need no unit file, and each system has the targets. An entry that is there is a fact, or was judged.
    there = all_names(root).there
    found -= {"default.target", *DEFAULT_AFTER, *there}
    return {
        name
        for name in found
        if UNIT_NAME.fullmatch(name)
        and not name.endswith((".device", ".slice"))
        and f"{name.partition('@')[0]}@.{name.rpartition('.')[2]}" not in there
    }


def _needed(root: ImageRoot, unit: str) -> tuple[PurePosixPath, ...]:
    try:
        return tuple(needed_paths(root, unit))
    except UnsupportedUnitError:
        return ()


def _mounts_of(path: PurePosixPath) -> Iterator[str]:
    """The names of the mounts of ``path`` and of the directories above it, except for the top directory."""
    parts = [_escaped(part) for part in path.parts[1:]]
    if path.is_absolute() and ".." not in path.parts:
        yield from (f"{'-'.join(parts[: count + 1])}.mount" for count in range(len(parts)))


def _escaped(part: str) -> str:
    raw = part.encode(errors="surrogateescape")
    plain = _ESCAPED.sub(lambda match: b"\\x%02x" % match[0][0], raw).decode()
    return f"\\x2e{plain[1:]}" if plain.startswith(".") else plain
