"""Check that an archive is exactly what ``newc.write_archive`` writes for its members.

The kernel and another reader may understand an unusual archive differently (see init/initramfs.c of the kernel).
Examples are archives with hard links across devices, with data in a trailer or directory, or with a name in two
spellings. So when QuickStart shows or judges an archive from somebody else, it accepts only the form that
``write_archive`` writes.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field, replace

from quickstart.errors import BadInputError
from quickstart.initramfs.newc import (
    PATH_MAX,
    TRAILER,
    TRAILER_HEAD,
    CpioEntry,
    Header,
    check_name,
    check_numbers,
    head_of,
)
from quickstart.parse.printable import brief


@dataclass
class _Linked:
    """A file with several names. ``entry`` is the entry for the file's first name, and ``left`` is the number of names
    that are still to come.
    """

    entry: CpioEntry
    left: int


@dataclass
class Exactness:
    """Checks the members of one archive in their order, and remembers facts about the earlier members."""

    _count: int = 0
    _is_directory: dict[str, bool] = field(default_factory=dict)
    _linked: dict[int, _Linked] = field(default_factory=dict)

    def fault(self, name: str, header: Header, head: bytes) -> str:
        """A description of the part of the next member that ``write_archive`` would write differently. The result is
        empty when there is no such part. ``head`` is everything before the member's data, which is the header, the
        name and the padding.
        """
        if name == TRAILER:
            if any(each.left for each in self._linked.values()):
                return "a file that has fewer names than its header says"
            return "" if head == TRAILER_HEAD else "a trailer with a type, data or other numbers"
        self._count += 1
        entry = CpioEntry(
            name=name,
            mode=header.mode,
            uid=header.uid,
            gid=header.gid,
            mtime=header.mtime,
            rdev_major=header.rdev_major,
            rdev_minor=header.rdev_minor,
            names=1 if stat.S_ISDIR(header.mode) else header.nlink,
        )
        try:
            check_name(name, self._is_directory)
            check_numbers(entry)
        except BadInputError:
            return f"the name {brief(name)}, which quickstart does not write there"
        self._is_directory[name] = stat.S_ISDIR(header.mode)
        inode = self._inode(entry, header)
        if inode is None or not _fits(header) or head != head_of(entry, inode, header.size):
            return f"the header of {brief(name)}, which is not as quickstart writes it"
        return ""

    def _inode(self, entry: CpioEntry, header: Header) -> int | None:
        """The inode number that the member must have. The result is None when the member's header names the inode of
        an earlier file with several names, but the member cannot be a further name of this file. There are three such
        cases: the member differs from the file's first entry, the member has data, or the file already has as many
        names as its first header says.
        """
        first = self._linked.get(header.inode)
        if first is None:
            if entry.names > 1:
                self._linked[self._count] = _Linked(entry, entry.names - 1)
            return self._count
        first.left -= 1
        is_like_it = replace(entry, name=first.entry.name) == first.entry
        return header.inode if is_like_it and header.size == 0 and first.left >= 0 else None


def _fits(header: Header) -> bool:
    """Whether the size and the number of names in the header are possible for a member of this type."""
    if stat.S_ISREG(header.mode):
        return header.nlink >= 1
    usual = 2 if stat.S_ISDIR(header.mode) else 1
    has_data = 0 < header.size < PATH_MAX if stat.S_ISLNK(header.mode) else header.size == 0
    return header.nlink == usual and has_data
