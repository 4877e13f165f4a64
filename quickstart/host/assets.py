"""Find the directories `profiles/`, `tracers/` and `bench/`, which are not code, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def assets(name: str) -> Path:
    """The path of the directory ``name`` in the wheel's `_data`. If the wheel's directory is missing, the result is the
    path in the checkout.
    """
    packed = _PACKAGE / "_data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name
