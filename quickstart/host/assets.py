"""The place of the files beside the code: `profiles/`, `tracers/` and `bench/`, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def assets(name: str) -> Path:
    """The directory ``name`` that the wheel carries below `_data`, else the checkout's."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name
