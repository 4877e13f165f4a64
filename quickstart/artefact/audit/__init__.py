"""Look at an artefact as somebody who receives it would: `gather` reads OUT, `judge` is pure
(docs/users/audit.md).
"""

from quickstart.artefact.audit.given import LAUNCH_MARKS, gather
from quickstart.artefact.audit.judge import ERROR, NOTE, Finding, judge
from quickstart.model import Artefact

__all__ = ["ERROR", "LAUNCH_MARKS", "NOTE", "Finding", "audit"]


def audit(artefact: Artefact) -> tuple[Finding, ...]:
    """The findings on an artefact, errors first. Raises ArtefactError when it is too damaged to be read."""
    return judge(gather(artefact))
