"""What a fast start will ask the root volume for, known beforehand: trace → Foreseen → Prefetch (docs/prefetch.md).

Reads the image's tree, writes nothing. A guess that is wrong costs a read, never an answer: the guest's own reads decide.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.image.blockmap import BlockMap, Kind
from quickstart.imageroot import ImageRoot
from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.serving import LIBRARY, served_files
from quickstart.model import Event, FileKind, Op, StartSet, Trace

# What init and the starter themselves look at on the root volume, and what init looks through.
_OURS = ("/fast", "/etc/hostname", "/etc/locale.conf", "/etc/default/locale", "/var/log")
_LISTED = ("/tmp", "/var/tmp")  # noqa: S108
# Nothing below these is on the root volume when the application starts.
_ELSEWHERE = frozenset({"proc", "sys", "dev", "run", "fast"})
# One request for two blocks that lie so close together costs less than two requests: half a MiB is a cloud volume's own piece.
_GAP_BLOCKS = 128
# Larger files are read in part, or past the page cache, as a database does.
_FILE_BYTES = 512 * 1024
_BITMAPS = (Kind.BLOCK_BITMAP, Kind.INODE_BITMAP)
# Bitmaps lie side by side for so many block groups (mke2fs(8), flex_bg).
_FLEX_GROUPS = 16
_OWN_BLOCKS = (Kind.DIRECTORY, Kind.EXTENTS, Kind.ATTRIBUTES, Kind.LINK)


@dataclass(frozen=True)
class Foreseen:
    """What the application will come to on the root volume, beside what is served from /fast, by canonical path.

    ``names`` have inodes that are looked at, ``directories`` are looked into, ``files`` are read, ``makes`` says whether files
    are made.
    """

    names: frozenset[PurePosixPath]
    directories: frozenset[PurePosixPath]
    files: frozenset[PurePosixPath]
    makes: bool


def foresee(
    traces: Sequence[Trace], start_set: StartSet, root: ImageRoot, bound: Collection[PurePosixPath] = ()
) -> Foreseen:
    """By the traces. ``bound`` are the files that something of /fast is laid over: their places are looked up, their content
    is not read."""
    seen = _Seen(root)
    for name in _OURS:
        seen.look(PurePosixPath(name))
    for name in _LISTED:
        if found := seen.look(PurePosixPath(name)):
            seen.directories.add(found)
    seen.read(PurePosixPath("/etc/hostname"))
    served = {file.path for file in served_files(start_set, bound) if file.kind is FileKind.FILE}
    for path in bound:
        seen.look(path)
    for trace in traces:
        for event in trace.events:
            _follow(seen, event, served)
    return Foreseen(frozenset(seen.names), frozenset(seen.directories), frozenset(seen.files), seen.makes)


def plan(foreseen: Foreseen, blocks: BlockMap) -> Prefetch:
    """Where on the volume of this map the metadata lie, and the files, in the order in which they lie there."""
    wanted = _metadata(foreseen, blocks)
    places = {
        run.path: run.first_block for run in blocks.runs if run.kind is Kind.FILE and run.offset_bytes == 0
    }
    files = sorted(foreseen.files, key=lambda path: (places.get(path, 0), os.fsencode(path)))
    return Prefetch(tuple(_joined(wanted, blocks.block_bytes)), tuple(files))


class _Seen:
    """What is looked at on the volume: names have an inode, directories are looked into, files are read."""

    def __init__(self, root: ImageRoot) -> None:
        self.root = root
        self.names: set[PurePosixPath] = {PurePosixPath("/")}
        self.directories: set[PurePosixPath] = {PurePosixPath("/")}
        self.files: set[PurePosixPath] = set()
        self.makes = False

    def look(self, path: PurePosixPath) -> PurePosixPath | None:
        """Look ``path`` up as the kernel does; where it leads, or None."""
        found = self.root.resolve(path)
        for each in (*found.links, *([found.canonical] if found.canonical else [])):
            self.names.update((each, *each.parents))
            self.directories.update(each.parents)
        if found.canonical is None and path != path.parent and (parent := self.look(path.parent)):
            # It is not there: the directory that should have it is searched whole.
            self.directories.add(parent)
        return found.canonical

    def read(self, path: PurePosixPath) -> None:
        found = self.look(path)
        host = self.root.host(found) if found else None
        if found and host and host.is_file() and host.stat().st_size <= _FILE_BYTES:
            self.files.add(found)


def _follow(seen: _Seen, event: Event, served: set[PurePosixPath]) -> None:
    """What ``event`` will need of the volume. Programs and libraries come from /fast, and are looked for there first."""
    if len(event.path.parts) < 2 or event.path.parts[1] in _ELSEWHERE:
        return
    if event.error is not None and (LIBRARY.search(event.path.name) or event.path.name == "glibc-hwcaps"):
        return
    if event.path.name == "ld.so.cache" or seen.root.resolve(event.path).canonical in served:
        return
    found = seen.look(event.path)
    if event.op is Op.LIST and found:
        seen.directories.add(found)
    if event.op is Op.WRITE and found is None:
        seen.makes = True
    if event.op in (Op.OPEN, Op.MAP, Op.EXEC) and event.error is None:
        seen.read(event.path)


def _metadata(seen: Foreseen, blocks: BlockMap) -> set[int]:
    """The numbers of the blocks that hold it: parts of inode tables, directories, what leads to a file's data, bitmaps."""
    wanted = set(blocks.inode_blocks(seen.names))
    bitmaps = 0
    for run in blocks.runs:
        if run.kind in _OWN_BLOCKS and (
            run.path in seen.directories or (run.kind is not Kind.DIRECTORY and run.path in seen.names)
        ):
            wanted.update(range(run.first_block, run.first_block + run.blocks))
        elif seen.makes and run.kind in _BITMAPS and bitmaps < 2 * _FLEX_GROUPS:
            # Where new files will lie is the allocator's choice.
            wanted.update(range(run.first_block, run.first_block + run.blocks))
            bitmaps += run.blocks
    return wanted


def _joined(wanted: Iterable[int], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Blocks as (offset, length) in bytes, with what little lies between neighbours."""
    begin = end = -1
    for block in sorted(wanted):
        if begin >= 0 and block - end > _GAP_BLOCKS:
            yield begin * block_bytes, (end - begin) * block_bytes
            begin = block
        elif begin < 0:
            begin = block
        end = block + 1
    if begin >= 0:
        yield begin * block_bytes, (end - begin) * block_bytes
