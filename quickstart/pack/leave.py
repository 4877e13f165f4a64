"""Decide which files of a start set stay on the root volume (pure, apart from looking up names in the image).

A packed file is of use only if a process opens it below /fast. Programs find each other there by PATH, the
loader finds libraries there by LD_LIBRARY_PATH, and the starter starts the unit's commands from there. All
other files are opened by their ordinary paths. In the archive, such a file is a link to the volume's file: a
copy would only be transferred in vain, and a program that looks beside its own executable, as a JVM does,
would use a copy of a configuration that has changed on the volume. The prefetch asks for the content
(docs/internals/prefetch.md).

A large library that is used in small part stays on the volume, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from quickstart.initramfs.facts import STOCK_PATH
from quickstart.initramfs.serving import bound_by_any, is_library
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.ldconf import library_directories
from quickstart.inspect.script import interpreter_of
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import MIB, FileKind, Op, StartFile, StartSet, Trace
from quickstart.model.reasons import Reason, ReasonSource
from quickstart.model.residency import Resident
from quickstart.pack.parts import parts_of

# Below this size, a request to the volume costs as much as the transfer.
_LARGE_BYTES = 8 * MIB
# Of a file from which more is used, the whole is transferred sooner than its parts are read.
_MOST_USED = 0.25


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """How the traced boots used the image. ``by_name`` are the names of programs that were searched for in
    PATH. ``started`` are the programs and interpreters that the starter starts. ``libraries`` are the
    directories in which the loader searches. ``bare`` are files that only processes without the unit's
    environment used. ``resident`` are the used parts of large files.
    """

    by_name: frozenset[str]
    started: frozenset[PurePosixPath]
    libraries: frozenset[PurePosixPath]
    bare: frozenset[PurePosixPath]
    bound: frozenset[PurePosixPath]
    resident: Mapping[PurePosixPath, Resident]


def leave(
    start_set: StartSet, traces: Sequence[Trace], root: ImageRoot, unit: UnitStart, *, overlay: bool
) -> StartSet:
    """``start_set`` with the kind LEFT for files that no process opens below /fast, and for large files that
    are used in small part.

    Files that a rule of the profile names stay packed. ``overlay`` says whether packed files are bound over
    the volume's files (Delivery.OVERLAY).
    """
    seen = _Seen(
        by_name=_searched(traces),
        started=_started(unit, root),
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
            # All names of a file go the same way, because they are one file in the archive.
            first = file.hard_link_to or file.path
            why = _why_left(file, seen)
            texts[first] = why if first not in texts or texts[first] else None
    files = tuple(_decided(file, texts.get(file.hard_link_to or file.path)) for file in start_set.files)
    return replace(start_set, files=files)


def _decided(file: StartFile, why: str | None) -> StartFile:
    if file.kind is not FileKind.FILE or why is None:
        return file
    reasons = (*file.reasons, Reason(ReasonSource.LEFT, why))
    return replace(file, kind=FileKind.LEFT, hard_link_to=None, reasons=reasons)


def _why_left(file: StartFile, seen: _Seen) -> str | None:
    """Why ``file`` stays on the volume, as a text for people, or None."""
    if any(reason.source is ReasonSource.RULE for reason in file.reasons):
        return None
    found = seen.resident.get(file.path)
    # Programs that the loader starts have another interpreter in the archive than on the volume.
    if file.size_bytes >= _LARGE_BYTES and found is not None and not file.interpreter:
        used = found.resident_bytes
        if used <= file.size_bytes * _MOST_USED:
            return f"{used / MIB:.1f} of {file.size_bytes / MIB:.1f} MiB are used before ready"
    return None if _is_served(file, seen) else "opened by its ordinary path"


def _is_served(file: StartFile, seen: _Seen) -> bool:
    if file.path in seen.bound or file.path in seen.started:
        return True
    if is_library(file.path):
        if file.path in seen.bare:
            return False
        needed = any(reason.source in (ReasonSource.ELF, ReasonSource.LDD) for reason in file.reasons)
        return needed or file.path.parent in seen.libraries
    return bool(file.mode & 0o111) and file.path.name in seen.by_name


def _searched(traces: Iterable[Trace]) -> frozenset[str]:
    """The names that processes with the unit's PATH looked for. They look in vain in its first directory, which
    Debian's packages leave empty. A program that is executed by its path is not looked for.
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


def _started(unit: UnitStart, root: ImageRoot) -> frozenset[PurePosixPath]:
    """The programs of the units' commands, and the interpreters of those that are scripts, by canonical path."""
    found: set[PurePosixPath] = set()
    for each in unit.all_units:
        for command in each.commands:
            path = root.resolve(PurePosixPath(command.program)).canonical
            if path is None:
                continue
            found.add(path)
            script = interpreter_of(root, path)
            if script and (program := root.resolve(script.program).canonical) is not None:
                found.add(program)
    return frozenset(found)
