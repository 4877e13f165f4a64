"""What an initramfs consists of: its regular files and their sizes, of our own archives and of a distribution's."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from quickstart.errors import ArtefactError, CommandError
from quickstart.host import door
from quickstart.initramfs.newc import MAGIC
from quickstart.initramfs.newc_reader import CpioMember, read_archive

# What a compressed archive begins with, and the program that reads it.
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
_LIMIT_S = 120.0


def file_sizes(path: Path) -> Mapping[str, int] | None:
    """Bytes of each regular file by its name; the last of a name counts, as for the kernel. A file with several names has its bytes
    under one of them.

    None for an archive that cannot be read whole: of an unknown kind, compressed behind a first that is not, or damaged.
    """
    with path.open("rb") as stream:
        first = stream.read(len(MAGIC))
        stream.seek(0)
        if first == MAGIC:
            return _sizes(read_archive(stream))
    program = next((name for magic, name in _COMPRESSED if first.startswith(magic)), None)
    if program is None:
        return None
    try:
        plain = door.run([program, "-dc", path], timeout_s=_LIMIT_S).stdout
    except CommandError:
        return None
    return _sizes(read_archive(io.BytesIO(plain)))


def _sizes(members: Iterator[CpioMember]) -> Mapping[str, int] | None:
    try:
        found = {each.name: each.size for each in members if stat.S_ISREG(each.mode)}
    except ArtefactError:
        return None
    return dict(sorted(found.items()))
