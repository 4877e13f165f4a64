"""Check an artefact for the person who receives it. `gather` reads the directory of the artefact (OUT), and the pure
function `judge` makes the findings. The page docs/users/audit.md describes the audit.
"""

from quickstart.artefact.audit.findings import ERROR, MOST_FINDINGS, NOTE, Finding, Findings
from quickstart.artefact.audit.given import LAUNCH_MARKS, gather
from quickstart.artefact.audit.judge import judge
from quickstart.host.cpulimit import INSIDE_LIMIT_S, cpu_limit
from quickstart.model import Artefact

__all__ = ["ERROR", "LAUNCH_MARKS", "MOST_FINDINGS", "NOTE", "Finding", "Findings", "audit"]


def audit(artefact: Artefact) -> Findings:
    """The findings about an artefact, errors first. Raises ArtefactError when the artefact is too damaged to
    be read, and BadInputError when reading the artefact takes too long.
    """
    with cpu_limit("OUT", INSIDE_LIMIT_S):
        return judge(gather(artefact))
