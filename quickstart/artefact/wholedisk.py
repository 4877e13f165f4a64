"""An artefact whose disk has a partition table and a boot loader. Such an artefact has the target DISK."""

from __future__ import annotations

from quickstart.errors import BadInputError
from quickstart.model import Artefact
from quickstart.model.words import Target

# The name of the disk in OUT. It has more than the root volume.
WHOLE_DISK = "disk.raw"


def demand_root_volume(artefact: Artefact, verb: str) -> None:
    """Raise BadInputError when the artefact's disk has a boot loader. The verb of `quickstart` with the name ``verb``
    does not support such a disk yet.
    """
    if artefact.target is Target.DISK:
        raise BadInputError(
            f"{artefact.directory} has a disk that boots by itself, which `{verb}` does not know so far",
            hint="docs/users/image.md says what works",
        )
