"""The data classes for a unit that is started early."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class UnitCommand:
    """A command of the unit. ``program`` is the program's path, and ``words`` are its argv, in which variables are not
    expanded. ``flags`` are those of the prefixes ``-+!:`` that the command has.
    """

    program: str
    words: tuple[str, ...]
    flags: str = ""


@dataclass(frozen=True)
class LateBind:
    """A bind mount in the unit's namespace that must wait for systemd, because one of systemd's services creates
    its source. When ``required`` is False, a missing source is not an error.
    """

    source: str
    target: str
    read_only: bool
    required: bool


@dataclass(frozen=True, kw_only=True)
class ListeningSocket:
    """A socket that init binds before the unit starts, in place of the socket unit ``unit``.

    ``kind`` is `stream`, `datagram` or `sequential-packet`. ``path`` is the path of a UNIX socket that is a file,
    and None for any other socket. ``port`` is 0 unless the socket has an IP address. ``records`` are the socket's
    records in the starter's description.
    """

    unit: str
    kind: str
    path: PurePosixPath | None
    port: int
    records: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class UnitStart:
    """How the unit starts its main process (systemd.service(5)).

    ``settings`` are records of the starter's description, the text file by which the starter starts the unit early
    (docs/internals/starter.md). There are records for all directives of the unit except commands. ``group`` is the
    unit's cgroup, as a path below the root cgroup. ``timeout_ms`` is the timeout of the unit's start, or 0 when there
    is no timeout. ``late_binds`` are the bind mounts that the script `adopt` makes when systemd adopts the process. The
    main process gets ``sockets`` in the order of the tuple (sd_listen_fds(3)). PID 1 holds the sockets of all units of
    the stack in order, and ``sockets_before`` is the number of sockets that come before this unit's sockets.
    ``journal_sockets`` are journald's sockets, which PID 1 passes only to systemd. ``companions`` are the other units
    of a stack, in the order in which they start before this unit. ``on_bus`` says whether one of the companions is the
    system's message bus.
    """

    unit: str
    type: str
    pid_file: PurePosixPath | None
    start_pre: tuple[UnitCommand, ...]
    start: UnitCommand
    conditions: tuple[UnitCommand, ...] = ()
    start_post: tuple[UnitCommand, ...] = ()
    group: str = ""
    timeout_ms: int = 90_000
    settings: tuple[tuple[str, ...], ...] = ()
    late_binds: tuple[LateBind, ...] = ()
    sockets: tuple[ListeningSocket, ...] = ()
    sockets_before: int = 0
    journal_sockets: tuple[ListeningSocket, ...] = ()
    companions: tuple[UnitStart, ...] = ()
    on_bus: bool = False

    @property
    def all_units(self) -> tuple[UnitStart, ...]:
        """All units of the stack, in the order in which they start early. This unit is the last unit of the stack."""
        return (*self.companions, self)

    @property
    def delegates(self) -> bool:
        """Whether this unit may manage control groups below its own control group (Delegate=, see delegation.py)."""
        return any(kind == "delegate" for kind, *_ in self.settings)

    @property
    def made_up_user(self) -> str | None:
        """The name of the unit's user if systemd makes the user up (DynamicUser=, inspect/unit/dynamicuser.py)."""
        facts = {kind: words for kind, *words in self.settings if kind in ("user", "dynamic-user")}
        return facts["user"][0] if "dynamic-user" in facts else None

    @property
    def commands(self) -> tuple[UnitCommand, ...]:
        """All commands of this unit, in the order in which they run."""
        return (*self.conditions, *self.start_pre, self.start, *self.start_post)
