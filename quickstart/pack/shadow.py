"""Keep a library out of /fast when the loader would load it in place of another library (pure, apart from reading the
image). /fast is the directory in memory with the packed files.

LD_LIBRARY_PATH leads to /fast, and the loader searches the directories of LD_LIBRARY_PATH before DT_RUNPATH and before
its default directories (ld.so(8)). So a library in /fast hides all other libraries of the same name. If the image has
another library of this name where the loader may look for it, no library of this name may be in /fast. Even a link to
the volume's library may not be there. The name must be missing in /fast, so that the loader continues its search and
finds the same library as in a stock boot. The prefetcher requests these libraries from the volume.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Self

from quickstart.errors import StartSetError
from quickstart.initramfs.serving import fast_library_places, followed, is_library, links_of
from quickstart.inspect.elf import HWCAPS, own_directories
from quickstart.inspect.elf_file import ElfFacts, read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.model import Exclusion, FileKind, Op, StartFile, StartSet, Trace
from quickstart.pack.beside import tree_of
from quickstart.pack.leave import left_on_volume

_LOCAL = PurePosixPath("/usr/local")
_FOREIGN = (PurePosixPath("/opt"), _LOCAL)
# Nothing below these is a file of the image.
_VOLATILE = frozenset({"proc", "sys", "dev", "run"})
_ORIGIN = ("$ORIGIN", "${ORIGIN}")
# ld.so(8): in each directory the loader prefers a variant for the CPU, DIRECTORY/glibc-hwcaps/LEVEL/NAME.
_VARIANTS = "glibc-hwcaps"

ReadFacts = Callable[[PurePosixPath], ElfFacts | None]
Searched = Mapping[PurePosixPath, PurePosixPath]


@dataclass(frozen=True, kw_only=True)
class _Library:
    """A library of the start set. ``paths`` has the library's own path and its other hard links. ``entries`` has these
    paths and all links of the start set that lead to the library. ``sought`` are the names by which the loader would
    find the library in /fast.
    """

    paths: frozenset[PurePosixPath]
    entries: frozenset[PurePosixPath]
    sought: frozenset[str]
    facts: ElfFacts


@dataclass(frozen=True)
class _Image:
    """The image, with a cached function for the ELF facts of its files, and the loader's default directories."""

    root: ImageRoot
    facts: ReadFacts
    default: tuple[PurePosixPath, ...]

    @classmethod
    def of(cls, root: ImageRoot) -> Self:
        default = (root.resolve(path).canonical for path in library_directories(root))
        found = tuple(dict.fromkeys(path for path in default if path is not None))
        return cls(root, functools.cache(functools.partial(_facts, root)), found)

    def resolved(self, path: PurePosixPath) -> PurePosixPath | None:
        return _resolved(self.root, path)


def executed(traces: Sequence[Trace], root: ImageRoot) -> frozenset[PurePosixPath]:
    """The programs that the traced processes executed, by canonical path. For a program that the image does
    not have, the result has the path that was executed.
    """
    paths = {
        path
        for trace in traces
        for event in trace.events
        if event.op is Op.EXEC and event.error is None
        for path in (event.path, event.real)
        if path is not None
    }
    return frozenset(root.resolve(path).canonical or path for path in paths)


def searched(start_set: StartSet, programs: Collection[PurePosixPath], root: ImageRoot) -> Searched:
    """The directories in DT_RPATH and DT_RUNPATH of all programs and libraries that may run with the unit's
    environment. Each directory is mapped to one of the programs and libraries that name the directory. The path of the
    directory has the spelling that this program or library uses.

    The programs and libraries that may run with the unit's environment are those of the start set, those that a rule
    excludes, and the executed ``programs``. In directory trees outside of the distribution's directories, such as
    /opt/app or /usr/local, all other programs and libraries of the same trees also count, because they may run after
    ready.
    """
    image = _Image.of(root)
    found: dict[PurePosixPath, PurePosixPath] = {}
    for path in _objects(start_set, programs, root):
        canonical = image.resolved(path)
        facts = image.facts(canonical) if canonical is not None else None
        for directory in own_directories(facts, path) if facts else ():
            found.setdefault(directory, path)
    return found


