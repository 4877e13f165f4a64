"""What the kernel makes of the names and links of an initramfs' members (pure). The names are plain: the reader takes
no archive in which a file has several spellings or lies below a link (initramfs/newc_exact.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from quickstart.inspect.globs import matches

# The kernel follows no more links on the way to a file (path_resolution(7)).
_MOST_LINKS = 40
# Those of a build's links have some ten components together with what they lead through.
_MOST_COMPONENTS = 2_000_000
# The characters of the private files' paths, once for each glob: some seconds. A build's have some thousand.
_MOST_COMPARED = 10_000_000
# A file system takes no longer name; the kernel leaves such a member out.
_MOST_NAME_BYTES = 255


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


def stays(name: str, target: str) -> bool:
    """Whether a link ``name`` to ``target`` is that of a file which stays on the volume (docs/adr/0017-left.md)."""
    return target == f"/{name.removeprefix('fast/')}" != f"/{name}"


class Secrets:
    """The globs by which a manifest names its secrets. A stranger's manifest has a hundred of them, and a
    stranger's archive some ten thousand private files.
    """

    def __init__(self, globs: Collection[str]) -> None:
        self._globs = globs
        self._left = _MOST_COMPARED
        self._last = ("", False)

    @property
    def gave_up(self) -> bool:
        """Whether there were too many paths to compare all with the globs."""
        return self._left < 0

    def name(self, path: str) -> bool:
        """Whether one of the globs matches ``path``. False when there were too many paths to compare before."""
        # Several findings about one file ask one after the other.
        if path != self._last[0]:
            self._left -= len(path) * len(self._globs)
            named = not self.gave_up and any(matches(path, glob) for glob in self._globs)
            self._last = (path, named)
        return self._last[1]


class Links:
    """The links of an archive by plain name, each with its target, as the kernel follows them."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets
        self._left = _MOST_COMPONENTS

    def end(self, name: str) -> str | None:
        """The absolute path that ``name`` leads to, through links in each component. A link to the root volume's file
        of the same path is the end. None when that takes too many links, or when the links of the whole archive have
        too many components to be followed.
        """
        place: list[str] = []
        left, links = name.split("/")[::-1], 0
        while left:
            self._left -= 1
            if self._left < 0:
                return None
            part = left.pop()
            if part == "..":
                del place[-1:]
            elif part not in ("", "."):
                place.append(part)
                path = "/".join(place)
                target = self._targets.get(path)
                if target is not None and (left or not stays(path, target)):
                    links += 1
                    if links > _MOST_LINKS:
                        return None
                    place = [] if target.startswith("/") else place[:-1]
                    left += target.split("/")[::-1]
        return "/" + "/".join(place)
