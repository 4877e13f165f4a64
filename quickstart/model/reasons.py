"""The reasons why a file is in the start set, and their texts in start-set.json. This module imports no
module of QuickStart.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self


class ReasonSource(enum.StrEnum):
    """The kinds of reasons for which a file is in the start set."""

    TRACE = "trace"
    LDD = "ldd"
    ELF = "elf"
    SCRIPT = "script"
    SYMLINK = "symlink"
    HARD_LINK = "hardlink"
    PARENT = "parent"
    RULE = "rule"
    LEFT = "left on the volume"


_INTERPRETER_OF = "PT_INTERP of "


@dataclass(frozen=True, order=True)
class Reason:
    """One reason why a file is in the start set. ``detail`` is a text for people."""

    source: ReasonSource
    detail: str

    @classmethod
    def interpreter_of(cls, program: PurePosixPath) -> Self:
        """The reason that the file is the ELF interpreter (PT_INTERP) of ``program``."""
        return cls(ReasonSource.ELF, f"{_INTERPRETER_OF}{program}")

    @property
    def text(self) -> str:
        """The reason as start-set.json spells it."""
        return f"{self.source}: {self.detail}"


def interpreted_program(text: str) -> PurePosixPath | None:
    """The program that ``text`` names, if ``text`` has the form of the texts that ``Reason.interpreter_of`` makes. The
    result is None for any other text. ``text`` may come from an untrusted source.
    """
    begin = Reason(ReasonSource.ELF, _INTERPRETER_OF).text
    path = text.removeprefix(begin)
    return PurePosixPath(path) if text.startswith(begin) and path.startswith("/") else None