def without_shadowing(start_set: StartSet, root: ImageRoot, directories: Searched) -> StartSet:
    """Return ``start_set`` without the libraries that would hide another library of the same name. ``directories`` is
    the result of ``searched``.

    Some programs and libraries look for libraries beside themselves ($ORIGIN). If the directory of such a program or
    library has a library that is not in the start set, the program or library must not be used from /fast. In this
    case, the function leaves the program on the volume, or excludes the library.
    """
    image = _Image.of(root)
    libraries = tuple(_libraries(start_set, image))
    by_name: dict[str, list[PurePosixPath]] = {}
    for path in sorted(path for each in libraries for path in each.entries):
        by_name.setdefault(path.name, []).append(path)
    places: dict[PurePosixPath, str] = {
        place: f", in the DT_RUNPATH of {program}"
        for directory, program in directories.items()
        if (place := image.resolved(directory)) is not None
    }
    rules = {
        path: f"same name: {why}"
        for each in libraries
        if (why := _hides(each, image, places, by_name))
        for path in each.entries
    }
    found = _without(start_set, rules)
    while more := dict(_misplaced(found, libraries, image)):
        found = _without(found, more)
    return found


def _objects(
    start_set: StartSet, programs: Collection[PurePosixPath], root: ImageRoot
) -> Iterator[PurePosixPath]:
    """The paths of all files that may be programs or libraries, and of links to these files."""
    own = {file.path for file in start_set.files if file.kind is not FileKind.DIRECTORY}
    own |= {*programs, *(each.path for each in start_set.excluded)}
    trees = {tree for path in own if (tree := tree_of(path)) is not None and _is_foreign(tree)}
    # A program there may be executed after ready, in a tree that nothing has touched.
    trees |= {tree for tree in _FOREIGN if root.resolve(tree).canonical == tree and root.host(tree).is_dir()}
    beside = (path for tree in trees if _resolved(root, tree) == tree for path in root.below(tree))
    yield from sorted(own | {path for path in beside if _is_code(root, path)})


def _is_foreign(tree: PurePosixPath) -> bool:
    """Whether ``tree`` (for example, /opt/app) is outside of the directories that the distribution's packages use."""
    return tree.parts[1] not in (*_VOLATILE, "etc", "usr") or _LOCAL in (tree, *tree.parents)


def _is_code(root: ImageRoot, path: PurePosixPath) -> bool:
    return is_library(path) or bool(root.host(path).lstat().st_mode & 0o111)


def _resolved(root: ImageRoot, path: PurePosixPath) -> PurePosixPath | None:
    """The canonical path of ``path``. The result is None for a missing file. The result is also None for a loop of
    links, because no loader follows such a loop.
    """
    try:
        return root.resolve(path).canonical
    except StartSetError:
        return None


def _facts(root: ImageRoot, path: PurePosixPath) -> ElfFacts | None:
    """The ELF facts of a file. The result is None for a file that is not ELF. The result is also None for a damaged
    file, because no loader loads such a file. The start set has no damaged files.
    """
    try:
        return read_elf(root.host(path))
    except StartSetError:
        return None


def _libraries(start_set: StartSet, image: _Image) -> Iterator[_Library]:
    """The libraries of the start set, packed or not. The result does not have the ELF interpreter, because no process
    searches for its ELF interpreter. Each process already has its ELF interpreter when the process starts.
    """
    interpreters = {
        image.resolved(PurePosixPath(file.interpreter)) for file in start_set.files if file.interpreter
    }
    places = {_plain(place) for place in fast_library_places(start_set)}
    links = links_of(start_set)
    leading: dict[PurePosixPath | None, set[PurePosixPath]] = {}
    for link in links:
        leading.setdefault(followed(link, links), set()).add(link)
    same: dict[PurePosixPath, set[PurePosixPath]] = {}
    for file in start_set.files:
        if file.kind in (FileKind.FILE, FileKind.LEFT) and not file.target:
            same.setdefault(file.hard_link_to or file.path, set()).add(file.path)
    for first, paths in same.items():
        entries = paths.union(*(leading.get(path, ()) for path in paths))
        sought = {path.name for path in entries if is_library(path) and _plain(path.parent) in places}
        facts = (
            image.facts(first) if any(map(is_library, entries)) and interpreters.isdisjoint(paths) else None
        )
        if facts is not None:
            names = sought | ({facts.soname} if sought and facts.soname else set())
            yield _Library(
                paths=frozenset(paths), entries=frozenset(entries), sought=frozenset(names), facts=facts
            )


def _plain(directory: PurePosixPath) -> PurePosixPath:
    """Map the directory of a glibc-hwcaps variant (ld.so(8)) to the directory of the library itself. For example, map
    /usr/lib/glibc-hwcaps/x86-64-v3 to /usr/lib. Return any other directory unchanged.
    """
    return directory.parent.parent if directory.parent.name == _VARIANTS else directory


