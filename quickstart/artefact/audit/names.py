"""What the kernel makes of the names of an initramfs' members (pure). It resolves a name as any path, through
links and `..`, so one file can have many names, and a name can lead to another place than it says.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

# A file system takes no longer name; the kernel leaves such a member out.
_MOST_NAME_BYTES = 255


def plain(name: str) -> str:
    """``name`` as a build writes it: relative to the root, without ``.``, ``..`` or empty components. The root
    is the empty string. Links are not followed.
    """
    return os.path.normpath(f"//{name}").lstrip("/")


def is_too_long(name: str) -> bool:
    """Whether ``name`` has a component that is too long for any file system."""
    return any(len(os.fsencode(part)) > _MOST_NAME_BYTES for part in name.split("/"))


def nearest_above(names: Iterable[str], holders: Collection[str]) -> Mapping[str, str]:
    """For each plain name that lies below one of ``holders``: the nearest of them.

    This takes time proportional to the length of all names, but for the sorting: a stranger's names may have
    two thousand components each.
    """
    found: dict[str, str] = {}
    above: list[str] = []
    # With the slash before all other characters, whatever is below a directory follows it.
    for name in sorted({*names, *holders}, key=lambda each: each.replace("/", "\0")):
        while above and not name.startswith(f"{above[-1]}/" if above[-1] else ""):
            above.pop()
        if above and name:
            found[name] = above[-1]
        if name in holders:
            above.append(name)
    return found
