"""Decide which files of a start set stay on the root volume (pure, apart from looking up names in the image).

The guest finds the packed files below /fast, a directory in memory. A packed file is of use only if a process opens it
there. Programs find each other below /fast by PATH, the loader finds libraries there by LD_LIBRARY_PATH, and the
starter starts the unit's commands from there. Processes open all other files by their ordinary paths. In our initramfs,
such a file is only a link to the volume's file. A copy in the initramfs would be of no use, and no boot would compare
this copy with the volume. The prefetcher requests the content of the volume's file in advance
(docs/internals/prefetch.md).

Three kinds of files stay on the volume although processes would open them below /fast:

- programs that look for files beside themselves
- programs whose path is used to find their processes
- large libraries of which a boot uses only a small part

Because the module selects the packed files in this way, every packed file is a packed fact. The packed facts are the
facts that must still be true for a fast start (docs/users/never-stale.md). Every link in the archive leads either to a
packed file or to the volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from quickstart.initramfs.facts import STOCK_PATH
from quickstart.initramfs.serving import (
    bound_by_any,
    followed,
    is_library,
    is_merged,
    links_of,
    served_files,
)
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.script import interpreter_of
from quickstart.inspect.unit.bypath import is_found_by_path
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import MIB, FileKind, Op, StartFile, StartSet, Trace
from quickstart.model.reasons import Reason, ReasonSource
from quickstart.model.residency import Resident
from quickstart.pack.beside import looking_beside, tree_of
from quickstart.pack.parts import parts_of

# Below this size, a request to the volume costs as much as the transfer.
_LARGE_BYTES = 8 * MIB
# When more of a file is used, transferring the whole file is faster than reading its parts.
_MOST_USED = 0.25


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """How the traced boots used the image. ``by_name`` are the names of programs that processes searched for in PATH.
    ``names`` are the names of the links that lead to each file. ``started`` are the programs and interpreters that the
    starter starts. ``by_path`` are the programs in ``started`` whose units have init scripts that find a process by the
    path of its program. ``beside`` are programs that look for files beside themselves, and ``trees`` are the
    directories of these programs. ``libraries`` are the directories in which the loader searches. ``bare`` are files
    that only processes without the unit's environment used. ``bound`` are packed files that are mounted over the
    volume's files. ``resident`` has the used parts of each large file.
    """

    by_name: frozenset[str]
    names: Mapping[PurePosixPath, frozenset[str]]
    started: frozenset[PurePosixPath]
    by_path: frozenset[PurePosixPath]
    beside: frozenset[PurePosixPath]
    trees: frozenset[PurePosixPath]
    libraries: frozenset[PurePosixPath]
    bare: frozenset[PurePosixPath]
    bound: frozenset[PurePosixPath]
    resident: Mapping[PurePosixPath, Resident]


def leave(
    start_set: StartSet, traces: Sequence[Trace], root: ImageRoot, unit: UnitStart, *, overlay: bool
) -> StartSet:
    """Return ``start_set`` with the kind LEFT (the file stays on the volume) for these files:

    - files that no process opens below /fast
    - programs that look for files beside themselves
    - large files of which a boot uses only a small part
    - links that lead only to files with the kind LEFT

    Programs and libraries that a rule of the profile names stay packed, unless they look for files beside themselves.
    ``overlay`` says whether packed files are mounted over the volume's files (Delivery.OVERLAY).
    """
    by_name, started = _searched(traces), _started(unit.all_units, root)
    firsts = {file.path: file.hard_link_to or file.path for file in start_set.files}
    beside = looking_beside(start_set, traces, root, started, by_name)
    seen = _Seen(
        by_name=by_name,
        names=_names(start_set),
        started=started,
        by_path=_started([each for each in unit.all_units if is_found_by_path(root, each.unit)], root),
        # All names of a file are treated alike, because they are one file in the archive.
        beside=frozenset(firsts[path] for path in beside),
        trees=frozenset(tree for path in beside if (tree := tree_of(path)) is not None),
        libraries=frozenset(
            path for name in library_directories(root) if (path := root.resolve(name).canonical) is not None
        ),
        bare=_bare(traces, root),
        bound=frozenset(bound_by_any(start_set, root, unit) if overlay else ()),
        resident=parts_of(traces),
    )
    texts: dict[PurePosixPath, str | None] = {}
    for file in start_set.files:
        if file.kind is FileKind.FILE:
            first = firsts[file.path]
            why = _why_left(file, seen)
            texts[first] = why if first not in texts or texts[first] else None
    files = tuple(
        left_on_volume(file, texts.get(firsts[file.path])) if file.kind is FileKind.FILE else file
        for file in start_set.files
    )
    return _with_left_links(replace(start_set, files=files), seen.bound)


def _with_left_links(start_set: StartSet, bound: frozenset[PurePosixPath]) -> StartSet:
    """Return ``start_set`` with the kind LEFT for links that no boot compares with the volume. When the machine boots,
    such a link on the volume may lead to another place than the link in the image did.
    """
    compared = {file.path for file in served_files(start_set, bound)}
    files = tuple(
        left_on_volume(file, "a link that no boot compares")
        if file.kind is FileKind.SYMLINK
        and file.path not in compared
        and not is_merged(file.path, file.target)
        else file
        for file in start_set.files
    )
    return replace(start_set, files=files)


def left_on_volume(file: StartFile, why: str | None) -> StartFile:
    """``file`` with the kind LEFT (the file stays on the volume) and the additional reason ``why``. When ``why`` is
    None, the function returns ``file`` unchanged.
    """
    if why is None:
        return file
    reasons = (*file.reasons, Reason(ReasonSource.LEFT, why))
    return replace(file, kind=FileKind.LEFT, hard_link_to=None, reasons=reasons)


def _why_left(file: StartFile, seen: _Seen) -> str | None:
    """The reason why ``file`` stays on the volume, as a text for people. The result is None when ``file`` is packed."""
    named = any(reason.source is ReasonSource.RULE for reason in file.reasons)
    # What is bound over the volume's file is opened by its ordinary path.
    is_bound = file.path in seen.bound
    if _is_beside(file, seen) and (_is_started(file, seen) or (named and not is_bound)):
        return "looks for files beside itself"
    if file.path in seen.by_path and not is_bound:
        return "its init script finds the process by this path"
    if _is_library_beside(file, seen) and not is_bound:
        return "belongs to a program that looks for files beside itself"
    if named and (file.mode & 0o111 or is_library(file.path)):
        return None
    found = seen.resident.get(file.path)
    # Programs that the loader starts have another interpreter in the archive than on the volume.
    if file.size_bytes >= _LARGE_BYTES and found is not None and not file.interpreter and not named:
        used = found.resident_bytes
        if used <= file.size_bytes * _MOST_USED:
            return f"{used / MIB:.1f} of {file.size_bytes / MIB:.1f} MiB are used before ready"
    return None if _is_served(file, seen) else "opened by its ordinary path"


def _is_served(file: StartFile, seen: _Seen) -> bool:
    if file.path in seen.bound or _is_started(file, seen):
        return True
    if is_library(file.path):
        if file.path in seen.bare:
            return False
        needed = any(reason.source in (ReasonSource.ELF, ReasonSource.LDD) for reason in file.reasons)
        return needed or file.path.parent in seen.libraries
    return False


def _is_started(file: StartFile, seen: _Seen) -> bool:
    """Whether a packed copy of the program would be executed from /fast, either by the starter or by a process that
    searches for the program in PATH.
    """
    if file.path in seen.started:
        return True
    names = seen.names.get(file.path, frozenset()) | {file.path.name}
    return bool(file.mode & 0o111) and not is_library(file.path) and not names.isdisjoint(seen.by_name)


def _is_beside(file: StartFile, seen: _Seen) -> bool:
    return (file.hard_link_to or file.path) in seen.beside


def _is_library_beside(file: StartFile, seen: _Seen) -> bool:
    """Whether the file is a library in the directory tree of a program that looks for files beside itself. Such a
    library may also look for files beside itself ($ORIGIN, dladdr(3)).
    """
    if not is_library(file.path) or file.path.parent in seen.libraries:
        return False
    return any(tree in file.path.parents for tree in seen.trees)


def _names(start_set: StartSet) -> Mapping[PurePosixPath, frozenset[str]]:
    """The names of the links that lead to each file. For example, a link `sh` leads to dash. So a process that searches
    for `sh` in PATH finds dash.
    """
    links = links_of(start_set)
    found: dict[PurePosixPath, set[str]] = {}
    for link in links:
        if (path := followed(link, links)) is not None:
            found.setdefault(path, set()).add(link.name)
    return {path: frozenset(names) for path, names in found.items()}


def _searched(traces: Iterable[Trace]) -> frozenset[str]:
    """The names of programs that processes with the unit's PATH searched for in PATH. A trace shows a search by the
    search's first step, which is a failed look-up in the first directory of PATH. Debian's packages leave this
    directory empty. When a process executes a program by the program's path, no search happens, so the result does not
    have the program's name.
    """
    return frozenset(
        event.path.name
        for trace in traces
        for event in trace.events
        if event.error is not None and not event.bare and event.path.parent == STOCK_PATH[0]
    )


def _bare(traces: Iterable[Trace], root: ImageRoot) -> frozenset[PurePosixPath]:
    """The files that only processes without the unit's environment opened or mapped, by canonical path."""
    by_bare: dict[bool, set[PurePosixPath]] = {True: set(), False: set()}
    for trace in traces:
        for event in trace.events:
            if event.error is None and event.op in (Op.OPEN, Op.MAP):
                path = root.resolve(event.path).canonical
                by_bare[event.bare].update((path,) if path is not None else ())
    return frozenset(by_bare[True] - by_bare[False])


def _started(units: Iterable[UnitStart], root: ImageRoot) -> frozenset[PurePosixPath]:
    """The programs of the units' commands, by canonical path. For a script, the result has the script's interpreter
    instead of the script, because the interpreter opens the script by the script's ordinary path.
    """
    found: set[PurePosixPath] = set()
    for each in units:
        for command in each.commands:
            path = root.resolve(PurePosixPath(command.program)).canonical
            script = interpreter_of(root, path) if path is not None else None
            if script is not None:
                path = root.resolve(script.program).canonical
            found.update((path,) if path is not None else ())
    return frozenset(found)
