"""The data classes for a subject, which is traced and packed, and for the result of its traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quickstart.model import Profile, ReferenceImage, StartSet, Trace
from quickstart.model.rootdisk import RootDisk


@dataclass(frozen=True)
class Subject:
    """The application of ``profile`` in its reference image, and the root disk of that image."""

    profile: Profile
    reference: ReferenceImage
    disk: RootDisk

    @property
    def whole_inputs(self) -> Mapping[str, object]:
        """The inputs of a boot that come from the disk around the root volume: where the disk is from, and the words of
        its boot loader. The result is empty when the root volume has no such disk.
        """
        disk = self.disk
        return {"whole": [*self.reference.origin, disk.at_bytes, *disk.options]} if disk.whole else {}


@dataclass(frozen=True)
class Traced:
    """A start set with the traces from which it was computed."""

    start_set: StartSet
    traces: tuple[Trace, ...]
