"""The programs of part A: BusyBox is the host's, starter (docs/starter.md) and checker (docs/integrity.md) are ours."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from quickstart.compiled import compiled
from quickstart.host import door
from quickstart.store import Store

_STARTER_FLAGS = (
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
# It has no C library, so nothing of one may be taken for granted: not the stack protector's, nor that memset is not our own loop.
# Without tree-ter GCC 12 makes 6 % fewer instructions of the AVX2 way.
CHECKER_FLAGS = (
    *("-std=gnu11", "-O2", "-fno-tree-ter", "-static", "-s", "-nostdlib", "-ffreestanding"),
    *("-fno-pie", "-no-pie", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns"),
    *("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion"),
)


@dataclass(frozen=True)
class Programs:
    """Static programs on this host."""

    busybox: Path
    starter: Path
    checker: Path


def programs(store: Store) -> Programs:
    """BusyBox where the host has it, ours compiled into the store."""
    sources = resources.files("quickstart.initramfs")
    return Programs(
        door.tool_path("busybox"),
        compiled(store, "starter", sources.joinpath("starter"), _STARTER_FLAGS),
        checker_binary(store),
    )


def checker_binary(store: Store) -> Path:
    """The checker as a static program."""
    return compiled(
        store, "checker", resources.files("quickstart.initramfs").joinpath("checker"), CHECKER_FLAGS
    )