def _hides(
    library: _Library,
    image: _Image,
    places: Mapping[PurePosixPath, str],
    by_name: Mapping[str, Sequence[PurePosixPath]],
) -> str | None:
    """A text for people that names the library that ``library`` would hide if ``library`` were in /fast. The result is
    None when ``library`` would hide no other library.

    ``places`` maps each directory in DT_RUNPATH to the end of the text, which names a program that has this directory
    in its DT_RUNPATH. ``by_name`` has the libraries of the start set and the links to these libraries.
    """
    # Variants of a library are one library to the loader.
    own = {(_plain(path.parent), path.name) for path in library.entries}
    machine = library.facts.elf_class, library.facts.machine

    def loaded(path: PurePosixPath) -> PurePosixPath | None:
        # The loader passes by a library of another machine.
        canonical = image.resolved(path)
        facts = image.facts(canonical) if canonical is not None else None
        return canonical if facts is not None and (facts.elf_class, facts.machine) == machine else None

    def candidates(name: str) -> Iterator[tuple[PurePosixPath, str]]:
        for place, where in places.items():
            yield from ((path, where) for path in (place / name, *_variants(image, place, name)))
        default = (place / name for place in image.default)
        first = next((path for path in default if loaded(path) is not None), None)
        yield from [(first, ", and the loader finds it by default")] if first is not None else []
        yield from ((path, "") for path in by_name.get(name, ()))

    for name in sorted(library.sought):
        for path, where in candidates(name):
            canonical = loaded(path)
            if canonical is None or canonical in library.paths:
                continue
            if own.isdisjoint((_plain(each.parent), each.name) for each in (path, canonical)):
                return f"{path} is another library of this name{where}"
    return None


def _variants(image: _Image, place: PurePosixPath, name: str) -> Iterator[PurePosixPath]:
    if image.resolved(place / _VARIANTS) is not None:
        yield from (place / _VARIANTS / level / name for level in HWCAPS)


def _misplaced(
    start_set: StartSet, libraries: Collection[_Library], image: _Image
) -> Iterator[tuple[PurePosixPath, str]]:
    """The programs and libraries whose $ORIGIN must not be a directory below /fast, each with the reason."""
    there = {file.path for file in start_set.files}

    @functools.cache
    def lacking(directory: PurePosixPath) -> PurePosixPath | None:
        place = image.resolved(directory)
        if place is None or place in image.default or not image.root.host(place).is_dir():
            return None
        names = (place / name for name in image.root.names(place))
        return next((path for path in names if is_library(path) and path not in there), None)

    def lacked(paths: Collection[PurePosixPath], facts: ElfFacts | None) -> PurePosixPath | None:
        directories = (each for path in sorted(paths) for each in _beside(facts, path))
        return next((lost for each in directories if (lost := lacking(each)) is not None), None)

    for file in start_set.files:
        is_program = file.kind is FileKind.FILE and not is_library(file.path) and file.mode & 0o111
        if is_program and (lost := lacked((file.path,), image.facts(file.path))):
            yield file.path, f"looks for {lost} beside itself"
    for each in libraries:
        if each.sought and each.entries & there and (lost := lacked(each.entries, each.facts)):
            yield from ((path, f"origin: it looks for {lost} beside itself") for path in each.entries)


def _beside(facts: ElfFacts | None, opened: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """The directories that a program or library names by $ORIGIN in DT_RPATH or DT_RUNPATH. ``opened`` is the path by
    which the program or library was opened.
    """
    if facts is None:
        return ()
    rpath, runpath = (
        tuple(entry for entry in entries if any(word in entry for word in _ORIGIN))
        for entries in (facts.rpath, facts.runpath)
    )
    return own_directories(replace(facts, rpath=rpath, runpath=runpath), opened)


def _without(start_set: StartSet, rules: Mapping[PurePosixPath, str]) -> StartSet:
    """Return ``start_set`` with the libraries and links in ``rules`` excluded, and with the programs in ``rules`` left
    on the volume. The values of ``rules`` are the reasons.
    """
    by_first = {
        file.hard_link_to or file.path: rules[file.path] for file in start_set.files if file.path in rules
    }
    files: list[StartFile] = []
    excluded = {each.path: each for each in start_set.excluded}
    for file in start_set.files:
        why = by_first.get(file.hard_link_to or file.path)
        if why is None:
            files.append(file)
        elif is_library(file.path) or file.target:
            excluded[file.path] = Exclusion(file.path, why)
        else:
            files.append(left_on_volume(file, why))
    holders = {
        parent for file in files if file.kind is not FileKind.DIRECTORY for parent in file.path.parents
    }
    kept = (file for file in files if file.kind is not FileKind.DIRECTORY or file.path in holders)
    return replace(start_set, files=tuple(kept), excluded=tuple(excluded[path] for path in sorted(excluded)))
