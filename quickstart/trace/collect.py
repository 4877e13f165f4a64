"""Find the actions of the processes of one or several units in a log of strace. Apart from reading the log, this
module has no side effects.

A unit's processes are the processes that systemd puts into the unit's control group, and their descendants. systemd
forks a child, which writes its own process ID into the group and then executes the unit's command. Newer versions of
systemd create the child directly in the control group (clone3(2), CLONE_INTO_CGROUP). Until the child executes the
unit's command, this module counts the child's actions as actions of systemd.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import BinaryIO

from quickstart.errors import TraceError
from quickstart.host.cpulimit import LIMIT_S, cpu_limit
from quickstart.model import MIB, Event, Op
from quickstart.model.started import NOTHING_CHANGED, Changed, Peer
from quickstart.parse.bounded import lines_of
from quickstart.trace.events import Asked, Blind, Born, Gone, Seen, read_events
from quickstart.trace.others import Others
from quickstart.trace.peers import Bound, Met, Peers
from quickstart.trace.resolvers import Resolvers
from quickstart.trace.strace import MAX_LINE_BYTES

# The child of systemd 254 and later executes this program, which then executes the unit's command.
_EXECUTOR = "systemd-executor"
# The limit for processes of the boot, paths that the boot makes, and different actions of the unit. A boot of a large
# service has some tens of thousands.
_MOST_FACTS = 1 << 19
# The memory of these facts, because a path of thousands of components has an object for each component.
_MOST_BYTES = 256 << 20
_BYTES_OF_A_FACT, _BYTES_OF_A_CHARACTER = 256, 6
# Files that say which addresses and routes the machine has (proc(5)).
_ADDRESSES = re.compile(r"/proc/(?:[^/]+/)?net/(?:if_inet6|fib_trie|route|ipv6_route)")
# Five times as long as the log of an ordinary boot takes.
_S_OF_A_MIB = 0.5
_SLOW = "does a program of the image use very many files, or very long names, at the boot?"
_VOLATILE = ("/proc/", "/sys/", "/dev/", "/run/")


@dataclass(frozen=True, kw_only=True)
class UnitLog:
    """The actions of the traced units in a log of strace. ``events`` are the actions of the units' programs in the
    order of the log, without duplicates. ``processes`` is the number of the units' processes. ``units`` has each unit
    with a process that executed a program.

    ``alive`` is the number of processes that executed a program and whose end is not in the log. ``blind`` are
    the programs that set up an io_uring, through which a program can open files without a system call. ``network``
    says that a program of the units used the network, or asked for the machine's addresses (see uses_network in
    calls.py, which lists the cases).

    ``changed`` has the paths of files that other processes of the boot had changed before a program of the units, or
    systemd, used the files. The paths are in the order of their first use. ``peers`` are the programs' connections to
    sockets of other processes. ``lines`` is the number of the last line in the log that has an action.
    """

    events: tuple[Event, ...]
    processes: int
    alive: int
    blind: tuple[str, ...]
    lines: int
    units: frozenset[str]
    network: bool = False
    changed: Changed = NOTHING_CHANGED
    peers: tuple[Peer, ...] = ()


@dataclass(kw_only=True)
class _Member:
    """A process of ``unit``. ``program`` is the name of the program that the process runs. ``program`` is empty until
    the process, a child of systemd, executes the unit's command. ``command`` is the path of the first program that the
    process or one of its ancestors in the unit executed.

    ``bare`` says that the program was executed without the environment that systemd gives to the unit. ``needless``
    says that the program is a command of systemctl that an early start can do without (see is_needless in calls.py).
    """

    pid: int
    program: str
    unit: str
    alive: bool = True
    bare: bool = False
    command: str = ""
    needless: bool = False


@dataclass(kw_only=True)
class _Collector:
    """Collects the events of the units from the items of a log. Memory use grows with the number of different events,
    not with the log's length.
    """

    # The control groups' files of the units, by the end of their paths.
    suffixes: Mapping[str, str]
    pids: dict[int, int] = field(default_factory=dict)
    members: dict[int, _Member] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    # The lengths of the paths in ``made``. Few of the looked-up paths have one of these lengths.
    made_lengths: set[int] = field(default_factory=set)
    found: dict[tuple[str, Op, str, str | None, bool, bool], Event] = field(default_factory=dict)
    blind: dict[str, None] = field(default_factory=dict)
    others: Others = field(init=False)
    peers: Peers = field(init=False)
    resolvers: Resolvers = field(default_factory=Resolvers)
    network: bool = False
    used_bytes: int = 0

    def __post_init__(self) -> None:
        # The set of made paths has the same text.
        self.others = Others(lambda path: None if path in self.made else self.use(path))
        self.peers = Peers(self.use)

    def check_room(self) -> None:
        """Raise TraceError when the log has more processes, actions and changed paths than the log of any real boot,
        or when the paths in the log use too much memory. The guest's programs determine these numbers, so the numbers
        need limits.
        """
        # A path that got new content is also a changed path, so the larger number counts.
        changed = max(len(self.made), len(self.others.changed)) + self.peers.count
        if len(self.pids) + len(self.found) + changed > _MOST_FACTS:
            raise TraceError(
                f"the strace log has more than {_MOST_FACTS} processes, made files and different actions"
            )
        if self.used_bytes > _MOST_BYTES:
            raise TraceError(f"the paths in the strace log take more than {_MOST_BYTES} bytes of memory")

    def use(self, path: str) -> None:
        """Add the memory of one more path to the sum that ``check_room`` limits."""
        self.used_bytes += _BYTES_OF_A_FACT + _BYTES_OF_A_CHARACTER * len(path)

    def born(self, item: Born) -> None:
        self.pids[item.number] = item.pid
        if (parent := self.members.get(item.parent)) is not None:
            self.members[item.number] = replace(parent, pid=item.pid, alive=True)

    def seen(self, item: Seen) -> None:
        member = self.members.get(item.number)
        if member is None:
            # PID 1 also writes this file for other processes.
            unit = self.suffixes.get("/".join(item.path.rsplit("/", 2)[1:])) if item.op is Op.WRITE else None
            if unit is not None and self.pids[item.number] != 1:
                self.members[item.number] = _Member(pid=self.pids[item.number], program="", unit=unit)
        else:
            name = item.path.rpartition("/")[2]
            if item.op is Op.EXEC and item.error is None and name != _EXECUTOR:
                member.program, member.bare, member.needless = name, item.bare, item.needless
                member.command = member.command or item.path
            if member.program:
                self._keep(item, member)
                self.network = self.network or (
                    item.op is Op.OPEN and _ADDRESSES.fullmatch(item.path) is not None
                )
        paths = {item.path, item.real} - {""}
        if item.makes and not item.path.startswith(_VOLATILE):
            for name in paths - self.made:
                self.use(name)
                self.made.add(name)
                self.made_lengths.add(len(name))
        # A process that changes a file, and does not begin the file again, uses the existing content.
        is_use = item.error is None or (item.error == "ENOENT" and item.op is not Op.WRITE)
        if is_use and not item.makes:
            if member is not None and member.program:
                self.others.use(self.resolvers.used(item, (member.unit, member.program), frozenset(paths)))
            elif member is not None or self.pids[item.number] == 1:
                self.others.use(paths, by_manager=True)
        if item.op is Op.WRITE and item.error is None:
            # systemd's child makes the unit's directories, as the starter does.
            self.others.change(paths, by_unit=item.number in self.members)

    def _keep(self, item: Seen, member: _Member) -> None:
        made = (
            item.op is not Op.WRITE
            and item.error is None
            and (self._is_made(item.path) or self._is_made(item.real))
        )
        key = (member.program, item.op, item.path, item.error, made, member.bare)
        if key not in self.found:
            self.use(item.path + item.real)
            real = PurePosixPath(item.real) if item.real not in ("", item.path) else None
            self.found[key] = Event(
                line=item.line,
                pid=member.pid,
                program=member.program,
                op=item.op,
                path=PurePosixPath(item.path),
                error=item.error,
                made=made,
                real=real,
                bare=member.bare,
            )

    def _is_made(self, path: str) -> bool:
        """Whether the boot has given new content to ``path`` or to one of the parent directories of ``path``."""
        end = len(path)
        while end > 0:
            if end in self.made_lengths and path[:end] in self.made:
                return True
            end = path.rfind("/", 0, end)
        return False

    def gone(self, item: Gone) -> None:
        if (member := self.members.get(item.number)) is not None:
            member.alive = False

    def noticed(self, item: Blind | Asked | Bound | Met) -> None:
        member = self.members.get(item.number)
        if isinstance(item, Bound):
            self.peers.bound(item.path, by_unit=member is not None)
        elif member is None or not member.program:
            return
        elif isinstance(item, Asked):
            self.network = True
        elif isinstance(item, Blind):
            self.blind[member.program] = None
        elif not member.needless:
            self.peers.connected(Peer(item.path, member.program, member.command))


def collect_file(log: BinaryIO, *units: str) -> UnitLog:
    """The actions of ``units`` in a log file of any size. The file is read from its beginning. Raises TraceError for a
    damaged log, and BadInputError when reading takes far more CPU time than for other logs of this size.
    """
    size_bytes = log.seek(0, os.SEEK_END)
    log.seek(0)
    with limited_by_size(size_bytes):
        return collect(lines_of(log, MAX_LINE_BYTES), *units)


def limited_by_size(size_bytes: int) -> AbstractContextManager[None]:
    """A context manager for reading logs of ``size_bytes`` bytes. Raises BadInputError when the reading takes far more
    CPU time than usual for logs of this size. This limit is necessary because programs of the guest determine the
    content of the logs.
    """
    limit_s = LIMIT_S + _S_OF_A_MIB * size_bytes / MIB
    return cpu_limit("the logs of the reference boot", limit_s, _SLOW)


def collect(lines: Iterable[bytes], *units: str) -> UnitLog:
    """The actions of ``units`` in the lines of a log. The result has no events when no process of ``units``
    is in the log. Raises TraceError for a damaged log.
    """
    collector = _Collector(suffixes={f"{unit}/cgroup.procs": unit for unit in units})
    last = 0
    for item in read_events(lines):
        collector.check_room()
        if isinstance(item, Born):
            collector.born(item)
            continue
        if isinstance(item, Gone):
            collector.gone(item)
            continue
        last = max(last, item.line)
        if isinstance(item, Seen):
            collector.seen(item)
        else:
            collector.noticed(item)
    collector.others.use(collector.resolvers.rest())
    events = tuple(sorted(collector.found.values(), key=lambda event: event.line))
    members = collector.members.values()
    alive = sum(1 for member in members if member.alive and member.program)
    return UnitLog(
        events=events,
        processes=len(members),
        alive=alive,
        blind=tuple(sorted(collector.blind)),
        lines=last,
        units=frozenset(member.unit for member in members if member.program),
        network=collector.network,
        changed=Changed(
            tuple(map(PurePosixPath, collector.others.used)),
            tuple(map(PurePosixPath, collector.others.used_by_manager)),
        ),
        peers=tuple(collector.peers.met),
    )


def loaded_files(log: UnitLog) -> tuple[PurePosixPath, ...]:
    """The files that the processes of the units executed or mapped for execution, sorted."""
    return tuple(sorted({e.path for e in log.events if e.error is None and e.op in (Op.EXEC, Op.MAP)}))
