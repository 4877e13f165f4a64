"""The interface through which long work reports its progress. The command line shows the progress. Tests, and programs
that use QuickStart as a library, may ignore the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports. Long work reports the beginning of each step, with the step's name, and the end
    of the step.
    """

    def step(self, name: str) -> AbstractContextManager[None]:
        """A context manager for one step of the work. The step lasts as long as the ``with`` block. If the block ends
        without an error, the step is complete.
        """
        ...

    def counted(self, name: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """A context manager for one step of ``total`` like pieces. The work calls its value after each piece, from any
        thread.
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

    @contextmanager
    def counted(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        yield lambda: None

    def note(self, text: str) -> None:
        pass
