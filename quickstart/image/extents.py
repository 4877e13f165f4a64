"""Read the extents of a file in an ext4 image with debugfs(8), without mounting the image and without root."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from quickstart.errors import ArtefactError
from quickstart.host import door
from quickstart.image.ext4layout import read_layout

# (offset, length) in bytes
Extent = tuple[int, int]
# A line for a leaf of the tree: level/depth, entry/entries, logical from - to, physical from - to, length,
# perhaps "Uninit".
_LEAF = re.compile(
    r"\s*+(\d+)/\s*+(\d+)\s++\d+/\s*+\d+\s++(\d+)\s*+-\s*+(\d+)\s++([0-9]{1,15})\s*+-\s*+(\d+)\s++([0-9]{1,15})"
    r"(\s++Uninit)?\s*+$"
)


def file_extents(image: Path, path: PurePosixPath) -> tuple[Extent, ...]:
    """The extents of the file ``path`` in the raw image, as (offset, length) in bytes, in the order of the
    file's content. ``path`` must not be a symlink. Each extent consists of whole blocks. Extents that are
    next to each other in the image are joined.

    Raises ArtefactError when the file does not exist, or when it has block pointers instead of extents.
    """
    with image.open("rb") as file:
        block_bytes = read_layout(file, str(image)).block_bytes
    # debugfs takes a quoted name; it ends with 0 whatever happens.
    argv: list[str | Path] = ["debugfs", "-R", f'dump_extents -l "{path}"', image]
    found = parse_extents(door.run(argv, timeout_s=60).stdout.decode(errors="replace"), block_bytes)
    if not found:
        raise ArtefactError(f"{image} has no file {path} with extents", hint="build it again")
    return found


def parse_extents(text: str, block_bytes: int) -> tuple[Extent, ...]:
    """The extents in the output of debugfs' `dump_extents`, as (offset, length) in bytes. Extents that were
    never written are left out, because there is nothing to read.
    """
    found: list[Extent] = []
    for line in text.splitlines():
        leaf = _LEAF.match(line)
        if leaf is None or leaf[1] != leaf[2] or leaf[8]:
            continue
        offset, length = int(leaf[5]) * block_bytes, int(leaf[7]) * block_bytes
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((offset, length))
    return tuple(found)


def tail_extent(volume_bytes: int, length_bytes: int, align_bytes: int) -> Extent:
    """A range of ``length_bytes`` at the volume's end, as (offset, length) in bytes. In the bench, reads of this range
    stand for reads of our initramfs, as if the initramfs were a file of the image in one piece. The range begins at a
    multiple of ``align_bytes``. Raises ArtefactError when the volume is smaller than the range.

    The image has no file in this range, and a boot does not read the range. So nothing has read the range before, and
    the first read of the range is as slow as the first read of a file.
    """
    offset = (volume_bytes - length_bytes) // align_bytes * align_bytes
    if offset < 0:
        raise ArtefactError(f"a volume of {volume_bytes} bytes has no room for a file of {length_bytes}")
    return offset, length_bytes
