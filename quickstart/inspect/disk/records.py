"""Parse the output of the appliance, our small guest that reads a disk. The appliance's script `guest/look` prints
records, each with a name and some bytes. These bytes come from a disk that somebody else has made.
"""

from __future__ import annotations

from dataclasses import dataclass

# A path has at most 4096 bytes, and the name of a record has one.
_MOST_HEAD_BYTES = 4200
_MOST_RECORDS = 1 << 16
# The appliance's script guest/look has the same limit. But a stranger's disk may have taken over the appliance, so the
# limit is checked here again.
_MOST_CONTENT_BYTES = 1 << 20
# Linux numbers at most 255 partitions of a disk (DISK_MAX_PARTS).
_LAST_PARTITION = 255
_NUMBERS = frozenset(map(str, range(_LAST_PARTITION + 1)))
_END = "end"
# The records without a number are about the whole disk. Only records about files have a path.
_OF_THE_DISK = frozenset(("boot-sector", "sector-bytes", "sectors"))
_OF_FILES = "file"


@dataclass(frozen=True)
class Record:
    """A record in the appliance's output. ``name`` says what the record is about. ``number`` is the number of the
    partition, or 0 for the whole disk. If the record is about a file, ``path`` is the file's path in its file system,
    and begins with ``./``. For other records, ``path`` is empty.
    """

    name: str
    number: int
    path: str
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


def parse_records(data: bytes) -> tuple[Record, ...]:
    """The records in ``data``, the appliance's output. A record begins with a line ``NAME BYTES``. After this line
    come BYTES bytes and a line break. The last record has the name ``end``.

    Raises ValueError when ``data`` does not have this form. Also raises ValueError when a record occurs twice, is too
    long, or has the number of a partition that cannot exist in Linux.
    """
    found: dict[str, Record] = {}
    at = 0
    while True:
        stop = data.find(b"\n", at, at + _MOST_HEAD_BYTES)
        if stop < 0:
            raise ValueError(f"no record begins at byte {at}")
        words, _, size = data[at:stop].decode(errors="surrogateescape").rpartition(" ")
        if not size.isascii() or not size.isdecimal() or len(size) > len(str(len(data))):
            raise ValueError(f"the record at byte {at} has no size")
        begin, end = stop + 1, stop + 1 + int(size)
        if end - begin > _MOST_CONTENT_BYTES:
            raise ValueError(f"the record at byte {at} has more than {_MOST_CONTENT_BYTES} bytes")
        if data[end : end + 1] != b"\n":
            raise ValueError(f"the record at byte {at} does not end where it says")
        if words == _END:
            return tuple(found.values())
        if words in found:
            raise ValueError(f"the record at byte {at} was said before")
        found[words] = _record(words, data[begin:end])
        if len(found) > _MOST_RECORDS:
            raise ValueError(f"more than {_MOST_RECORDS} records")
        at = end + 1


def _record(words: str, content: bytes) -> Record:
    name, _, rest = words.partition(" ")
    number, _, path = rest.partition(" ")
    # Each record has one form, so that no record comes again in another one.
    if name in _OF_THE_DISK:
        is_well_formed = words == name
    else:
        is_well_formed = number in _NUMBERS and words == f"{name} {number}{' ' if path else ''}{path}"
    if not is_well_formed or bool(path) != (name == _OF_FILES):
        raise ValueError("a record has no number of a partition, or a path that is not a file's")
    return Record(name, int(number or "0"), path, content)
