"""Remember in the store which artefacts we have made ourselves.

The build key in a manifest is computed from public facts, so whoever gives us an artefact can write the key that
our own build would have. A record in the store is ours: its inputs are the digests of all files that we have made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quickstart.artefact.sums import made_digests
from quickstart.errors import BadInputError
from quickstart.store.store import Store

_STAGE = "made"


def remember(directory: Path, store: Store) -> None:
    """Record that we have made the artefact in ``directory``, as it is now."""
    store.get_or_make(_STAGE, _inputs(directory), _nothing)


def is_remembered(directory: Path, store: Store) -> bool:
    """Whether the store has the record that we have made this artefact, with these bytes. False for a damaged artefact."""
    try:
        return store.use(_STAGE, _inputs(directory)) is not None
    except BadInputError:
        return False


def _inputs(directory: Path) -> Mapping[str, object]:
    return {"files": made_digests(directory)}


def _nothing(directory: Path) -> None:
    """Write no files: the record is the entry itself."""
