"""Guests for tests: a stand-in that answers what a test says, and a real one in QEMU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from quickstart.engines.launching import launcher_for
from quickstart.guest import Executes, Message
from quickstart.host.progress import Quiet
from quickstart.launch.qemu import QemuGuest
from quickstart.model import Readied, Readiness, RootIo
from quickstart.model.machine import Machine
from quickstart.store.context import Context
from quickstart.store.store import Store


class StandInGuest(Executes):
    """A guest that runs commands. A test overrides what it asks for, `answer` among it; all else fails it."""

    def __init__(self) -> None:
        self.url_port: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to end."""

    def wait_ready(self, timeout_s: float, has_volume: Callable[[], bool] = lambda: True) -> Readied:
        raise AssertionError("nobody waits for this guest")

    def messages(self, timeout_s: float) -> Iterator[Message]:
        raise AssertionError("nobody listens to this guest")

    def is_running(self) -> bool:
        return True

    def demand_running(self) -> None:
        """It runs."""

    def root_io(self) -> RootIo:
        raise AssertionError("nobody counts this guest's reads")

    def wait(self, timeout_s: float) -> bool:
        return False

    def fallback(self) -> str:
        return ""

    def console_tail(self, lines: int = 20) -> str:
        return ""

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        return self.answer(command, stdout, timeout_s, limit_bytes)

    def answer(self, command: str, stdout: BinaryIO, timeout_s: float, limit_bytes: int | None) -> int:
        """What `execute` does."""
        raise AssertionError(f"nobody runs {command} in this guest")

    def start(self, command: str) -> None:
        raise AssertionError(f"nobody starts {command} in this guest")


@contextmanager
def launched(
    machine: Machine,
    ready: Readiness | None,
    store: Store,
    files: Mapping[str, bytes | Path] | None = None,
) -> Iterator[QemuGuest]:
    """A guest in QEMU, as every verb starts it, with all that QEMU's guests can do."""
    launcher = launcher_for(machine.kernel, Context(store, Quiet()))
    with launcher.launch(machine, ready, files or {}) as guest:
        assert isinstance(guest, QemuGuest)
        yield guest
