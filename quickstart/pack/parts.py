"""Find the parts of large files that the traced boots used (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.model import Trace
from quickstart.model.residency import Resident

Part = tuple[int, int]


def parts_of(traces: Sequence[Trace]) -> Mapping[PurePosixPath, Resident]:
    """The large files that occur in every trace, each with the parts that at least one of the traced boots used."""
    found: dict[PurePosixPath, list[Resident]] = {}
    for trace in traces:
        for each in trace.resident:
            found.setdefault(each.path, []).append(each)
    return {
        path: Resident(
            path, several[0].size_bytes, tuple(joined(part for each in several for part in each.parts))
        )
        for path, several in found.items()
        if len(several) == len(traces)
    }


def joined(parts: Iterable[Part], gap_bytes: int = 0) -> Iterator[Part]:
    """Return ``parts`` in ascending order and without overlaps. Each part is (offset, length) in bytes. Two parts with
    at most ``gap_bytes`` between them become one part.
    """
    begin = end = -1
    for offset, length in sorted(parts):
        if begin >= 0 and offset <= end + gap_bytes:
            end = max(end, offset + length)
            continue
        if begin >= 0:
            yield begin, end - begin
        begin, end = offset, offset + length
    if begin >= 0:
        yield begin, end - begin
