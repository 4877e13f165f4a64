"""The findings of an audit. Only the first findings are kept, but all of them are counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR = "error"
NOTE = "note"
# Nobody reads more findings. The files of a stranger's OUT may have some hundred thousand faults.
MOST_FINDINGS = 1000


@dataclass(frozen=True)
class Finding:
    """A finding. ``severity`` is ``error`` or ``note``. ``mend`` says how to remedy the finding. ``object`` says what
    the finding is about:

    - ``.``: OUT itself
    - a name without a leading slash: a file in OUT
    - a name with a leading slash: a member of our initramfs, or a file of the start set
    """

    severity: str
    object: str
    what: str
    mend: str


@dataclass(frozen=True)
class Findings:
    """The result of an audit. ``first`` has at most MOST_FINDINGS findings, errors before notes. ``errors`` and
    ``notes`` are the numbers of all errors and of all notes, including those that are not in ``first``.
    """

    first: tuple[Finding, ...]
    errors: int
    notes: int

    @property
    def left_out(self) -> int:
        """How many findings are counted, but not in ``first``."""
        return self.errors + self.notes - len(self.first)


def counted(found: Iterable[Finding]) -> Findings:
    """Count and collect the findings in ``found``. At most MOST_FINDINGS of each severity are in memory at a time."""
    errors: list[Finding] = []
    notes: list[Finding] = []
    numbers = {ERROR: 0, NOTE: 0}
    for each in found:
        numbers[each.severity] += 1
        kept = errors if each.severity == ERROR else notes
        if len(kept) < MOST_FINDINGS:
            kept.append(each)
    return Findings(first=(*errors, *notes)[:MOST_FINDINGS], errors=numbers[ERROR], notes=numbers[NOTE])
