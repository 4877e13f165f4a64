"""Provide the programs in part A of the initramfs. BusyBox comes from the host. The other programs are our own:

- the mounter and the modloader (docs/internals/guest.md)
- the starter, which is also called caretaker (docs/internals/starter.md)
- the checker (docs/internals/integrity.md)
- the prefetcher (docs/internals/prefetch.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from quickstart.host import door
from quickstart.store.compiled import compiled
from quickstart.store.store import Store

# With glibc, the program would be 0.8 MB larger. musl-gcc does not find the kernel's headers, which are beside those
# of glibc.
STARTER_COMPILER = "musl-gcc"
# The caretaker is in the same program. As a program of its own, it would have 50 KB.
STARTER_SOURCES = ("starter", "caretaker", "walk")
STARTER_FLAGS = (
    *("-std=c11", "-Os", "-static", "-s", "-ffunction-sections", "-Wl,--gc-sections"),
    *("-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"),
)
# These programs have no C library, so they cannot use its functions, nor the stack protector, which needs it. Code
# and constants are in one segment. Otherwise, they would be padded to whole pages, which are 4 to 7 KB more for each
# program.
FREESTANDING_FLAGS = (
    *("-std=gnu11", "-O2", "-static", "-s", "-nostdlib", "-ffreestanding", "-fno-pie", "-no-pie"),
    *("-ffunction-sections", "-Wl,--gc-sections", "-Wl,-z,noseparate-code"),
    "-fno-stack-protector",
)


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The paths on this host of the static programs that go into the initramfs."""

    busybox: Path
    mounter: Path
    modloader: Path
    starter: Path
    checker: Path
    prefetcher: Path

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.busybox, self.mounter, self.modloader, self.starter, self.checker, self.prefetcher)


def programs(store: Store) -> Programs:
    """The host's BusyBox, and our own programs. QuickStart compiles our programs into the store."""
    return Programs(
        busybox=door.tool_path("busybox"),
        mounter=freestanding(store, "mounter"),
        modloader=freestanding(store, "modloader"),
        starter=compiled(
            store, "starter", STARTER_FLAGS, *map(_sources, STARTER_SOURCES), compiler=STARTER_COMPILER
        ),
        checker=freestanding(store, "checker"),
        prefetcher=freestanding(store, "prefetcher"),
    )


def freestanding(store: Store, name: str) -> Path:
    """The path of our program ``name``. QuickStart compiles this program without a C library."""
    return compiled(store, name, FREESTANDING_FLAGS, _sources("freestanding"), _sources(name))


def _sources(name: str) -> Traversable:
    return resources.files("quickstart.initramfs").joinpath(name)
