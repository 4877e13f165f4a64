"""The interface through which long work reports its progress. The command line shows the progress. Libraries and tests
may ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports. Long work reports the beginning of each step, with the step's name, and the end
    of the step.
    """

    def step(self, name: str) -> AbstractContextManager[None]:
        """A context that lasts as long as a step of the work. If the context ends without an error, the step is
        complete.
        """
        ...

    def note(self, text: str) -> None:
        """Show one line, which stays visible."""
        ...


class Quiet:
    """A Progress that shows nothing."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield

    def note(self, text: str) -> None:
        pass
