"""Read fstab(5) of a system on a stranger's disk. The functions are pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from quickstart.model.disk import Content, DiskFacts, Partition


@dataclass(frozen=True)
class FstabLine:
    """A line of fstab(5)."""

    place: str
    device: str
    options: frozenset[str]


def fstab_lines(content: Content) -> Iterator[FstabLine]:
    """The lines of fstab(5). When several lines have the same mount point, only the first line counts."""
    seen: set[str] = set()
    for line in file_text(content, "/etc/fstab").splitlines():
        words = line.split()
        place = posixpath.normpath(words[1]) if len(words) >= 2 else ""
        if place and not words[0].startswith("#") and place not in seen:
            seen.add(place)
            yield FstabLine(place, words[0], frozenset(",".join(words[3:4]).split(",")))


def named_partition(facts: DiskFacts, name: str) -> Partition | None:
    """The partition that the device ``name`` in fstab(5) means. ``name`` is UUID=…, LABEL=…, PARTUUID=… or
    PARTLABEL=…, or the path of a device of the machine's first disk.
    """
    kind, _, value = name.replace('"', "").partition("=")
    fields = {"UUID": "uuid", "LABEL": "label", "PARTUUID": "part_uuid", "PARTLABEL": "name"}
    folds = kind in ("UUID", "PARTUUID")
    for each in facts.partitions:
        if kind in fields and value:
            own = str(getattr(each, fields[kind]))
            if own == value or (folds and own.lower() == value.lower()):
                return each
        elif re.fullmatch(rf"/dev/(?:[hsv]da|xvda|nvme0n1p){each.number or ''}", name):
            return each
    return None


def file_text(content: Content, path: str) -> str:
    """The text of a small file, which is empty when there is no such file."""
    return content.files.get(path, b"").decode(errors="replace")
