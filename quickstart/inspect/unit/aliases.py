"""Find the names of the units in an image's unit directories, and the file that each name leads to."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot

# The limit for a directory of units. Debian's desktop has some 400 units in all directories.
_MAX_UNIT_FILES = 4096


@dataclass(frozen=True)
class UnitNames:
    """The names in the unit directories. ``there`` has all names. ``by_file`` maps each unit file to the names that
    lead to this file, which are the file's own name and its aliases.
    """

    there: frozenset[str]
    by_file: Mapping[PurePosixPath, Sequence[str]]


def unit_names(root: ImageRoot, places: Sequence[PurePosixPath], ending: str = "") -> UnitNames:
    """The names that end with ``ending`` in the unit directories ``places``, which are canonical paths. When several of
    these directories contain the same name, the entry in the first of the directories counts. An alias is a link in a
    unit directory that leads to the unit's file.

    Raises UnsupportedUnitError for a directory with implausibly many names.
    """
    there: set[str] = set()
    by_file: dict[PurePosixPath, list[str]] = {}
    for place in places:
        names = root.names_and_links(place)
        if len(names) > _MAX_UNIT_FILES:
            raise UnsupportedUnitError(f"{place} has {len(names)} names, at most {_MAX_UNIT_FILES} are read")
        of_type = [name for name in names if name.endswith(ending)]
        links = tuple((name, root.link_target(place / name) or "") for name in of_type if names[name])
        aliased = _aliased(root, place, links, tuple(places))
        for name in of_type:
            # If a name occurs several times, the first entry counts, even if it is a mask.
            if name not in there:
                by_file.setdefault(place / name, []).append(name)
                if name in aliased and aliased[name] != place / name:
                    by_file.setdefault(aliased[name], []).append(name)
            there.add(name)
    return UnitNames(frozenset(there), by_file)


@functools.lru_cache(maxsize=64)
def _aliased(
    root: ImageRoot,
    place: PurePosixPath,
    links: tuple[tuple[str, str], ...],
    places: tuple[PurePosixPath, ...],
) -> Mapping[str, PurePosixPath]:
    """A map from the name of each alias to the file that the alias leads to. ``links`` are the links in the directory
    ``place``, each as a pair of its name and its target. A link is an alias when it leads to a file in one of the
    directories ``places``. It is also an alias when the way to its target passes through another link in these
    directories. Any other link, such as a link that `systemctl link` has made, is a separate unit and not an alias. As
    in systemd, a circular link is not an alias.

    The result is cached, because a build asks for the names of each unit of an image many times.
    """
    found: dict[str, PurePosixPath] = {}
    for name, _ in links:
        try:
            resolution = root.resolve(place / name)
        except StartSetError:
            continue
        way = (*resolution.links, resolution.canonical)
        if resolution.canonical is not None and any(
            each is not None and each != place / name and each.parent in places for each in way
        ):
            found[name] = resolution.canonical
    return found
