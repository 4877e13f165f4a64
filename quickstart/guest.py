"""The protocols behind which guests are started and asked. launch/ implements them, one backend a module.

Every backend gives a `Guest`. What only some of them can do is a capability: a protocol of its own, which a verb
demands by the function below it. A backend that lacks it gets a `GuestLacksError`, before the work begins where
the verb can know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self, runtime_checkable

from quickstart.errors import GuestLacksError
from quickstart.model import Beacon, Counters, Readied, Readiness, ReadyStamp, RootIo
from quickstart.model.machine import Machine


@dataclass(frozen=True)
class Hello:
    """The agent's first word: the version of its protocol."""

    version: int


@dataclass(frozen=True)
class Output:
    """A piece of the running command's output; ``stream`` is ``out`` or ``err``."""

    stream: str
    data: bytes


@dataclass(frozen=True)
class Exit:
    """The end of the running command."""

    status: int


Message = Hello | Beacon | ReadyStamp | Counters | Output | Exit


@dataclass(frozen=True)
class Piece:
    """Bytes of a console and their position in it. The position is higher than the one that was asked for where
    the bytes before it are no longer kept.
    """

    position: int
    data: bytes


class ConsoleLog(Protocol):
    """The output of a guest's console, of which the beginning and the newest part are kept."""

    @property
    def path(self) -> Path:
        """The file with the beginning."""
        ...

    @property
    def size_bytes(self) -> int:
        """All that the guest has said, kept or not."""
        ...

    def read(self, position: int) -> Piece: ...

    def tail(self, size_bytes: int) -> bytes: ...


def _always() -> bool:
    return True


class Guest(Protocol):
    """A running guest. Leaving its context ends it and removes what it left on the host."""

    url_port: int | None

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_ready(self, timeout_s: float, has_volume: Callable[[], bool] = _always) -> Readied:
        """Wait for the first correct answer.

        Raise GuestError with the last console lines when the guest dies, when the time is up, or when its root
        volume is gone, as ``has_volume`` says.
        """
        ...

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """What the agent says in this time; ends early with the guest."""
        ...

    def is_running(self) -> bool:
        """Whether the guest could still be asked for something."""
        ...

    def demand_running(self) -> None:
        """Raise GuestError when the host has stopped the machine, as for lack of space."""
        ...

    def root_io(self) -> RootIo:
        """Reads and writes of the root volume since the launch, as the backend counts them; zeros without one."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for the guest to end by itself; False when it still runs."""
        ...

    def fallback(self) -> str:
        """Init's reason for leaving the way to the stock init (docs/internals/guest.md); empty when it has not, or
        where the backend cannot see it.
        """
        ...

    def console_tail(self, lines: int = 20) -> str:
        """The last lines of the console for an error message; empty without a console."""
        ...


@runtime_checkable
class Executes(Guest, Protocol):
    """A guest that runs commands as root, by /bin/sh."""

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        """Run ``command``; return its exit status.

        Raise GuestError when it says more than ``limit_bytes`` on both streams together.
        """
        ...

    def start(self, command: str) -> None:
        """Run ``command`` without waiting for its end; `messages` has its output and its end."""
        ...


@runtime_checkable
class HasConsole(Guest, Protocol):
    """A guest whose console can be read while it runs."""

    @property
    def console(self) -> ConsoleLog: ...


@runtime_checkable
class HasTerminal(Guest, Protocol):
    """A guest whose console takes input."""

    @property
    def console_socket(self) -> Path:
        """A UNIX socket that is the guest's first serial line; one client at a time."""
        ...


@runtime_checkable
class Powered(Guest, Protocol):
    """A guest that shuts down in order when asked to."""

    def power_off(self, timeout_s: float) -> bool:
        """Ask the guest to shut down; False when it did not do so in time."""
        ...


def executing(guest: Guest) -> Executes:
    """``guest``, when it can run commands. Raises GuestLacksError."""
    if isinstance(guest, Executes):
        return guest
    raise GuestLacksError("run commands in this guest", "its backend has no channel for them")


def with_console(guest: Guest) -> HasConsole:
    """``guest``, when its console can be read. Raises GuestLacksError."""
    if isinstance(guest, HasConsole):
        return guest
    raise GuestLacksError("show the console of this guest", "its backend gives none")


def with_terminal(guest: Guest) -> HasTerminal:
    """``guest``, when its console takes input. Raises GuestLacksError."""
    if isinstance(guest, HasTerminal):
        return guest
    raise GuestLacksError("open a terminal of this guest", "its backend gives none")


def powered(guest: Guest) -> Powered:
    """``guest``, when it can be asked to shut down. Raises GuestLacksError."""
    if isinstance(guest, Powered):
        return guest
    raise GuestLacksError("shut this guest down in order", "its backend can only switch it off")


_NO_FILES: Mapping[str, bytes | Path] = {}


class Launcher(Protocol):
    """Starts guests of one backend."""

    @property
    def name(self) -> str:
        """The accelerator or hypervisor, as measurements record it."""
        ...

    def launch(
        self, machine: Machine, ready: Readiness | None, files: Mapping[str, bytes | Path] = _NO_FILES
    ) -> Guest:
        """A guest that starts when its context is entered.

        Its agent asks ``ready`` and reports the first correct answer; without one it only runs commands.
        ``files`` go into the launch archive beside the agent, by their names below /launch
        (docs/internals/agent.md).
        """
        ...
