"""Turn the records of the appliance into `DiskFacts`. The appliance is our small guest that reads a disk. Some records
have the output of blkid(8) with the options `-p -o export`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from quickstart.errors import GuestError
from quickstart.inspect.disk.records import Record
from quickstart.model.disk import WHOLE_DISK, Content, DiskFacts, Partition, Table

_TABLES = {"gpt": Table.GPT, "dos": Table.MBR}
# The kernel counts in these, whatever the disk's own sectors are.
_SECTOR_BYTES = 512
_MOST_DIGITS = 19
# As guest/look cuts its lists.
_MOST_LINES = {"boot": 4096}
_MOST_OTHER_LINES = 512
# Those that guest/look looks for.
_SUBVOLUMES = ("@rootfs", "@")
# libblkid puts a backslash before a byte that is special to a shell, and writes other unprintable bytes as \xHH.
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")


def disk_facts(records: Sequence[Record]) -> DiskFacts:
    """What the appliance's records say about the disk. Raises GuestError when a record is missing, does not have the
    expected numbers, or has too many lines.
    """
    by_number: dict[int, list[Record]] = {}
    for each in records:
        by_number.setdefault(each.number, []).append(each)
    disk = by_number.get(WHOLE_DISK, [])
    whole = _properties(_one(disk, "blkid", WHOLE_DISK))
    table = _TABLES.get(whole.get("PTTYPE", ""), Table.NONE)
    size_bytes = _numbers(_one(disk, "sectors", WHOLE_DISK), 1)[0] * _SECTOR_BYTES
    if table is Table.NONE:
        partitions = [_partition(disk, WHOLE_DISK, 0, size_bytes)]
    else:
        places = {each.number: _numbers(each, 2) for each in records if each.name == "partition"}
        partitions = [
            _partition(by_number[number], number, begin * _SECTOR_BYTES, size * _SECTOR_BYTES)
            for number, (begin, size) in sorted(places.items())
        ]
    return DiskFacts(
        size_bytes=size_bytes,
        sector_bytes=_numbers(_one(disk, "sector-bytes", WHOLE_DISK), 1)[0],
        table=table,
        table_uuid=whole.get("PTUUID", ""),
        boot_sector=_one(disk, "boot-sector", WHOLE_DISK).content,
        partitions=tuple(partitions),
    )


def _partition(own: Sequence[Record], number: int, begin_bytes: int, size_bytes: int) -> Partition:
    """The partition ``number``. ``own`` has all records about this partition."""
    said = _one(own, "blkid", number)
    found = _properties(said)
    # blkid prints its own errors, such as that two kinds of content are possible, instead of properties.
    fault = "" if found else said.text.strip()
    unmounted = [each.text.strip() for each in own if each.name == "unmounted"]
    return Partition(
        number=number,
        begin_bytes=begin_bytes,
        size_bytes=size_bytes,
        type_id=found.get("PART_ENTRY_TYPE", ""),
        part_uuid=found.get("PART_ENTRY_UUID", ""),
        name=found.get("PART_ENTRY_NAME", ""),
        usage=found.get("USAGE", ""),
        kind=found.get("TYPE", ""),
        uuid=found.get("UUID", ""),
        label=found.get("LABEL", ""),
        content=_content(own),
        subvolume=next((_subvolume(each) for each in own if each.name == "subvolume"), ""),
        is_clean=all(each.name != "unclean" for each in own),
        fault=unmounted[0] if unmounted else fault,
    )


def _subvolume(record: Record) -> str:
    name = record.text.removesuffix("\n")
    if name not in _SUBVOLUMES:
        raise GuestError(f"the appliance's record `{record.name} {record.number}` names no known subvolume")
    return name


def _content(records: Iterable[Record]) -> Content | None:
    by_name = {each.name: each for each in records if not each.path}
    files = {each.path.removeprefix("."): each.content for each in records if each.name == "file"}
    if "space" not in by_name:
        return None
    block_bytes, blocks, _, free = _numbers(by_name["space"], 4)

    def lines(name: str) -> list[str]:
        return _lines(by_name[name]) if name in by_name else []

    return Content(
        size_bytes=block_bytes * blocks,
        free_bytes=block_bytes * free,
        files=files,
        boot={
            path.removeprefix("."): int(size)
            for size, _, path in (line.partition(" ") for line in lines("boot"))
            if _is_number(size)
        },
        present=frozenset(line.removeprefix(".") for line in lines("present")),
        links={
            path.removeprefix("."): target
            for path, _, target in (line.partition(" ") for line in lines("links"))
            if target
        },
        enabled=frozenset(line.removeprefix(".") for line in lines("enabled")),
        top=frozenset(line.removeprefix("./") for line in lines("top")),
    )


def _lines(record: Record) -> list[str]:
    """The lines of a record that is a list of names. Only a line feed ends a line. The appliance's script guest/look
    counts the lines in the same way.
    """
    found = record.text.removesuffix("\n").split("\n")
    if len(found) > _MOST_LINES.get(record.name, _MOST_OTHER_LINES):
        raise GuestError(f"the appliance's record `{record.name} {record.number}` has {len(found)} lines")
    return found


def _properties(record: Record) -> Mapping[str, str]:
    """The properties in blkid's output. Each property is a line KEY=VALUE."""
    pairs = (line.partition("=") for line in record.text.splitlines())
    return {key: _unescaped(value) for key, equals, value in pairs if equals and key.isupper()}


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], value)


def _one(records: Iterable[Record], name: str, number: int) -> Record:
    for each in records:
        if (each.name, each.number) == (name, number):
            return each
    raise GuestError(f"the appliance did not say the record `{name} {number}`")


def _numbers(record: Record, count: int) -> list[int]:
    words = record.text.split()
    if len(words) != count or not all(map(_is_number, words)):
        raise GuestError(f"the appliance's record `{record.name} {record.number}` has no {count} numbers")
    return list(map(int, words))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS
