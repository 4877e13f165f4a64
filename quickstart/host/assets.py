"""Find the directories that are not code (`profiles/`, `tracers/` and `bench/`), in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def assets(name: str) -> Path:
    """The directory ``name``, from the wheel's `_data` or else from the checkout."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name
