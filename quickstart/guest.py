"""The Python protocols (typing.Protocol) for starting and using guests. The backends in launch/ implement these
protocols. A backend is a hypervisor or a cloud.

Every backend provides a `Guest`. A feature that only some backends have is a capability. Each capability has a
protocol, such as `Executes`. A verb (a subcommand of `quickstart`) requests a capability with one of the functions
below, such as `executing`. This function raises GuestLacksError when the backend lacks the capability. Where possible,
a verb calls this function before the work begins.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self, runtime_checkable

from quickstart.errors import GuestLacksError
from quickstart.model import Beacon, Counters, Readied, Readiness, ReadyStamp, RootIo
from quickstart.model.machine import Machine

_LAST_LINES, _LAST_BYTES = 20, 16 << 10


@dataclass(frozen=True)
class Hello:
    """The first message of the launch agent, QuickStart's program in the guest. ``version`` is the version of the
    agent's protocol.
    """

    version: int


@dataclass(frozen=True)
class Output:
    """A message of the launch agent, QuickStart's program in the guest. The message has a piece of the running
    command's output. ``stream`` is ``out`` (stdout) or ``err`` (stderr).
    """

    stream: str
    data: bytes


@dataclass(frozen=True)
class Exit:
    """A message of the launch agent, QuickStart's program in the guest. The message says that the running command has
    ended. ``status`` is the command's exit status.
    """

    status: int


Message = Hello | Beacon | ReadyStamp | Counters | Output | Exit


@dataclass(frozen=True)
class Piece:
    """A piece of a console's output. ``position`` is the offset of the piece in the whole output. When the log no
    longer has the bytes at the position that the caller requested, ``position`` is higher than the requested position.
    """

    position: int
    data: bytes


class ConsoleLog(Protocol):
    """The output of a guest's console. Only the beginning and the newest part of the output are kept."""

    @property
    def path(self) -> Path:
        """The file that has the beginning of the output."""
        ...

    @property
    def size_bytes(self) -> int:
        """The number of bytes that the guest has printed, including bytes that are no longer kept."""
        ...

    def read(self, position: int) -> Piece: ...

    def tail(self, size_bytes: int) -> bytes: ...


def _always() -> bool:
    return True


class Guest(Protocol):
    """A running guest. When the guest's context (``with``) ends, the guest is stopped, and its files on the host
    are removed.
    """

    url_port: int | None

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_ready(self, timeout_s: float, has_volume: Callable[[], bool] = _always) -> Readied:
        """Wait until the launch agent in the guest reports the first correct answer to the readiness request.

        Raise GuestError with the last console lines when the guest ends, or when ``timeout_s`` is over. Also raise
        GuestError when ``has_volume`` returns False, which means that the guest's root volume is gone.
        """
        ...

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """The messages that arrive from the launch agent in the next ``timeout_s`` seconds. The iterator ends early
        when the guest ends.
        """
        ...

    def is_running(self) -> bool:
        """Whether the guest is still running, and can therefore still answer."""
        ...

    def demand_running(self) -> None:
        """Raise GuestError when the host has paused the machine, for example because the host's disk is full."""
        ...

    def root_io(self) -> RootIo:
        """The reads and writes of the root volume from the launch until now, as the backend counts them. All
        counts are 0 for a guest without a root volume.
        """
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for the guest to end by itself. Return False if the guest still runs after ``timeout_s`` seconds."""
        ...

    def fallback(self) -> str:
        """The reason why init gave up the fast start and executed the distribution's init (docs/internals/guest.md
        describes this fallback). The reason is empty when init did not give up, or when the launcher cannot report the
        reason.
        """
        ...

    def console_tail(self, lines: int = 20) -> str:
        """The last lines of the console, for an error message. Empty for a guest without a console."""
        ...


@runtime_checkable
class Executes(Guest, Protocol):
    """A guest that can run commands as root, by /bin/sh."""

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        """Run ``command`` and return its exit status.

        Raise GuestError when the command does not end within ``timeout_s`` seconds, or when the guest ends before the
        command. Also raise GuestError when the command prints more than ``limit_bytes`` bytes on stdout and stderr
        together.
        """
        ...

    def start(self, command: str) -> None:
        """Run ``command`` without waiting for its end. The iterator of `messages` then yields the command's output
        and, at the end, an `Exit`.
        """
        ...


def last_lines(said: io.BytesIO) -> list[str]:
    """The last lines of a command's output, for an error message. The guest may be hostile: a line of Python has many
    times the size of a short line of the output, so only the end of the output becomes text.
    """
    with said.getbuffer() as data:
        end = bytes(data[-_LAST_BYTES:])
    return end.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]


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
        """A UNIX socket that is connected to the guest's first serial line. The socket takes one client at a time."""
        ...


@runtime_checkable
class Powered(Guest, Protocol):
    """A guest that can be asked for an orderly shutdown."""

    def power_off(self, timeout_s: float) -> bool:
        """Ask the guest to shut down. Return False when the guest has not ended in time."""
        ...


@runtime_checkable
class CountsInstructions(Guest, Protocol):
    """A guest whose backend counts the instructions that the guest executes."""

    def instructions(self) -> int:
        """The number of instructions that the guest has executed since its start."""
        ...


def executing(guest: Guest) -> Executes:
    """Return ``guest`` if it can run commands. Otherwise, raise GuestLacksError."""
    if isinstance(guest, Executes):
        return guest
    raise GuestLacksError("run commands in this guest", "its backend has no channel for them")


def with_console(guest: Guest) -> HasConsole:
    """Return ``guest`` if its console can be read. Otherwise, raise GuestLacksError."""
    if isinstance(guest, HasConsole):
        return guest
    raise GuestLacksError("show the console of this guest", "its backend gives none")


def with_terminal(guest: Guest) -> HasTerminal:
    """Return ``guest`` if its console takes input. Otherwise, raise GuestLacksError."""
    if isinstance(guest, HasTerminal):
        return guest
    raise GuestLacksError("open a terminal of this guest", "its backend gives none")


def powered(guest: Guest) -> Powered:
    """Return ``guest`` if it can be asked to shut down. Otherwise, raise GuestLacksError."""
    if isinstance(guest, Powered):
        return guest
    raise GuestLacksError("shut this guest down in order", "its backend can only switch it off")


def counting_instructions(guest: Guest) -> CountsInstructions:
    """Return ``guest`` if its instructions are counted. Otherwise, raise GuestLacksError."""
    if isinstance(guest, CountsInstructions):
        return guest
    raise GuestLacksError("count the instructions of this guest", "its backend does not count them")


_NO_FILES: Mapping[str, bytes | Path] = {}


class Launcher(Protocol):
    """Starts the guests of one backend."""

    @property
    def name(self) -> str:
        """The name of the accelerator or hypervisor. Each measurement is recorded with this name."""
        ...

    def launch(
        self, machine: Machine, ready: Readiness | None, files: Mapping[str, bytes | Path] = _NO_FILES
    ) -> Guest:
        """Return a guest that starts when its context (``with``) begins.

        The launch agent, QuickStart's program in the guest, sends the request in ``ready`` and reports the first
        correct answer. Without ``ready``, the agent only runs commands. ``files`` are added to the archive that brings
        the agent into the guest. Each key of ``files`` is a path in the guest below the directory /launch. Each value
        is the file's content, or the path of a file on this host.
        """
        ...
