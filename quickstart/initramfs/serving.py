"""Find the packed files that processes open from /fast, a directory in memory. Find out how the processes find these
files there. Apart from looking up names in the image, the functions are pure.
"""

from __future__ import annotations

import enum
import glob
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import MAX_LINKS, ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import FileKind, FileRules, StartFile, StartSet

LIBRARY = re.compile(r"\.so(\.|$)")
# Kinds of `mount` records after which a path leads elsewhere (starter/mounts.c).
_HIDES = frozenset(
    ("bind", "bind-read-only", "bind-all", "bind-all-read-only", "inaccessible", "tmpfs", "tmpfs-read-only")
)
# A service writes to what these name.
_WRITABLE = frozenset(("read-write", "read-write-implicit"))
# In /usr/lib/PATH, the directory is the third part.
_CODE_DEPTH = 3
_CODE_PLACES = frozenset(("bin", "sbin", "lib", "lib32", "lib64", "libexec"))
_CODE_SUFFIXES = frozenset((".jar", ".php", ".pl", ".pm", ".py", ".pyc", ".rb", ".so", ".tcl"))
_OTHERS_PLACES = frozenset(("local",))


class Delivery(enum.Enum):
    """How the start set reaches the application. The values are the words that `build --delivery` accepts."""

    FAST = "fast"
    """Processes find the files by PATH, LD_LIBRARY_PATH and the path of their ELF interpreter, as in the paper
    on which QuickStart is based (README.md).
    """
    OVERLAY = "overlay"
    """As FAST. In addition, if the unit has its own mount namespace, packed files are bind-mounted there over the
    volume's files that the unit opens by absolute path.
    """


def bound_files(start_set: StartSet, root: ImageRoot, unit: UnitStart) -> tuple[PurePosixPath, ...]:
    """The packed files that the unit opens by their ordinary paths. In the guest, the starter bind-mounts these files
    over the volume's files in the unit's mount namespace.

    The result has packed files below /usr with code from Debian packages, except these files:

    - libraries that the loader finds by name, and programs that only the starter starts (processes open these files
      from /fast without a bind mount)
    - files that the unit may write to

    The result does not have data, configuration and the administrator's own files, because a change of such a file has
    to take effect at a reload. The result is empty for a unit without a mount namespace of its own, because QuickStart
    does not create a namespace only for bind mounts.
    """
    if not any(record[0] == "namespace" for record in unit.settings):
        return ()
    # Where the unit itself mounts something, the volume's file is not visible. A file over which something is mounted
    # is busy and read-only.
    hidden = set(_mounted(root, unit, _HIDES | _WRITABLE))
    found_by_name = {root.resolve(path).canonical for path in library_directories(root)}
    # The main program may execute itself again by its ordinary name, as haproxy's master does.
    others = (each for each in unit.commands if each is not unit.start)
    started = {root.resolve(PurePosixPath(each.program)).canonical for each in others} - {
        root.resolve(PurePosixPath(unit.start.program)).canonical
    }
    return tuple(
        file.path
        for file in start_set.files
        if file.kind is FileKind.FILE
        and _is_code_of_a_package(file)
        and file.path not in started
        and not hidden & {file.path, *file.path.parents}
        and not (is_library(file.path) and file.path.parent in found_by_name)
    )


def bound_by_any(start_set: StartSet, root: ImageRoot, unit: UnitStart) -> tuple[PurePosixPath, ...]:
    """The packed files that are bind-mounted over the volume's files for at least one of the units (the unit and its
    companions). The paths are sorted.
    """
    return tuple(sorted({path for each in unit.all_units for path in bound_files(start_set, root, each)}))


def _is_code_of_a_package(file: StartFile) -> bool:
    """Whether the file is a program, a library or a module of an interpreter, and belongs to a Debian package. Only an
    upgrade of the package changes such a file.
    """
    return (
        bool(file.package)
        and len(file.path.parts) > _CODE_DEPTH
        and file.path.parts[1] == "usr"
        and (file.path.parts[2] in _CODE_PLACES or file.path.suffix in _CODE_SUFFIXES)
        and file.path.parts[2] not in _OTHERS_PLACES
    )


def _mounted(root: ImageRoot, unit: UnitStart, kinds: Collection[str]) -> Iterator[PurePosixPath]:
    """The paths at which the unit has a mount of one of the ``kinds``. Each path is in the result in two forms: as the
    unit spells the path, and with the image's links resolved.
    """
    for record in unit.settings:
        if record[0] == "mount" and record[1] in kinds:
            path = PurePosixPath(record[3])
            yield path
            yield from (each for each in (root.resolve(path).canonical,) if each is not None)


