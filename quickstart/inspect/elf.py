"""Find the ELF closure of a program or library in an image. The closure consists of the interpreter and all libraries
that ld.so loads for this program or library.

The rules are those of ld.so(8). This module executes nothing from the image. The module ignores LD_LIBRARY_PATH,
LD_PRELOAD and relative search paths, because the image alone does not determine what they mean.
"""

from __future__ import annotations

import functools
import itertools
import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from quickstart.errors import StartSetError
from quickstart.inspect.elf_file import ElfFacts, read_elf
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories

# ld.so(8), "Hardware capabilities": the guest's CPU decides which of these ld.so uses.
HWCAPS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")

_LIB = {32: ("lib/i386-linux-gnu", "lib"), 64: ("lib/x86_64-linux-gnu", "lib64", "lib")}
# Up to glibc 2.36 $PLATFORM depends on the CPU, so every value counts.
_PLATFORM = ("haswell", "xeon_phi", "x86_64")
# The limit for looked-up paths in one closure. (All programs of an image take 50 000.)
_MOST_LOOKUPS = 1 << 19

ReadElf = Callable[[Path], ElfFacts | None]
Kind = Literal["needed", "interpreter", "dlopen"]


@dataclass(frozen=True, kw_only=True)
class ElfDependency:
    """A file that ld.so maps because another file needs this file. ``path`` is the file's canonical path. ``links``
    are the symlinks that ld.so follows to reach this path.

    ``name`` is the requested soname, or ``PT_INTERP`` for the interpreter. ``needed_by`` is the first file that
    requests the dependency.
    """

    path: PurePosixPath
    links: tuple[PurePosixPath, ...]
    needed_by: PurePosixPath
    name: str
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class _Object:
    """An ELF file as one process maps it. ``opened`` is the path by which ld.so opened the file. The parent directory
    of this path is $ORIGIN. ``loader`` is the object that needs this object. ``loader`` is None for a start, which is
    a file for which ``closure`` was called.
    """

    path: PurePosixPath
    links: tuple[PurePosixPath, ...]
    opened: PurePosixPath
    facts: ElfFacts
    loader: _Object | None


@dataclass(frozen=True)
class _Request:
    """A request of the object ``loader`` for a library or an interpreter. ``names`` are alternative names. The search
    uses the first of these names under which it finds a file.
    """

    loader: _Object
    names: tuple[str, ...]
    kind: Kind


def closure(
    root: ImageRoot, starts: Iterable[PurePosixPath], read: ReadElf = read_elf
) -> tuple[ElfDependency, ...]:
    """The files that ld.so loads for each of ``starts``. A start is a program, or a library that a program opens. A
    start that is not an ELF file adds nothing.

    The function treats each start as a process of its own, which loads its libraries breadth first. The function sorts
    the starts by path, so the order of ``starts`` does not matter. A file that is found through different links gives
    one dependency for each chain of links. The result has every glibc-hwcaps variant of a library in addition to the
    plain library. A start without PT_INTERP may need a library that the search does not find. If another start has the
    soname of this library, the function uses this other start as the library. ``read`` is the function that reads an
    ELF file. ``read`` may have a cache that several closures share.

    Raises StartSetError for a missing start, for a needed library or interpreter that is not in the image, for a
    damaged ELF file and for a loop of links. A library that only a ``.note.dlopen`` names is optional, so it may be
    missing.
    """
    search = _Search(root, read)
    objects = [found for start in sorted(set(starts)) if (found := search.start(start)) is not None]
    companions = {each.facts.soname: each for each in reversed(objects) if each.facts.soname}
    dependencies: dict[tuple[PurePosixPath, tuple[PurePosixPath, ...], Kind], ElfDependency] = {}
    for found in objects:
        for dependency in _load(search, found, {} if found.facts.interpreter else companions):
            dependencies.setdefault((dependency.path, dependency.links, dependency.kind), dependency)
    return tuple(dependencies.values())


def _load(search: _Search, start: _Object, companions: Mapping[str, _Object]) -> Iterator[ElfDependency]:
    """The dependencies of ``start``, in the order in which a process that executes or opens ``start`` loads them. All
    needed libraries come first. Then come the optional libraries with the libraries that they need. ``companions`` are
    other starts of the closure, by soname. A companion is used when no library with its soname is found.
    """
    loaded = {start.path}
    names = {start.facts.soname}
    soon, later = deque(_requests(start)), deque(_optional(start))
    while soon or later:
        request = (soon or later).popleft()
        for name, found in _answer(search, request, names, companions):
            label = "PT_INTERP" if request.kind == "interpreter" else name
            yield ElfDependency(
                path=found.path,
                links=found.links,
                needed_by=request.loader.path,
                name=label,
                kind=request.kind,
            )
            names.update((name, found.facts.soname))
            if found.path not in loaded:
                loaded.add(found.path)
                soon.extend(_requests(found))
                later.extend(_optional(found))


def _answer(
    search: _Search, request: _Request, loaded: set[str | None], companions: Mapping[str, _Object]
) -> list[tuple[str, _Object]]:
    for name in request.names:
        # ld.so does not search for what the process has under that name already.
        if name in loaded:
            return []
        if found := search.find(name, request.loader):
            return [(name, each) for each in found]
    if request.kind == "dlopen":
        return []
    name = request.names[0]
    if name in companions:
        return [(name, replace(companions[name], loader=request.loader))]
    what = "interpreter" if request.kind == "interpreter" else "library"
    raise StartSetError(
        f"{request.loader.path} needs {what} {name}, which the image does not have for its machine",
        # Without the names, which may be any words: those of a stranger's file.
        hint="add the package that has it to the profile, or exclude the file that needs it",
    )


