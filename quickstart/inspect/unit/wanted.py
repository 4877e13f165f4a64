"""Find the units that each boot of an image asks for, and that the image does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, unit_texts
from quickstart.inspect.unit.order import DEFAULT_AFTER, UNIT_NAME, Budget, pulled_by_links, started_units
from quickstart.inspect.unit.words import names_in


def wanted_units(root: ImageRoot, unit: str) -> set[str]:
    """The units without a unit file that a unit of each boot names in Wants= and the like, and the mounts of the paths
    that one needs (RequiresMountsFor=). A package may bring such a unit later, and systemd then starts it.
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
            if key == "RequiresMountsFor":
                found |= {each for path in names_in(name, value) for each in _mounts_of(path)}
    # Devices and slices need no unit file. Each system has the targets.
    found -= {"default.target", *DEFAULT_AFTER}
    return {name for name in found if UNIT_NAME.fullmatch(name) and not name.endswith((".device", ".slice"))}


def _mounts_of(path: str) -> Iterator[str]:
    """The names of the mounts of a plain ``path`` and of the directories above it, except for the top directory."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") and all(re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9_.:]*", part) for part in parts):
        yield from (f"{'-'.join(parts[: count + 1])}.mount" for count in range(len(parts)))
