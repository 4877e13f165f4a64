"""The data classes for a subject, which is traced and packed, and for the result of its traces."""

from __future__ import annotations

from dataclasses import dataclass

from quickstart.model import Profile, ReferenceImage, StartSet, Trace
from quickstart.model.rootdisk import RootDisk


@dataclass(frozen=True)
class Subject:
    """The application of ``profile`` in its reference image, and the root disk of that image."""

    profile: Profile
    reference: ReferenceImage
    disk: RootDisk


@dataclass(frozen=True)
class Traced:
    """A start set with the traces from which it was computed."""

    start_set: StartSet
    traces: tuple[Trace, ...]
