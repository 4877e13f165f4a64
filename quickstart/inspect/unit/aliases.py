"""Find the names of the units in an image's unit directories, and the file that each name leads to."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot

# The limit for a directory of units. Debian's desktop has some 400 units in all directories.
_MAX_UNIT_FILES = 4096
# systemd's FOLLOW_MAX for aliases.
_MAX_HOPS = 8


@dataclass(frozen=True)
class UnitNames:
    """The names in the unit directories. ``there`` has all names. ``by_file`` maps each unit file to the names that
    lead to this file, which are the file's own name and its aliases. ``by_name`` maps each alias to the name that it
    leads to. systemd follows an alias by its name, so the file of the unit may be in another directory than the one in
    which the alias is.
    """

    there: frozenset[str]
    by_file: Mapping[PurePosixPath, Sequence[str]]
    by_name: Mapping[str, str] = field(default_factory=dict)

    def same_as(self, name: str) -> frozenset[str]:
        """The names in the unit directories that lead to the same name as ``name``, which is one of them."""
        last = self._last(name)
        return frozenset(each for each in (*self.by_name, last) if self._last(each) == last)

    def _last(self, name: str) -> str:
        for _ in range(_MAX_HOPS):
            if name not in self.by_name:
                return name
            name = self.by_name[name]
        return name


def unit_names(root: ImageRoot, places: Sequence[PurePosixPath], ending: str = "") -> UnitNames:
    """The names that end with ``ending`` in the unit directories ``places``, which are canonical paths. When several of
    these directories contain the same name, the entry in the first of the directories counts. An alias is a link in a
    unit directory that leads to the unit's file.

    Raises UnsupportedUnitError for a directory with implausibly many names.
    """
    there: set[str] = set()
    by_file: dict[PurePosixPath, list[str]] = {}
    by_name: dict[str, str] = {}
    # Thousands of links may lead to one directory. It is resolved once.
    parents: dict[PurePosixPath, PurePosixPath | None] = {}
    for place in places:
        names = root.names_and_links(place)
        if len(names) > _MAX_UNIT_FILES:
            raise UnsupportedUnitError(f"{place} has {len(names)} names, at most {_MAX_UNIT_FILES} are read")
        of_type = [name for name in names if name.endswith(ending)]
        links = tuple((name, root.link_target(place / name) or "") for name in of_type if names[name])
        targets = dict(links)
        aliased = _aliased(root, place, links, tuple(places))
        for name in of_type:
            # If a name occurs several times, the first entry counts, even if it is a mask.
            if name not in there:
                if names[name] and (target := _named_target(root, place / targets[name], places, parents)):
                    by_name[name] = target
                by_file.setdefault(place / name, []).append(name)
                if name in aliased and aliased[name] != place / name:
                    by_file.setdefault(aliased[name], []).append(name)
            there.add(name)
    return UnitNames(frozenset(there), by_file, by_name)


def _named_target(
    root: ImageRoot,
    path: PurePosixPath,
    places: Sequence[PurePosixPath],
    parents: dict[PurePosixPath, PurePosixPath | None],
) -> str:
    """The name that a link to ``path`` stands for. The result is empty for a mask and for a link that leads out of the
    unit directories (unit_file_resolve_symlink in systemd's src/basic/unit-file.c). ``parents`` keeps the canonical
    paths of the directories that were resolved.
    """
    if path.parent not in parents:
        parents[path.parent] = root.resolve(path.parent).canonical
    parent = parents[path.parent]
    if parent is None or not any(parent.is_relative_to(each) for each in places):
        return ""
    return path.name


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
