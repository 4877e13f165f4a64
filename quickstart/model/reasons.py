"""Why a file is in the start set, and how start-set.json spells that. Imports nothing of ours."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self


class ReasonSource(enum.StrEnum):
    """What put a file into the start set."""

    TRACE = "trace"
    LDD = "ldd"
    ELF = "elf"
    SCRIPT = "script"
    SYMLINK = "symlink"
    HARD_LINK = "hardlink"
    PARENT = "parent"
    RULE = "rule"


_INTERPRETER_OF = "PT_INTERP of "


@dataclass(frozen=True, order=True)
class Reason:
    """Why a file is in the start set; ``detail`` is for people."""

    source: ReasonSource
    detail: str

    @classmethod
    def interpreter_of(cls, program: PurePosixPath) -> Self:
        """The file is the ELF interpreter (PT_INTERP) of ``program``."""
        return cls(ReasonSource.ELF, f"{_INTERPRETER_OF}{program}")

    @property
    def text(self) -> str:
        """The reason as start-set.json has it."""
        return f"{self.source}: {self.detail}"


def interpreted_program(text: str) -> PurePosixPath | None:
    """The program of a ``Reason.interpreter_of`` by that reason's ``text``; None for any other text, whoever wrote it."""
    begin = Reason(ReasonSource.ELF, _INTERPRETER_OF).text
    path = text.removeprefix(begin)
    return PurePosixPath(path) if text.startswith(begin) and path.startswith("/") else None
