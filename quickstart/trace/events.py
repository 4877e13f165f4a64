"""Turn a stream of system calls into a stream of the processes' actions on paths. This module has no side effects.

The reader follows the working directory and the root directory of each process, so that every path becomes a path in
the image. A log may show a child's first calls before its parent's fork. The reader then holds back the child's first
calls until the child's parent is known. The reader keeps no other calls, so memory use does not grow with the log.

The guest's programs choose the text of the log, and a hostile text must not cost much time. So each line is
scanned only a few times. A child's inherited state is shared with its parent and is not copied.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from quickstart.errors import TraceError
from quickstart.model import Op
from quickstart.parse.bounded import PATH_MAX, natural
from quickstart.trace.calls import (
    ASKING,
    NAME_CACHE,
    OPENS,
    asks_cache,
    gives_content,
    is_bare,
    is_needless,
    operation,
    uses_network,
)
from quickstart.trace.peers import Bound, Met, local_socket
from quickstart.trace.place import MAX_PLACE_CHARACTERS, Bind, Place, join, plain, under
from quickstart.trace.strace import Call, Ended, read_calls, unescape

_DECODED = r"(?:AT_FDCWD|-?\d+)<((?>(?:[^>\\]++|\\.)*))>"
_QUOTED = r'"((?>(?:[^"\\]++|\\.)*))"(\.\.\.)?'
# These are all matched at one place of a call's arguments. None is searched for.
_PATH = re.compile(rf"(?:{_DECODED}(?:\(deleted\))?, )?{_QUOTED}", re.DOTALL)
_NEXT_PATH = re.compile(rf", (?:(?:{_DECODED}(?:\(deleted\))?|-?\d+), )?{_QUOTED}", re.DOTALL)
_FD = re.compile(rf"{_DECODED}(\(deleted\))?", re.DOTALL)
_MAPPED = re.compile(
    r"[^,<>]*+, [^,<>]*+, ([^,<>]*+), [^,<>]*+, \d+<((?>(?:[^>\\]++|\\.)*))>(\(deleted\))?, ", re.DOTALL
)
_CGROUP = re.compile(r"\bcgroup=([0-9]{1,10})(?:<((?>(?:[^>\\]++|\\.)*))>)?", re.DOTALL)

_FORKS = frozenset({"clone", "clone3", "fork", "vfork"})
# Both paths of these calls count. After the call, the second is another file.
_TWO_PATHS = frozenset({"rename", "renameat", "renameat2", "link", "linkat"})
# Calls whose first string is text, not a path to look up.
_TEXT_FIRST = frozenset({"symlink", "symlinkat", "mount"})
# The limit for the calls that are held back in a whole log, which are a child's first calls. Each call takes some
# additional memory.
_MOST_HELD_CHARACTERS = 64 << 20
_HELD_CALL_CHARACTERS = 256


class Born(NamedTuple):
    """The item for a new process in the log. This item comes before the actions of the process. ``number`` is unique in
    the log. (A process ID is not unique.) ``parent`` is the number of the parent process, or 0 if the log does not show
    the parent.
    """

    number: int
    pid: int
    parent: int


class Seen(NamedTuple):
    """An action of a process on a path. ``number`` is the number of the process (see the class Born).

    ``path`` is the path that the process used, but without "." and doubled slashes. ``real`` is the kernel's name
    of the opened file, or empty when the log does not have this name. ``makes`` says that the action gave the file
    new content, so the file no longer has the image's content. ``bare`` says that a program was executed without
    the environment that systemd gives to a unit. ``closes_on_exec`` says that a file was opened with O_CLOEXEC.
    ``needless`` says that a command of systemctl was executed that an early start can do without.
    """

    line: int
    number: int
    op: Op
    path: str
    error: str | None
    makes: bool
    real: str = ""
    bare: bool = False
    closes_on_exec: bool = False
    needless: bool = False


class Gone(NamedTuple):
    """The end of the process with the number ``number`` (see the class Born)."""

    number: int


class Asked(NamedTuple):
    """The process ``number`` has used the network, or has asked for the machine's addresses (see uses_network in
    calls.py, which lists the cases).
    """

    line: int
    number: int


class Blind(NamedTuple):
    """The process ``number`` has set up an io_uring. Files that the process opens through the io_uring have no line in
    the log, because no system call opens these files.
    """

    line: int
    number: int


Item = Born | Seen | Asked | Blind | Bound | Met | Gone


@dataclass(kw_only=True)
class _Task:
    """A process whose calls are being parsed.

    While the parent of the process is not known, ``place`` is None, and ``held`` has the calls of the process. The
    actions of the calls in ``held`` have not been yielded yet. If a call is a fork, ``held`` has the call together with
    the child that the call created. Any other call has None in place of a child.
    """

    number: int
    pid: int
    place: Place | None = None
    ended: bool = False
    held: list[tuple[Call, _Task | None]] = field(default_factory=list)


def read_events(lines: Iterable[bytes]) -> Iterator[Item]:
    """The actions of the processes in a log. The actions of each process come in the order of the log. Raises
    TraceError for a damaged or empty log.

    All processes descend from the first process in the log.
    """
    reader = _Reader()
    empty = True
    for call in read_calls(lines):
        if isinstance(call, Ended):
            yield from reader.end(call.pid)
            continue
        for item in reader.call(call):
            empty = empty and isinstance(item, Born | Gone)
            yield item
    if empty:
        raise TraceError("the strace log is empty")
    yield from reader.rest()


class _Reader:
    """Follows the processes of a log, and yields the actions of each process whose parent is known."""

    def __init__(self) -> None:
        self._current: dict[int, _Task] = {}
        self._orphans: dict[int, _Task] = {}
        self._numbers = itertools.count(1)
        self._held_characters = 0

    def _task(self, pid: int) -> _Task:
        task = self._current.get(pid)
        if task is None:
            task = self._current[pid] = _Task(number=next(self._numbers), pid=pid)
        return task

    def end(self, pid: int) -> Iterator[Item]:
        task = self._current.pop(pid, None)
        if task is None:
            return
        task.ended = True
        if task.place is None:
            # The log may have the parent's clone after all the calls of the child.
            self._orphans[pid] = task
        else:
            yield Gone(task.number)

    def call(self, call: Call) -> Iterator[Item]:
        task = self._task(call.pid)
        if task.number == 1 and task.place is None:
            yield from _settle(task, Place(), 0)
        child = self._child(call)
        if task.place is None:
            self._held_characters += len(call.arguments) + _HELD_CALL_CHARACTERS
            if self._held_characters > _MOST_HELD_CHARACTERS:
                raise TraceError(f"line {call.line} of the strace log: too many calls of unknown processes")
            task.held.append((call, child))
        else:
            yield from _done(task, task.place, call, child)

    def _child(self, call: Call) -> _Task | None:
        """The process that ``call`` created. The result is None if ``call`` is not a fork, or is a fork that failed."""
        pid = natural(call.result) if call.name in _FORKS else None
        if not pid:
            return None
        orphan = None if pid in self._current else self._orphans.pop(pid, None)
        return orphan or self._task(pid)

    def rest(self) -> Iterator[Item]:
        """The held-back actions of those processes whose creation is not in the log. Call this method at the end of the
        log.
        """
        for task in [*self._orphans.values(), *self._current.values()]:
            if task.place is None:
                yield from _settle(task, Place(), 0)


class _Origin(NamedTuple):
    """Stands for the child process ``task`` in a stream of items, at the position of the fork that created the child.
    The function `_flat` replaces the _Origin by the child's Born item and the child's actions so far.

    ``place`` is the state with which the child resolves paths at its start. ``parent`` is the number of the parent
    process. ``group`` is the action by which the child enters a control group, if the fork put the child into one.
    """

    task: _Task
    place: Place
    parent: int
    group: Seen | None = None


def _settle(task: _Task, place: Place, parent: int) -> Iterator[Item]:
    """Yield the Born item of ``task`` and then the actions of the calls of ``task`` that were held back. The parent of
    ``task`` is now known. For a held call that is a fork, yield the Born item and the actions of the child, too.
    """
    return _flat(_life(_Origin(task, place, parent)))


def _done(task: _Task, place: Place, call: Call, child: _Task | None) -> Iterator[Item]:
    """Yield the actions of a call of the process ``task``, and update ``place`` with the effects of the call."""
    return _flat(_effects(task, place, call, child))


def _flat(items: Iterator[Item | _Origin]) -> Iterator[Item]:
    """Yield ``items``. In place of each _Origin, yield the items of the child process that the _Origin stands for.

    This function does not use recursion. Each child may have forked, too, so the number of levels may be as large as
    the number of lines in the log.
    """
    pending = [items]
    while pending:
        item = next(pending[-1], None)
        if item is None:
            pending.pop()
        elif isinstance(item, _Origin):
            pending.append(_life(item))
        else:
            yield item


def _life(origin: _Origin) -> Iterator[Item | _Origin]:
    task, place = origin.task, origin.place
    task.place = place
    yield Born(task.number, task.pid, origin.parent)
    if origin.group is not None:
        yield origin.group
    held, task.held = task.held, []
    for call, child in held:
        yield from _effects(task, place, call, child)
    if task.ended:
        yield Gone(task.number)


def _effects(task: _Task, place: Place, call: Call, child: _Task | None) -> Iterator[Item | _Origin]:
    if child is not None:
        if child.place is None:
            own = place if "CLONE_FS" in call.arguments else place.copy()
            yield _Origin(child, own, task.number, _joined(call, place, child))
        return
    yield from _doings(call, task.number, place)
    if call.error is None:
        _follow(call, place)


def _joined(call: Call, place: Place, child: _Task) -> Seen | None:
    """The action by which a child enters a control group, if ``call`` is a fork with CLONE_INTO_CGROUP. For other
    forks, the result is None, because the child itself writes its process ID into the control group later.
    """
    at = call.arguments.find("CLONE_INTO_CGROUP")
    match = _CGROUP.search(call.arguments, at) if at >= 0 else None
    if match is None:
        return None
    # strace 6.1 prints only the descriptor.
    group = unescape(match[2]) if match[2] else place.descriptor(match[1])
    return Seen(call.line, child.number, Op.WRITE, f"{group}/cgroup.procs", None, False)


def _doings(call: Call, number: int, place: Place) -> Iterator[Item]:
    """The actions of the system call ``call`` of the process ``number``."""
    if call.name == "io_uring_setup":
        if call.error is None:
            yield Blind(call.line, number)
        return
    if call.name in ASKING:
        if uses_network(call):
            yield Asked(call.line, number)
        elif asks_cache(call):
            yield Seen(call.line, number, Op.LOOKUP, NAME_CACHE, None, False)
        elif (item := local_socket(call, number, place.lookup)) is not None:
            yield item
        return
    for count, (path, flags) in enumerate(_paths(call, place)):
        makes = call.error is None and (
            (call.name in _TWO_PATHS and count == 1)
            or call.name in ("creat", "symlink", "symlinkat", "mknod", "mknodat", "truncate")
            or (call.name in OPENS and gives_content(flags))
        )
        # The opened file may be a pipe.
        real = call.result_path if call.name in OPENS and call.result_path.startswith("/") else ""
        op = operation(call.name, flags)
        closes = call.name in OPENS and "O_CLOEXEC" in flags
        kind = (is_bare(call), closes, is_needless(call))
        yield Seen(call.line, number, op, plain(path), call.error, makes, real, *kind)


def _paths(call: Call, place: Place) -> Iterator[tuple[str, str]]:
    """The paths in the arguments of ``call``. The result has each path together with the arguments after the path.

    Descriptors without a path (such as pipe:[1]), removed files, and names that are too long for a path are left out.
    """
    return (found for found in _named(call, place) if found[0].startswith("/") and len(found[0]) < PATH_MAX)


def _named(call: Call, place: Place) -> Iterator[tuple[str, str]]:
    arguments = call.arguments
    if call.name == "getdents64":
        if (match := _FD.match(arguments)) and not match[2]:
            yield unescape(match[1]), ""
        return
    if call.name == "mmap":
        if (match := _MAPPED.match(arguments)) and "PROT_EXEC" in match[1].split("|") and not match[3]:
            yield unescape(match[2]), ""
        return
    position = 0
    for count in range(2 if call.name in _TWO_PATHS or call.name in _TEXT_FIRST else 1):
        match = _NEXT_PATH.match(arguments, position) if count else _PATH.match(arguments)
        if match is None:
            return
        if match[3]:
            raise TraceError(f"line {call.line} of the strace log has a shortened path")
        position = match.end()
        if count == 0 and call.name in _TEXT_FIRST:
            continue
        if arguments.startswith("AT_FDCWD<"):
            place.cwd = _place_name(call, unescape(match[1] or ""))
        path = unescape(match[2])
        relative = match[1] is not None and not path.startswith("/")
        yield join(unescape(match[1]), path) if relative else place.lookup(path), arguments[position:]


def _follow(call: Call, place: Place) -> None:
    """Update ``place``, the state with which a process resolves paths, with the effect of a successful call."""
    if call.name in OPENS:
        if (number := natural(call.result)) is not None:
            place.opened.set(number, call.result_path)
    elif call.name == "fchdir":
        if match := _FD.match(call.arguments):
            place.cwd = _place_name(call, unescape(match[1]))
    elif call.name in ("chdir", "chroot", "pivot_root"):
        if match := _PATH.match(call.arguments):
            _move(call, place, unescape(match[2]))
    elif call.name == "mount" and ("MS_BIND" in call.arguments or "MS_MOVE" in call.arguments):
        _bind(call.arguments, place)


def _move(call: Call, place: Place, path: str) -> None:
    target = _place_name(call, place.lookup(path))
    if call.name == "chdir":
        place.cwd = target
        return
    new = plain(target)
    place.root = place.source(new)
    if place.cwd == new or place.cwd.startswith(f"{new}/"):
        place.cwd = under(place.root, place.cwd[len(new) :] or "/")


def _place_name(call: Call, name: str) -> str:
    """Return ``name``, the path of a directory from which a process looks up paths. Raise TraceError when ``name`` is
    too long.
    """
    if len(name) > MAX_PLACE_CHARACTERS:
        raise TraceError(
            f"line {call.line} of the strace log leads to a directory whose name has {len(name)} characters"
        )
    return name


def _bind(arguments: str, place: Place) -> None:
    source = _PATH.match(arguments)
    target = _NEXT_PATH.match(arguments, source.end()) if source else None
    if source is None or target is None:
        return
    above = plain(place.lookup(unescape(target[2])))
    if above != "/" and max(len(above), source.end() - source.start(2)) <= PATH_MAX:
        place.binds = Bind(above, plain(place.lookup(unescape(source[2]))), place.binds)
