"""Compare the initramfs archives of two artefacts. The comparison covers each file's content and every property of the
file that a guest can see.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from quickstart.artefact.inside import Member, members
from quickstart.host.beneath import opened_regular
from quickstart.host.unchanged import digest_of
from quickstart.model import Artefact

_OTHER_BYTES = "other bytes, though each file is the same: the form of the payload, the order of the files, or hard links"


@dataclass(frozen=True)
class Difference:
    """A file that differs between two archives. ``what`` says whether the file was added, removed or changed, and which
    properties have changed. When ``name`` is empty, no file differs, but the bytes of the archives differ. For example,
    the archives may have the same files in different orders.
    """

    name: str
    what: str


def diff(first: Artefact, second: Artefact) -> tuple[Difference, ...]:
    """The differences between the archives of ``first`` and ``second``, sorted by name. The result is empty only if
    the archives have the same bytes.
    """
    old, new = _by_place(members(first)), _by_place(members(second))
    found = []
    for key in sorted(old.keys() | new.keys(), key=lambda pair: pair[::-1]):
        if key not in new:
            found.append(Difference(key[1], "removed"))
        elif key not in old:
            found.append(Difference(key[1], "added"))
        elif how := ", ".join(_changes(old[key], new[key])):
            found.append(Difference(key[1], f"changed: {how}"))
    if not found and _digest(first) != _digest(second):
        found.append(Difference("", _OTHER_BYTES))
    return tuple(found)


def _by_place(found: Iterable[Member]) -> Mapping[tuple[bool, str], Member]:
    # In the guest, the files of an image are at the same places as part B's files.
    return {(each.part == "A", each.name): each for each in found}


def _changes(old: Member, new: Member) -> Iterator[str]:
    if old.mode != new.mode:
        yield f"mode {old.mode:o} → {new.mode:o}"
    if (old.uid, old.gid) != (new.uid, new.gid):
        yield f"owner {old.uid}:{old.gid} → {new.uid}:{new.gid}"
    if old.device != new.device and (_is_device(old) or _is_device(new)):
        yield f"device {old.device[0]}:{old.device[1]} → {new.device[0]}:{new.device[1]}"
    if old.size_bytes != new.size_bytes:
        yield f"size {old.size_bytes} → {new.size_bytes}"
    elif (old.sha256, old.target) != (new.sha256, new.target):
        yield f"target {old.target} → {new.target}" if old.target else "content"
    if old.mtime_s != new.mtime_s:
        yield f"time {old.mtime_s} → {new.mtime_s}"


def _is_device(member: Member) -> bool:
    return stat.S_ISBLK(member.mode) or stat.S_ISCHR(member.mode)


def _digest(artefact: Artefact) -> str:
    with opened_regular(artefact.initramfs) as fd:
        return digest_of(fd, artefact.initramfs)
