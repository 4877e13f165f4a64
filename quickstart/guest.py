"""The two protocols behind which guests are started; launch/ has what fulfils them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from quickstart.model import Machine, Readied, Readiness


class Guest(Protocol):
    """A running guest; leaving its context ends it and removes what it left on the host."""

    url_port: int | None

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_ready(self, timeout_s: float) -> Readied:
        """Raise GuestError with the last console lines when the guest dies or the time is up."""
        ...

    def execute(
        self,
        command: str,
        stdout: BinaryIO,
        stderr: BinaryIO,
        timeout_s: float,
        limit_bytes: int | None = None,
    ) -> int:
        """Run ``command`` by /bin/sh as root in the guest; return its exit status.

        Raise GuestError when it says more than ``limit_bytes`` on both streams together.
        """
        ...

    def power_off(self, timeout_s: float) -> bool:
        """Ask the guest to shut down; False when it did not do so in time."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for the guest to end by itself; False when it still runs."""
        ...

    def console_tail(self, lines: int = 20) -> str: ...


class Launcher(Protocol):
    """Starts guests; one for each of qemu, xen and ec2."""

    def launch(
        self, machine: Machine, extra_cpios: Iterable[bytes] = (), ready: Readiness | None = None
    ) -> Guest: ...
