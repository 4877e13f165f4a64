"""The findings of an audit. Only the first findings are kept, but all of them are counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR = "error"
NOTE = "note"
# Nobody reads more of them. The files of a stranger's OUT may have some hundred thousand faults.
MOST_FINDINGS = 1000


@dataclass(frozen=True)
class Finding:
    """A finding. ``severity`` is ``error`` or ``note``. ``object`` is the name of a file of OUT, ``.`` for
    OUT itself, or, with a leading slash, the name of a member of our initramfs or of a file of the start set.
    ``mend`` says how to remedy the finding.
    """

    severity: str
    object: str
    what: str
    mend: str


@dataclass(frozen=True)
class Findings:
    """``first`` has at most MOST_FINDINGS findings, errors before notes. ``errors`` and ``notes`` are the
    numbers of all errors and of all notes, including those that are not in ``first``.
    """

    first: tuple[Finding, ...]
    errors: int
    notes: int

    @property
    def left_out(self) -> int:
        """How many findings are counted, but not in ``first``."""
        return self.errors + self.notes - len(self.first)


def counted(found: Iterable[Finding]) -> Findings:
    """The findings in ``found``. At most MOST_FINDINGS of each severity are in memory at any time."""
    errors: list[Finding] = []
    notes: list[Finding] = []
    numbers = {ERROR: 0, NOTE: 0}
    for each in found:
        numbers[each.severity] += 1
        kept = errors if each.severity == ERROR else notes
        if len(kept) < MOST_FINDINGS:
            kept.append(each)
    return Findings(first=(*errors, *notes)[:MOST_FINDINGS], errors=numbers[ERROR], notes=numbers[NOTE])
