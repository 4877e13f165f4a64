"""The progress of long work. The command line shows it; libraries and tests need not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """Receives the names of steps as they begin and end."""

    def step(self, name: str) -> AbstractContextManager[None]:
        """A step that lasts as long as the context. When the context ends without an error, the step is done."""
        ...

    def note(self, text: str) -> None:
        """One line that stays."""
        ...


class Quiet:
    """A Progress that shows nothing."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield

    def note(self, text: str) -> None:
        pass
