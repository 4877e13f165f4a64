"""What every stage is given beside its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from quickstart.host.progress import Progress
from quickstart.store.store import Store


@dataclass(frozen=True)
class Context:
    """Where the stages keep their results, and whom they tell what they are doing."""

    store: Store
    progress: Progress
