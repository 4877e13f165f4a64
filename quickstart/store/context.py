"""The context that every stage (step of a build) gets, in addition to its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from quickstart.host.progress import Progress
from quickstart.store.store import Store


@dataclass(frozen=True)
class Context:
    """The store in which stages keep their results, and the display of their progress."""

    store: Store
    progress: Progress
