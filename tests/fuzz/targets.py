"""All targets, by their names: a target for each parser of untrusted bytes."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import disks, documents, guests, images, volumes
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {
    **guests.TARGETS,
    **images.TARGETS,
    **disks.TARGETS,
    **documents.TARGETS,
    **volumes.TARGETS,
}