def without_hidden(rules: FileRules, root: ImageRoot, unit: UnitStart) -> FileRules:
    """``rules`` with further rules that exclude files. The unit or a companion hides these files by its own mounts
    (InaccessiblePaths=, BindPaths= …).

    In a stock boot (the distribution's own boot), the unit cannot see such a file. If the file were packed, the unit
    would see the file below /fast.
    """
    # A glob's characters stand for themselves in brackets.
    hidden = dict.fromkeys(path for each in unit.all_units for path in _mounted(root, each, _HIDES))
    plain = (glob.escape(str(path)) for path in hidden if len(path.parts) > 1)
    return replace(
        rules, exclude=(*rules.exclude, *(each for path in plain for each in (path, f"{path}/**")))
    )


def is_library(path: PurePosixPath) -> bool:
    # /etc/ld.so.cache does not count, because every ldconfig writes it again.
    return path.parts[1] != "etc" and LIBRARY.search(path.name) is not None


def fast_library_places(start_set: StartSet) -> tuple[PurePosixPath, ...]:
    """The directories of the image that have libraries in the start set. LD_LIBRARY_PATH has the paths of the copies
    of these directories below /fast.
    """
    holders = {
        file.path.parent for file in start_set.files if file.kind is FileKind.FILE and is_library(file.path)
    }
    # In LD_LIBRARY_PATH, these characters have a meaning for ld.so(8). So such a library comes from the root volume.
    return tuple(sorted(path for path in holders if not set(":;$") & set(str(path))))


def is_merged(link: PurePosixPath, target: str) -> bool:
    """Whether the link is one of the links in / that make a merged /usr. An example is the link from `/bin` to
    `usr/bin`.
    """
    return len(link.parts) == 2 and target in (f"usr/{link.name}", f"/usr/{link.name}")


def links_of(start_set: StartSet) -> Mapping[PurePosixPath, str]:
    """The targets of the symbolic links in the start set, by the path of the link."""
    return {file.path: file.target for file in start_set.files if file.target}


def followed(path: PurePosixPath, links: Mapping[PurePosixPath, str]) -> PurePosixPath | None:
    """The path that results when every link in ``links`` is followed on the way to ``path``. The result is None for a
    loop of links. This function does not need the image, because the start set also has every link on the way to its
    files.
    """
    pending, found, count = list(reversed(path.parts[1:])), PurePosixPath("/"), 0
    while pending:
        part = pending.pop()
        found = found.parent if part == ".." else found / part
        target = links.get(found) if part != ".." else None
        if target is not None:
            if (count := count + 1) > MAX_LINKS:
                return None
            to = PurePosixPath(target)
            found = PurePosixPath("/") if to.is_absolute() else found.parent
            pending.extend(reversed(to.parts[1:] if to.is_absolute() else to.parts))
    return found


def served_files(start_set: StartSet, bound: Collection[PurePosixPath]) -> tuple[StartFile, ...]:
    """The files of the start set that init compares with the volume. The result has programs, libraries, and the files
    in ``bound``, which are bind-mounted over the volume's files. The result also has the links that lead to such a
    file, or to a directory with such a file. It also has programs and libraries that stay on the volume, because
    processes find their names in /fast.

    Processes open all other files of the start set by their ordinary names on the root volume, where the files may
    change freely. The result does not have the links of a merged /usr, such as the link from `/bin` to `usr/bin`,
    because these links do not change in any image.
    """
    served = {
        file.path: file
        for file in start_set.files
        if (file.kind is FileKind.FILE and file.path in bound)
        or (
            file.kind in (FileKind.FILE, FileKind.LEFT)
            and not file.target
            and (file.mode & 0o111 or is_library(file.path))
        )
    }
    links = links_of(start_set)
    leading = [
        file
        for file in start_set.files
        if file.target and file.path not in served and not is_merged(file.path, file.target)
    ]
    by_target: defaultdict[PurePosixPath | None, list[StartFile]] = defaultdict(list)
    for link in leading:
        by_target[followed(link.path, links)].append(link)
    left = [*served.values(), *(link for link in leading if is_library(link.path))]
    places: set[PurePosixPath] = set()
    # A link may lead to a directory that has only links to libraries, and so on.
    while left:
        file = left.pop()
        served[file.path] = file
        for place in (file.path, *file.path.parents):
            # What is above has come with it.
            if place in places:
                break
            places.add(place)
            left += by_target.pop(place, ())
    return tuple(served[path] for path in sorted(served, key=os.fsencode))
