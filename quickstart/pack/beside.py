"""Find the programs that look for files beside their own executables (pure, apart from looking up names in the image).

Such a program finds its own path by /proc/self/exe, or by argv[0] and PATH. If the program ran from /fast, the
directory in memory with the packed files, it would find only packed files, in their state at the build. So the program
stays on the root volume.
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
    """A look-up, by a traced process, of a path that is neither a library nor a program. ``places`` has the path as the
    process spelled it, and the path with its links resolved. ``from_below`` is the directory before the first `..` of
    the spelled path. ``from_below`` is None when the path has no `..`.
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
    """The canonical paths of the programs of the start set that look for files beside themselves. Processes must not
    execute these programs from /fast.

    ``started`` are the programs that the starter, our program that starts units without systemd, executes. As argv[0],
    the starter gives each of these programs the program's ordinary path, which is not below /fast. ``searched`` are the
    names that processes searched for in PATH.
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

        - In the directory tree in which the program is installed (``tree_of``), a process looks for files, or there are
          files that the program may look for later (``_has_more``).
        - The program looks up a path that begins with its own directory and `..` (/usr/bin/../share/app).
        - The program looks in its own directory for a file whose name has a suffix (/usr/bin/pyvenv.cfg).

        In the last case, the program finds its directory by argv[0]. So this case counts only for a program that other
        programs, and not the starter, execute after a search in PATH. An example is python.
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
    """The directory that contains a program and the files that belong to the program. For example, this is /opt/app for
    /opt/app/bin/program. The result is None if all packages use the program's directory, as they use /usr/bin.
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
    """Whether the image has files below ``tree`` that are not in ``code``, the programs and libraries of the start set.
    No boot compares such a file with the file at the build, and a program may look for the file after ready. A link to
    another directory of ``tree``, such as /usr/local/man, does not count. For trees below /usr, except /usr/local, the
    result is false, because the distribution's packages keep a program's other files in directories such as /usr/share.

    ``directory`` is the function `_directory`. ``left`` limits the number of names that the function examines in all
    trees together. When the limit is reached, the result is true, because the remaining names may be such files.
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
    """The directory that the link ``path`` leads to. The result is None if ``path`` is not a link, or leads to no
    directory.
    """
    if root.link_target(path) is None:
        return None
    to = root.resolve(path).canonical
    return to if to is not None and root.host(to).is_dir() else None


def _executed(traces: Sequence[Trace], root: ImageRoot) -> dict[PurePosixPath, set[str]]:
    """The file names under which processes executed each program. The keys are the canonical paths of the programs."""
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
    """The look-ups of files by all traced processes, whether the look-ups succeeded or failed. The result does not have
    the look-ups that the dynamic loader made, look-ups of programs, and searches in PATH.
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
    """``path`` with its links resolved, as far as its directories exist."""
    found = root.look_up(path)
    return PurePosixPath(os.path.normpath(found.existing.joinpath(*found.missing)))


def _is_code(
    root: ImageRoot, executed: Collection[PurePosixPath], path: PurePosixPath, operation: Op
) -> bool:
    """Whether ``path`` is a program, or a directory. ``operation`` is what a process did with ``path``. A directory
    that the process listed does not count. A file that the process only opened counts as a program only if it is in
    ``executed``, because a shell may also read an executable file that nobody executes.
    """
    if root.look_up(path).canonical != path:
        return False
    host = root.host(path)
    if host.is_dir():
        return operation is not Op.LIST
    if operation is Op.OPEN:
        return path in executed
    return operation in (Op.EXEC, Op.LOOKUP) and bool(host.lstat().st_mode & 0o111)
