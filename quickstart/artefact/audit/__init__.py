"""Check an artefact for somebody who receives it. `gather` reads OUT, and the pure function `judge` makes the
findings (docs/users/audit.md).
"""

from quickstart.artefact.audit.given import LAUNCH_MARKS, gather
from quickstart.artefact.audit.judge import ERROR, NOTE, Finding, judge
from quickstart.model import Artefact

__all__ = ["ERROR", "LAUNCH_MARKS", "NOTE", "Finding", "audit"]


def audit(artefact: Artefact) -> tuple[Finding, ...]:
    """The findings about an artefact, errors first. Raises ArtefactError when the artefact is too damaged to
    be read.
    """
    return judge(gather(artefact))
