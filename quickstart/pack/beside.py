"""Find the programs that look for files beside their own executables (pure, apart from looking up names in the
image).

Such a program finds its own path by /proc/self/exe, or by argv[0] and PATH. If the program ran from /fast, it would
find only the files that the archive has, in their state at the build. So the program stays on the volume.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.initramfs.facts import STOCK_PATH
from quickstart.initramfs.serving import is_library
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Event, FileKind, Op, StartSet, Trace

# Nothing below these is a file of the image.
_VOLATILE = frozenset({"proc", "sys", "dev", "run"})
# The limit for the names in the trees of programs that have nothing but code. One tree may be inside another.
_MOST_NAMES = 1 << 15
_LOCAL = PurePosixPath("/usr/local")
# Directories of all packages. A look-up in them says nothing about one program, whose places were fixed when it
# was compiled. Not /usr/local: what is installed there comes from elsewhere, as in /opt.
_SHARED = frozenset(
    map(
        PurePosixPath,
        (
            *("/", "/etc", "/home", "/opt", "/root", "/srv", "/var", "/var/lib"),
            *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
            *("/usr", "/usr/bin", "/usr/sbin", "/usr/games", "/usr/libexec", "/usr/share", "/usr/lib"),
            *("/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/lib/x86_64-linux-gnu"),
        ),
    )
)


@dataclass(frozen=True, slots=True)
class _Look:
    """A look-up of something that is neither a library nor a program. ``places`` are its path as the process
    spelled it, and its path without links. ``from_below`` is the directory from which the spelled path leads
    up by `..`, or None.
    """

    event: Event
    places: frozenset[PurePosixPath]
    from_below: PurePosixPath | None


def looking_beside(
    start_set: StartSet,
    traces: Sequence[Trace],
    root: ImageRoot,
    started: Collection[PurePosixPath],
    searched: Collection[str],
) -> frozenset[PurePosixPath]:
    """The canonical paths of the programs of the start set that look for files beside themselves, and so must not be
    executed from /fast.

    ``started`` are the programs that the starter starts; their argv[0] is their ordinary path. ``searched``
    are the names that processes searched for in PATH.
    """
    executed = _executed(traces, root)
    looks = tuple(_looks(traces, root, executed.keys(), searched))
    code = {file.path: file for file in start_set.files if file.mode & 0o111 or is_library(file.path)}

    below = sorted(str(place) for look in looks for place in look.places)
    listed = {place for look in looks if look.event.op is Op.LIST for place in look.places}
    # The look-ups by the name of the program that makes them.
    upwards = {(look.event.program, look.from_below) for look in looks}
    named = {(look.event.program, place.parent) for look in looks for place in look.places if place.suffix}
    left = iter(range(_MOST_NAMES))
    directory = functools.cache(functools.partial(_directory, root))

    @functools.cache
    def has_own_files(tree: PurePosixPath) -> bool:
        at = bisect_left(below, f"{tree}/")
        is_looked_in = at < len(below) and below[at].startswith(f"{tree}/")
        return is_looked_in or tree in listed or _has_more(root, tree, code, directory, left)

    def looks_beside(program: PurePosixPath) -> bool:
        """Whether ``program`` looks for files beside itself. There are three cases:

        - The program looks for a file in the directory tree in which it is installed (``tree_of``).
        - The program looks up a path that begins with its own directory and `..` (/usr/bin/../share/app).
        - The program looks in its own directory for a file whose name has a suffix (/usr/bin/pyvenv.cfg).

        In the last case, a program finds its directory by argv[0]. So this case counts only for a program that other
        programs find by its name in PATH, as they find python.
        """
        tree = tree_of(program)
        if tree is not None and has_own_files(tree):
            return True
        by_name = program not in started
        own = ((name, program.parent) for name in executed.get(program, ()))
        return any(each in upwards or (by_name and each in named) for each in own)

    return frozenset(
        file.path
        for file in code.values()
        if file.kind is FileKind.FILE and not is_library(file.path) and looks_beside(file.path)
    )


def tree_of(program: PurePosixPath) -> PurePosixPath | None:
    """The directory that has a program and the files that belong to it: /opt/app for /opt/app/bin/program.
    None if all packages use the program's directory.
    """
    if program.parent in _SHARED:
        return None
    above = program.parent.parent
    return program.parent if above in _SHARED else above


def _has_more(
    root: ImageRoot,
    tree: PurePosixPath,
    code: Collection[PurePosixPath],
    directory: Callable[[PurePosixPath], PurePosixPath | None],
    left: Iterator[int],
) -> bool:
    """Whether the image has files below ``tree`` that are not in ``code``. No boot compares these files, and
    a program may look for them after ready. A link to another directory of ``tree``, such as
    /usr/local/man, does not count. For trees below /usr, except /usr/local, the result is false: the
    distribution's packages keep a program's other files in directories such as /usr/share.

    ``directory`` is the function `_directory`. ``left`` limits the number of names that are examined in all
    trees together. When the limit is reached, the result is true, because the rest of the tree may have such
    files.
    """
    if tree.parts[1] == "usr" and _LOCAL not in (tree, *tree.parents):
        return False
    for path in root.below(tree):
        if next(left, None) is None:
            return True
        to = directory(path) if path not in code else None
        if path not in code and (to is None or tree not in to.parents):
            return True
    return False


def _directory(root: ImageRoot, path: PurePosixPath) -> PurePosixPath | None:
    """The directory that the link ``path`` leads to. None for any other file."""
    if root.link_target(path) is None:
        return None
    to = root.resolve(path).canonical
    return to if to is not None and root.host(to).is_dir() else None


def _executed(traces: Sequence[Trace], root: ImageRoot) -> dict[PurePosixPath, set[str]]:
    """The names by which each program was executed, by canonical path."""
    found: dict[PurePosixPath, set[str]] = {}
    for trace in traces:
        for event in trace.events:
            if event.op is Op.EXEC and event.error is None:
                path = root.resolve(event.path).canonical
                if path is not None:
                    found.setdefault(path, set()).add(event.path.name)
    return found


def _looks(
    traces: Sequence[Trace],
    root: ImageRoot,
    executed: Collection[PurePosixPath],
    searched: Collection[str],
) -> Iterator[_Look]:
    """The look-ups of all processes, with and without success. Look-ups by the loader, look-ups of programs
    and searches in PATH are left out.
    """
    place = functools.cache(functools.partial(_place, root))
    code = functools.cache(functools.partial(_is_code, root, executed))
    for trace in traces:
        # The loader looks up a directory itself when it has not found a library there.
        loaders = {event.path.parent for event in trace.events if _is_loaders(event.path)}
        for event in trace.events:
            path, op = event.path, event.op
            if len(path.parts) < 2 or path.parts[1] in _VOLATILE or _is_loaders(path):
                continue
            if op is Op.LOOKUP and path in loaders:
                continue
            found = place(path)
            if code(found, op) or (found.name in searched and path.parent in STOCK_PATH):
                continue
            at = path.parts.index("..") if ".." in path.parts else 0
            below = place(PurePosixPath(*path.parts[:at])) if at else None
            yield _Look(event, frozenset((found, PurePosixPath(os.path.normpath(path)))), below)


def _is_loaders(path: PurePosixPath) -> bool:
    return len(path.parts) > 1 and (is_library(path) or "glibc-hwcaps" in path.parts)


def _place(root: ImageRoot, path: PurePosixPath) -> PurePosixPath:
    """``path`` without links, as far as its directories exist."""
    found = root.look_up(path)
    return PurePosixPath(os.path.normpath(found.existing.joinpath(*found.missing)))


def _is_code(
    root: ImageRoot, executed: Collection[PurePosixPath], path: PurePosixPath, operation: Op
) -> bool:
    """Whether ``path`` is a program, or a directory that ``operation`` does not list. A file that is only opened
    counts as a program only if it is in ``executed``, because a shell may also read an executable file that nobody
    executes.
    """
    if root.look_up(path).canonical != path:
        return False
    host = root.host(path)
    if host.is_dir():
        return operation is not Op.LIST
    if operation is Op.OPEN:
        return path in executed
    return operation in (Op.EXEC, Op.LOOKUP) and bool(host.lstat().st_mode & 0o111)
