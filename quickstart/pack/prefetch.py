"""Make the prefetch plan (Prefetch; docs/internals/prefetch.md). For this, the module predicts from traces how a fast
start uses the root volume (Foreseen).

This module reads the image's tree and writes nothing. A wrong prediction costs an extra read, but never changes what a
program gets, because the guest still does its own reads.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.image.blockmap import BlockMap, Kind
from quickstart.initramfs.prefetch import Prefetch
from quickstart.initramfs.serving import LIBRARY, served_files
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.script import interpreter_of
from quickstart.model import Event, FileKind, Op, StartSet, Trace
from quickstart.model.reasons import ReasonSource
from quickstart.model.residency import Resident
from quickstart.pack.parts import joined, parts_of

# The paths that init and the starter themselves look up on the root volume, the files that they read, and the
# directories that they list. Init may have to make the log.
_OURS = ("/fast", "/etc/locale.conf", "/var/log/quickstart.log")
_OURS_READ = ("/etc/hostname", "/etc/default/locale", "/etc/passwd", "/etc/group")
_LISTED = ("/tmp", "/var/tmp")  # noqa: S108
# Nothing below these is on the root volume when the application starts.
_ELSEWHERE = frozenset({"proc", "sys", "dev", "run", "fast"})
# For two blocks that are this close together, one request costs less than two, because a cloud volume fetches pieces
# of half a MiB.
_GAP_BLOCKS = 128
# While the application answers, the bytes count, too.
_LATER_GAP_BLOCKS = 8
# Larger files are read in part, or with O_DIRECT, as by a database.
_FILE_BYTES = 512 * 1024
# If at least a third of a file is used, and the file has at most this size, the whole file needs fewer requests than
# its parts.
_WHOLE_BYTES = 16 * 1024 * 1024
# If a file is read with O_DIRECT, at most its head is in the page cache.
_HEAD_BYTES = 64 * 1024
# A file that is opened for writing is also read when it is a table, an index or a state. A log only gets longer, so a
# file of more bytes is not read completely.
_WRITTEN_BYTES = 64 * 1024
# When a block of this size is first touched, a fresh volume fetches the whole block from its snapshot (storage.md).
# So one read pays for the whole block.
_PIECE_BYTES = 512 * 1024
# The limit for one large file. More pieces would be for the use of the file, and not for the start.
_PIECES = 32
# A larger file takes much room on the disk, for only one saved request.
_ARRANGED_BYTES = 4 * 1024 * 1024
# Two parts of a file with less between them are one request.
_PART_GAP_BYTES = 256 * 1024
_PAGE_BYTES = 4096
# The limit for the parts in the plan, each of which has the path of its file. A large database has some hundred.
_MOST_PARTS = 4096
_BITMAPS = (Kind.BLOCK_BITMAP, Kind.INODE_BITMAP)
# Bitmaps lie side by side for so many block groups (mke2fs(8), flex_bg).
_FLEX_GROUPS = 16


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """The expected use of the root volume by the application and by init until ready. The fields leave out the files
    that processes find in /fast, in memory. All paths are canonical. ``names`` are the paths whose inodes the kernel
    reads. ``directories`` are the directories in which the kernel looks up names. ``files`` are the files that
    processes read completely. ``large`` are the files that processes read in part, or with O_DIRECT. ``parts`` has the
    parts of large files that the traced boots read through the page cache. ``left`` are the files of the start set that
    stay on the volume. ``makes`` says whether the application creates files.
    """

    names: frozenset[PurePosixPath]
    directories: frozenset[PurePosixPath]
    files: frozenset[PurePosixPath]
    large: frozenset[PurePosixPath]
    parts: Mapping[PurePosixPath, Resident]
    left: frozenset[PurePosixPath]
    makes: bool

    @property
    def arranged(self) -> tuple[frozenset[PurePosixPath], ...]:
        """The directories, files and large files that are next to each other on an arranged disk. (An arranged disk is
        a root disk on which a build has moved the files that a boot reads next to each other.) Where two large files
        are neighbours, one request reads the last part of the first file and the first part of the second file.
        """
        large = {path for path, known in self.parts.items() if known.size_bytes <= _ARRANGED_BYTES}
        return self.directories, self.files, frozenset(large - self.files)


def foresee(
    traces: Sequence[Trace],
    start_set: StartSet,
    root: ImageRoot,
    bound: Collection[PurePosixPath] = (),
    interpreted: Collection[PurePosixPath] = (),
) -> Foreseen:
    """Predict the use of the root volume from the traces. ``bound`` are the volume's files over which packed files are
    mounted. Processes look up the paths of these files on the volume, but do not read the content there.
    ``interpreted`` are scripts that the starter starts by a packed interpreter.
    """
    left = frozenset(file.path for file in start_set.files if file.kind is FileKind.LEFT and not file.target)
    # The author of the profile has decided to exclude these files, and `verify` says what this costs.
    kept_out = {each.path for each in start_set.excluded if each.rule.startswith("exclude: ")}
    parts = {
        path: known
        for path, said in parts_of(traces).items()
        if path not in kept_out and (known := _in_image(root, said)) is not None
    }
    interpreters = {file.path: file.interpreter for file in start_set.files if file.interpreter}
    seen = _Seen(root, interpreters, parts)
    for name in _OURS:
        seen.look(PurePosixPath(name))
    for name in _OURS_READ:
        seen.read(PurePosixPath(name))
    for name in _LISTED:
        if found := seen.look(PurePosixPath(name)):
            seen.directories.add(found)
    served = {file.path for file in served_files(start_set, bound) if file.kind is FileKind.FILE}
    for path in bound:
        seen.look(path)
    for file in start_set.files:
        # The profile's author says that the application reads the file, even if no trace shows it.
        if file.path in left and any(reason.source is ReasonSource.RULE for reason in file.reasons):
            seen.read(file.path)
    for trace in traces:
        not_now = _not_now(trace, start_set, root)
        for event in trace.events:
            if event.program not in not_now:
                _follow(seen, event, served, interpreted)
    return Foreseen(
        names=frozenset(seen.names),
        directories=frozenset(seen.directories),
        files=frozenset(seen.files),
        large=frozenset(seen.large),
        parts={path: found for path, found in parts.items() if path in seen.large},
        left=left,
        makes=seen.makes,
    )


def plan(foreseen: Foreseen, blocks: BlockMap) -> Prefetch:
    """The prefetch plan for the volume with the block map ``blocks``. The plan has ranges with metadata, files, and
    parts of large files, each in the order of their positions on the volume.
    """
    wanted = _metadata(foreseen, blocks)
    places = {
        run.path: run.first_block for run in blocks.runs if run.kind is Kind.FILE and run.offset_bytes == 0
    }
    files = sorted(foreseen.files, key=lambda path: (places.get(path, 0), os.fsencode(path)))
    ranges = [*_joined(wanted, blocks.block_bytes)]
    ranges += [
        (block * blocks.block_bytes, blocks.block_bytes) for block in _touched(foreseen, blocks, ranges)
    ]
    parts = (
        (path, offset, length)
        for path in sorted(foreseen.parts, key=lambda path: (places.get(path, 0), os.fsencode(path)))
        for offset, length in joined(foreseen.parts[path].parts, _PART_GAP_BYTES)
    )
    return Prefetch(tuple(sorted(ranges)), tuple(files), tuple(itertools.islice(parts, _MOST_PARTS)))


def metadata_ranges(
    files: Collection[PurePosixPath], first: Prefetch, blocks: BlockMap
) -> tuple[tuple[int, int], ...]:
    """The ranges of the volume with the metadata that are needed to find ``files`` and their content. The result does
    not have blocks that the plan ``first`` requests.
    """
    directories = frozenset(parent for path in files for parent in path.parents)
    nothing = frozenset[PurePosixPath]()
    seen = Foreseen(
        names=directories.union(files),
        directories=directories,
        files=nothing,
        large=frozenset(files),
        parts={},
        left=nothing,
        makes=False,
    )
    each = blocks.block_bytes
    early = {
        block
        for offset, length in first.ranges
        for block in range(offset // each, (offset + length - 1) // each + 1)
    }
    return tuple(_joined(_metadata(seen, blocks) - early, each, _LATER_GAP_BLOCKS))


def _in_image(root: ImageRoot, said: Resident) -> Resident | None:
    """Return ``said``, the parts of a file that were in a guest's page cache. The parts are cut to the size that the
    file has in the image, because a guest may report anything. The result is None when the path in ``said`` is not the
    canonical path of a regular file.
    """
    if root.look_up(said.path).canonical != said.path or not root.host(said.path).is_file():
        return None
    size = root.host(said.path).stat().st_size
    end = -(-size // _PAGE_BYTES) * _PAGE_BYTES
    parts = ((offset, min(length, end - offset)) for offset, length in said.parts if offset < end)
    return Resident(said.path, size, tuple(parts))


class _Seen:
    """Collects the expected uses of the root volume. The fields with the results are those of Foreseen.

    ``interpreters`` has the ELF interpreters of programs. ``parts`` has the parts of large files that the traced boots
    used.
    """

    def __init__(
        self,
        root: ImageRoot,
        interpreters: Mapping[PurePosixPath, str],
        parts: Mapping[PurePosixPath, Resident],
    ) -> None:
        self.root = root
        self.interpreters = interpreters
        self.parts = parts
        self.names: set[PurePosixPath] = {PurePosixPath("/")}
        self.directories: set[PurePosixPath] = {PurePosixPath("/")}
        self.files: set[PurePosixPath] = set()
        self.large: set[PurePosixPath] = set()
        self.makes = False

    def look(self, path: PurePosixPath) -> PurePosixPath | None:
        """Look up ``path`` as the kernel does, and record this. Return the canonical path that ``path`` leads to, or
        None.
        """
        found = self.root.look_up(path)
        for each in (*found.links, found.existing):
            self.names.update((each, *each.parents))
            self.directories.update(each.parents)
        if found.canonical is None:
            # The path does not exist, so the whole directory that should have it is searched.
            self.directories.add(found.existing)
        return found.canonical

    def read(self, path: PurePosixPath, limit_bytes: int = _FILE_BYTES) -> None:
        """Record that a process reads the file at ``path``. The process reads a large file in part, and any other file
        completely. A file is large if it has more than ``limit_bytes`` bytes. The exception is a file of at most 16
        MiB, of which at least a third was in the page cache of the traced boots. Such a file is not large. The method
        ignores an empty file.
        """
        found = self.look(path)
        host = self.root.host(found) if found else None
        if found and host and host.is_file() and (size := host.stat().st_size):
            (self.files if size <= limit_bytes or self._is_used_whole(found) else self.large).add(found)

    def _is_used_whole(self, path: PurePosixPath) -> bool:
        known = self.parts.get(path)
        return known is not None and known.size_bytes <= min(_WHOLE_BYTES, 3 * known.resident_bytes)

    def execute(self, path: PurePosixPath) -> None:
        """Record what the kernel reads when it executes ``path`` on the volume. The kernel reads the program, the
        interpreter of a script, and the interpreter of an ELF file.
        """
        self.read(path)
        found = self.root.resolve(path).canonical
        if found is not None and (script := interpreter_of(self.root, found)):
            self.read(script.program)
            found = self.root.resolve(script.program).canonical
        if found is not None and (interpreter := self.interpreters.get(found)):
            self.read(PurePosixPath(interpreter))


def _not_now(trace: Trace, start_set: StartSet, root: ImageRoot) -> set[str]:
    """The names of the programs that an ``exclude`` rule of the profile keeps out of the start set. QuickStart expects
    these programs to run only after ready.
    """
    kept_out = {each.path for each in start_set.excluded if each.rule.startswith("exclude: ")}
    return {
        event.program
        for event in trace.events
        if event.op is Op.EXEC and event.error is None and root.resolve(event.path).canonical in kept_out
    }


def _follow(
    seen: _Seen, event: Event, served: set[PurePosixPath], interpreted: Collection[PurePosixPath]
) -> None:
    """Record how ``event`` uses the volume. The method ignores the look-ups of programs and libraries, because
    processes search for programs and libraries in /fast first.
    """
    if len(event.path.parts) < 2 or event.path.parts[1] in _ELSEWHERE:
        return
    if not event.bare:
        if event.error is not None and (LIBRARY.search(event.path.name) or event.path.name == "glibc-hwcaps"):
            return
        if event.path.name == "ld.so.cache" or seen.root.look_up(event.path).canonical in served:
            return
    found = seen.look(event.path)
    if event.op is Op.LIST and found:
        seen.directories.add(found)
    if event.op is Op.WRITE and found is None:
        seen.makes = True
    reads = event.op in (Op.OPEN, Op.MAP) or (event.op is Op.EXEC and found in interpreted)
    if event.op is Op.EXEC and event.error is None and not reads:
        seen.execute(event.path)
    elif reads and event.error is None:
        seen.read(event.path)
    elif event.op is Op.WRITE and event.error is None and found is not None:
        seen.read(event.path, _WRITTEN_BYTES)


def _metadata(seen: Foreseen, blocks: BlockMap) -> set[int]:
    """The numbers of the blocks with metadata that the kernel will probably read. Such metadata are parts of inode
    tables, directories, extent trees and bitmaps.
    """
    wanted = set(blocks.inode_blocks(seen.names))
    # Nobody reads the extents of a file whose content comes from /fast.
    owners = {
        Kind.DIRECTORY: seen.directories,
        Kind.EXTENTS: seen.directories | seen.files | seen.large,
        Kind.ATTRIBUTES: seen.names,
        Kind.LINK: seen.names,
    }
    bitmaps = 0
    for run in blocks.runs:
        if run.path in owners.get(run.kind, ()):
            wanted.update(range(run.first_block, run.first_block + run.blocks))
        elif seen.makes and run.kind in _BITMAPS and bitmaps < 2 * _FLEX_GROUPS:
            # The allocator of the file system chooses where new files will lie.
            wanted.update(range(run.first_block, run.first_block + run.blocks))
            bitmaps += run.blocks
    return wanted


def _touched(foreseen: Foreseen, blocks: BlockMap, ranges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The numbers of further blocks that the prefetch reads. Each of these blocks makes a cold volume fetch the piece
    of 512 KiB (_PIECE_BYTES) around the block from the slow storage behind the volume. The prefetch reads such blocks
    of large files that are outside the start set, and that the traced boots did not read through the page cache. For
    these files, filling the page cache would be useless, because reads with O_DIRECT do not use the page cache.

    The function chooses one block in each piece that has data of such a file, unless the prefetch already reads
    something else from the piece. It chooses at most _PIECES blocks for one file.
    """
    in_cache = {path for path, known in foreseen.parts.items() if _is_read_through_cache(known)}
    past_cache = foreseen.large - foreseen.left - in_cache
    each = _PIECE_BYTES // blocks.block_bytes
    pieces = set[int]()
    for offset, length in ranges:
        pieces.update(range(offset // _PIECE_BYTES, (offset + length - 1) // _PIECE_BYTES + 1))
    for run in blocks.runs:
        if run.kind is Kind.FILE and run.path in foreseen.files:
            pieces.update(range(run.first_block // each, (run.first_block + run.blocks - 1) // each + 1))
    found: dict[int, int] = {}
    taken: Counter[PurePosixPath] = Counter()
    for run in sorted(blocks.runs, key=lambda run: run.offset_bytes):
        if run.kind is not Kind.FILE or run.path is None or run.path not in past_cache:
            continue
        for piece in range(run.first_block // each, (run.first_block + run.blocks - 1) // each + 1):
            if piece not in pieces and piece not in found and taken[run.path] < _PIECES:
                found[piece] = max(run.first_block, piece * each)
                taken[run.path] += 1
    return tuple(sorted(found.values()))


def _is_read_through_cache(known: Resident) -> bool:
    """Whether the traced boots read the file through the page cache. If so, ``known.parts`` are all parts that the
    boots read. If a program reads a file with O_DIRECT, only the head of the file may be in the page cache, because the
    program looks at the head before it decides how to read the rest.
    """
    return any(offset + length > _HEAD_BYTES for offset, length in known.parts)


def _joined(
    wanted: Iterable[int], block_bytes: int, gap_blocks: int = _GAP_BLOCKS
) -> Iterator[tuple[int, int]]:
    """The blocks ``wanted`` as ranges (offset, length) in bytes. Two ranges with at most ``gap_blocks`` blocks between
    them become one range.
    """
    begin = end = -1
    for block in sorted(wanted):
        if begin >= 0 and block - end > gap_blocks:
            yield begin * block_bytes, (end - begin) * block_bytes
            begin = block
        elif begin < 0:
            begin = block
        end = block + 1
    if begin >= 0:
        yield begin * block_bytes, (end - begin) * block_bytes
