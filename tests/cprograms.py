"""All our C programs: how each is compiled, and from which sources. Tests use the flags of a build, and -Werror."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from quickstart.initramfs.programs import (
    FREESTANDING_FLAGS,
    STARTER_COMPILER,
    STARTER_FLAGS,
    STARTER_SOURCES,
)
from quickstart.launch import archive
from quickstart.reference import confine
from quickstart.store.compiled import WARNINGS
from quickstart.trace import record
from quickstart.volume import emulator

ROOT = Path(__file__).parents[1]
OURS = ROOT / "quickstart"
PROTOCOL = OURS / "store/protocol"
PARTS = OURS / "initramfs"
STRICT = (*WARNINGS, "-Werror")
_LIMIT_S = 120


@dataclass(frozen=True)
class CProgram:
    """A program: its ``compiler``, the ``flags`` of a build but for the warnings, and the ``folders`` of its sources."""

    compiler: str
    flags: tuple[str, ...]
    folders: tuple[Path, ...]

    @property
    def sources(self) -> tuple[Path, ...]:
        return tuple(path for folder in self.folders for path in sorted(folder.glob("*.c")))


def _freestanding(name: str) -> CProgram:
    return CProgram("cc", FREESTANDING_FLAGS, (PARTS / name, PARTS / "freestanding"))


PROGRAMS = {
    "agent": CProgram("cc", archive.FLAGS, (OURS / "launch/agent",)),
    "volume": CProgram("cc", emulator.FLAGS, (OURS / "volume/emulator",)),
    "starter": CProgram(STARTER_COMPILER, STARTER_FLAGS, tuple(PARTS / name for name in STARTER_SOURCES)),
    "confiner": CProgram(confine.COMPILER, confine.FLAGS, (OURS / "reference/confiner",)),
    **{name: CProgram("cc", flags, (ROOT / "tracers" / name,)) for name, flags in record.FLAGS.items()},
    **{name: _freestanding(name) for name in ("checker", "modloader", "mounter", "prefetcher")},
}


def strictly_compiled(program: CProgram, target: Path, *more: str) -> Path:
    """The program as a build makes it, but that a warning is an error; ``more`` flags come last."""
    include = (word for folder in (PROTOCOL, *program.folders) for word in ("-I", folder))
    words: list[str | Path] = [program.compiler, *STRICT, *program.flags, *include, *more, "-o", target]
    done = subprocess.run(
        [*words, *program.sources], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr + "\n(a tool is missing? make setup)"
    return target
