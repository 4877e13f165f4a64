"""The findings of an audit. Only the first MOST_FINDINGS findings are kept, but all findings are counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR = "error"
NOTE = "note"
# Nobody reads more findings. The files of a stranger's OUT may have some hundred thousand faults.
MOST_FINDINGS = 1000


@dataclass(frozen=True)
class Finding:
    """One finding of an audit. ``severity`` is ``error`` or ``note``. ``what`` describes the fault, and ``mend`` says
    how to correct the fault.

    ``object`` names the thing that the finding is about. The name ``.`` means the directory of the artefact (OUT)
    itself. A name without a leading slash is a file in OUT. A name with a leading slash is a member of our initramfs,
    or a file of the start set.
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
        """The number of findings that are counted, but are not in ``first``."""
        return self.errors + self.notes - len(self.first)


def counted(found: Iterable[Finding]) -> Findings:
    """Count and collect the findings in ``found``. The function keeps at most MOST_FINDINGS findings of each severity
    in memory.
    """
    errors: list[Finding] = []
    notes: list[Finding] = []
    numbers = {ERROR: 0, NOTE: 0}
    for each in found:
        numbers[each.severity] += 1
        kept = errors if each.severity == ERROR else notes
        if len(kept) < MOST_FINDINGS:
            kept.append(each)
    return Findings(first=(*errors, *notes)[:MOST_FINDINGS], errors=numbers[ERROR], notes=numbers[NOTE])
