"""Find the paths that the names and symbolic links of an initramfs's members lead to when the kernel follows the links.

All names of members are plain. A plain name has no empty component, no ``.`` and no ``..``, and no link as a parent
directory. The code in initramfs/newc_exact.py, which reads the initramfs, refuses an initramfs that has a name which is
not plain.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from quickstart.inspect.globs import matches

# The kernel follows no more links on the way to a file (path_resolution(7)).
_MOST_LINKS = 40
# The limit for all paths of an archive's links together. In a build, the path of a link has about ten
# components, with the links on its way.
_MOST_COMPONENTS = 2_000_000
# The characters of the private files' paths, counted once for each glob. This many take some seconds. A
# build has some thousand.
_MOST_COMPARED = 10_000_000
# No file system accepts a longer name. The kernel leaves out such a member.
_MOST_NAME_BYTES = 255


def is_too_long(name: str) -> bool:
    """Whether ``name`` has a component that is too long for any file system."""
    return any(len(os.fsencode(part)) > _MOST_NAME_BYTES for part in name.split("/"))


def nearest_above(names: Iterable[str], holders: Collection[str]) -> Mapping[str, str]:
    """A map from each plain name in ``names`` to the nearest directory above it that is in ``holders``. ``holders`` are
    the plain names of directories. The result leaves out a name that has no such directory above it.

    The function sorts the names. Apart from this sorting, the time that the function takes is proportional to the total
    length of all names. This speed is necessary, because each name in an untrusted archive may have two thousand
    components.
    """
    found: dict[str, str] = {}
    above: list[str] = []
    # When the slash sorts before all other characters, the files below a directory follow the directory.
    for name in sorted({*names, *holders}, key=lambda each: each.replace("/", "\0")):
        while above and not name.startswith(f"{above[-1]}/" if above[-1] else ""):
            above.pop()
        if above and name:
            found[name] = above[-1]
        if name in holders:
            above.append(name)
    return found


def stays(name: str, target: str) -> bool:
    """Whether the link ``name`` with the target ``target`` stands for a left file. A left file is a file of the start
    set that stays on the root volume (docs/adr/0017-left.md).
    """
    return target == f"/{name.removeprefix('fast/')}" != f"/{name}"


class Secrets:
    """The globs by which a manifest names its secrets. The work of comparing paths with globs is limited. Without a
    limit, it could take too long, because an untrusted manifest may have a hundred globs, and an untrusted archive may
    have ten thousand files to compare.
    """

    def __init__(self, globs: Collection[str]) -> None:
        self._globs = globs
        self._left = _MOST_COMPARED
        self._last = ("", False)

    @property
    def gave_up(self) -> bool:
        """Whether the limit was reached, so that some paths were not compared with the globs."""
        return self._left < 0

    def name(self, path: str) -> bool:
        """Whether one of the globs matches ``path``. Once the limit is reached, the result is always False."""
        # Several findings about one file ask one after the other.
        if path != self._last[0]:
            self._left -= len(path) * len(self._globs)
            named = not self.gave_up and any(matches(path, glob) for glob in self._globs)
            self._last = (path, named)
        return self._last[1]


class Links:
    """The symbolic links of an archive. This class follows the links in the same way as the kernel. ``targets`` maps
    the plain name of each link to the link's target.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets
        self._left = _MOST_COMPONENTS

    def end(self, name: str) -> str | None:
        """The absolute path that ``name`` leads to when the links in all its components are followed. A link at the
        end of the path is not followed when the link stands for a left file (see ``stays``).

        The result is None when ``name`` leads through more links than the limit _MOST_LINKS. The result is also None
        when all calls of this method together have met more components of paths than the limit _MOST_COMPONENTS.
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
