"""The starter (docs/starter.md) as a static program."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from quickstart.compiled import compiled
from quickstart.store import Store

_CFLAGS = (
    "-std=c11",
    "-Os",
    "-static",
    "-s",
    "-ffunction-sections",
    "-Wl,--gc-sections",
    "-Wall",
    "-Wextra",
    "-Werror",
)


def starter_binary(store: Store) -> Path:
    """The starter as a static program."""
    return compiled(store, "starter", resources.files("quickstart.initramfs").joinpath("starter"), _CFLAGS)