def _requests(loader: _Object) -> Iterator[_Request]:
    if loader.facts.interpreter is not None and loader.loader is None:
        yield _Request(loader, (loader.facts.interpreter,), "interpreter")
    for name in loader.facts.needed:
        yield _Request(loader, (name,), "needed")


def _optional(loader: _Object) -> Iterator[_Request]:
    return (_Request(loader, names, "dlopen") for names in loader.facts.dlopen_notes)


class _Search:
    """Finds objects by name in one image. This class caches its results, and limits the number of look-ups."""

    def __init__(self, root: ImageRoot, read: ReadElf) -> None:
        self._host = root.host
        self._resolve = functools.cache(root.resolve)
        self._read = functools.cache(read)
        self._own = functools.cache(self._existing_own)
        self._left_lookups = _MOST_LOOKUPS
        # A configuration may name any number of directories that are not there.
        self._directories = [
            each for each in library_directories(root) if self._resolve(each).canonical is not None
        ]

    def start(self, path: PurePosixPath) -> _Object | None:
        if self._resolve(path).canonical is None:
            raise StartSetError(f"{path} is not in the image", hint="build the image and its trace again")
        found = self._open(path, None)
        # The $ORIGIN of a program is the directory of /proc/self/exe, which is canonical. That of a library is the
        # directory by which the library was opened.
        return replace(found, opened=found.path) if found and found.facts.interpreter else found

    def find(self, name: str, loader: _Object) -> list[_Object]:
        """The objects with the name ``name``, in the search order of ld.so(8). The glibc-hwcaps variants of a library
        come first. The list is empty when no object has this name.
        """
        if "/" in name:
            return self._open_all(_expand(name, loader), loader)[:1]
        tried: list[PurePosixPath] = []
        for directory in self._own_directories(loader):
            tried += [*_variants(directory, name), directory / name]
            if self._open(tried[-1], loader) is not None:
                return self._open_all(tried, loader)
        # ld.so.cache prefers a variant in any directory to a plain library in an earlier directory.
        tried += (variant for each in self._directories for variant in _variants(each, name))
        plain = (each / name for each in self._directories)
        return self._open_all(tried, loader) + self._open_all(plain, loader)[:1]

    def _own_directories(self, loader: _Object) -> Iterable[PurePosixPath]:
        """The directories in DT_RUNPATH of the object ``loader``. If the object has no DT_RUNPATH, the result is the
        directories in DT_RPATH of ``loader`` and of the objects that loaded it. The result does not have a directory
        that does not exist, because ld.so also leaves out such a directory.
        """
        if loader.facts.runpath:
            return self._own(loader.facts, loader.opened, loader.facts.runpath)
        found: dict[PurePosixPath, None] = {}
        each: _Object | None = loader
        while each is not None:
            if not each.facts.runpath:
                found.update(dict.fromkeys(self._own(each.facts, each.opened, each.facts.rpath)))
            each = each.loader
        return found

    def _existing_own(
        self, facts: ElfFacts, opened: PurePosixPath, entries: tuple[str, ...]
    ) -> tuple[PurePosixPath, ...]:
        paths = (path for entry in entries for path in _absolute(entry, facts, opened.parent))
        return tuple(path for path in dict.fromkeys(paths) if self._resolve(path).canonical is not None)

    def _open_all(self, paths: Iterable[PurePosixPath], loader: _Object) -> list[_Object]:
        """The objects at the existing paths in ``paths``. A file is returned once, even when several paths lead to the
        file.
        """
        found: dict[PurePosixPath, _Object] = {}
        for path in paths:
            if (each := self._open(path, loader)) is not None:
                found.setdefault(each.path, each)
        return list(found.values())

    def _open(self, path: PurePosixPath, loader: _Object | None) -> _Object | None:
        """The object at ``path``. The result is None when the file is missing, is not ELF, or has another ELF class or
        machine than ``loader``. ``loader`` is the object that needs the file.
        """
        self._left_lookups -= 1
        if self._left_lookups < 0:
            raise StartSetError(
                f"the search for libraries takes more than {_MOST_LOOKUPS} look-ups",
                hint="exclude programs with long search paths (DT_RPATH, DT_RUNPATH)",
            )
        resolution = self._resolve(path)
        if resolution.canonical is None:
            return None
        facts = self._read(self._host(resolution.canonical))
        if facts is None or (loader is not None and _target(facts) != _target(loader.facts)):
            return None
        return _Object(
            path=resolution.canonical, links=resolution.links, opened=path, facts=facts, loader=loader
        )


def _target(facts: ElfFacts) -> tuple[int, str]:
    return facts.elf_class, facts.machine


def _variants(directory: PurePosixPath, name: str) -> list[PurePosixPath]:
    return [directory / "glibc-hwcaps" / level / name for level in HWCAPS]


def own_directories(facts: ElfFacts, opened: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """The directories in an object's DT_RPATH and DT_RUNPATH. ``opened`` is the path by which the object was opened.
    $ORIGIN is the directory of this path.
    """
    return tuple(
        path for entry in (*facts.rpath, *facts.runpath) for path in _absolute(entry, facts, opened.parent)
    )


def _expand(text: str, found: _Object) -> tuple[PurePosixPath, ...]:
    return _absolute(text, found.facts, found.opened.parent)


def _absolute(text: str, facts: ElfFacts, origin: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """The absolute paths that an entry of a search path can mean, with all possible values of $ORIGIN, $LIB
    and $PLATFORM.
    """
    template = string.Template(text)
    expanded = (
        template.safe_substitute(ORIGIN=origin, LIB=lib, PLATFORM=platform)
        for lib, platform in itertools.product(_LIB[facts.elf_class], _PLATFORM)
    )
    return tuple(PurePosixPath(path) for path in dict.fromkeys(expanded) if path.startswith("/"))
