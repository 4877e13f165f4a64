"""The interface through which long work reports its progress. The command line shows the progress; libraries
and tests need not show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports. It is told when a step begins, with the step's name, and when the step ends."""

    def step(self, name: str) -> AbstractContextManager[None]:
        """A step that lasts as long as the context. If the context ends without an error, the step is complete."""
        ...

    def note(self, text: str) -> None:
        """Show one line permanently."""
        ...


class Quiet:
    """A Progress that shows nothing."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield

    def note(self, text: str) -> None:
        pass
