"""Move directories and files next to each other on an ext4 image, so that few requests read all of them
(docs/internals/prefetch.md).

Inodes are not moved. Only the block numbers in the inodes change. This module copies the content within the image, and
debugfs(8) changes the metadata. So the image is not mounted, and root is not needed. At the end, e2fsck(8) checks the
image, and must find no fault. (The tool e4rat also moves the files of a boot next to each other, but on a mounted
volume.)
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quickstart.errors import ArtefactError, CommandError
from quickstart.host import door
from quickstart.image.blockmap import EXTENTS_IN_INODE, BlockMap, Kind, Owner
from quickstart.image.ext4 import FIXED_TIME, BlockGroup

# The place begins at a multiple of this number of blocks (half a MiB). A cloud volume fetches missing data
# in pieces of this size.
_ALIGNED_BLOCKS = 128
# The low half of the first extent's block is the sixth word of the inode's map, and each extent has three words (kernel:
# Documentation/filesystems/ext4/ifork.rst).
_FIRST_EXTENT_BLOCK, _EXTENT_WORDS = 5, 3
# debugfs has names for the last words of the map, which are pointers in a file without extents.
_WORD_NAMES = {12: "IND", 13: "DIND", 14: "TIND"}


@dataclass(frozen=True, kw_only=True)
class Move:
    """The move of one extent of an inode. The extent has ``blocks`` blocks. The blocks move from block ``source`` to
    block ``target``. ``extent`` is the extent's number in the inode's map, counted from 0.
    """

    inode: int
    source: int
    target: int
    blocks: int
    extent: int


@dataclass(frozen=True)
class _Content:
    """The content of an inode: its extents, in the order of the inode's map."""

    inode: int
    extents: tuple[Owner, ...]

    @property
    def blocks(self) -> int:
        return sum(extent.blocks for extent in self.extents)


def plan_moves(
    blocks: BlockMap,
    groups: Collection[BlockGroup],
    directories: Collection[PurePosixPath],
    *files: Collection[PurePosixPath],
) -> tuple[Move, ...]:
    """The moves that put all of ``directories`` and ``files`` side by side, into the first free place that has room for
    all of them together. The directories come first, sorted by path. After the directories come the files of the first
    collection in ``files``, sorted by path, and then the files of the further collections.

    When no free place is large enough, the largest free place is used, and the largest files and directories are not
    moved. A file or directory whose extents are not all in its inode is never moved.
    """
    pieces, inodes = _pieces(blocks), blocks.inodes
    movable = [
        _Content(inodes[path], tuple(sorted(pieces[path], key=lambda piece: piece.offset_bytes)))
        for paths, kind in ((directories, Kind.DIRECTORY), *((each, Kind.FILE) for each in files))
        for path in sorted(paths)
        if {piece.kind for piece in pieces.get(path, ())} == {kind} and len(pieces[path]) <= EXTENTS_IN_INODE
    ]
    needed = sum(content.blocks for content in movable)
    at, room = _free_place(blocks, groups, needed)
    moves = []
    for content in _fitting(movable, room):
        for number, extent in enumerate(content.extents):
            moves.append(
                Move(
                    inode=content.inode,
                    source=extent.first_block,
                    target=at,
                    blocks=extent.blocks,
                    extent=number,
                )
            )
            at += extent.blocks
    return tuple(moves)


def _fitting(contents: Sequence[_Content], room: int) -> Iterator[_Content]:
    """The members of ``contents`` that fit into ``room`` blocks. The function leaves out the largest members one by
    one, until the rest needs at most ``room`` blocks.
    """
    needed = sum(content.blocks for content in contents)
    without = set[int]()
    for content in sorted(contents, key=lambda content: content.blocks, reverse=True):
        if needed <= room:
            break
        without.add(content.inode)
        needed -= content.blocks
    yield from (content for content in contents if content.inode not in without)


def _pieces(blocks: BlockMap) -> Mapping[PurePosixPath, list[Owner]]:
    """For each path, the runs of blocks that belong to the file or directory at this path. The result does not have the
    blocks of extended attributes, because this module does not move such blocks.
    """
    found: dict[PurePosixPath, list[Owner]] = defaultdict(list)
    for run in blocks.runs:
        if run.path is not None and run.kind is not Kind.ATTRIBUTES:
            found[run.path].append(run)
    return found


def _free_place(blocks: BlockMap, groups: Collection[BlockGroup], needed: int) -> tuple[int, int]:
    """The first free place with at least ``needed`` blocks, as (first block, number of blocks). If no place has that
    many blocks, the result is the largest free place.
    """
    largest = (0, 0)
    for place in _free_places(blocks, groups):
        if place[1] >= needed:
            return place
        largest = max(largest, place, key=lambda each: each[1])
    return largest


def _free_places(blocks: BlockMap, groups: Collection[BlockGroup]) -> Iterator[tuple[int, int]]:
    """The free places of the image, as (first block, number of blocks). The first block of each place is a multiple of
    _ALIGNED_BLOCKS. Each place is within one block group, and the bitmap of this group is initialised.
    """
    for group in groups:
        if group.uninitialised:
            continue
        for begin, end in _gaps(blocks.runs, group):
            aligned = -(-begin // _ALIGNED_BLOCKS) * _ALIGNED_BLOCKS
            if end > aligned:
                yield aligned, min(end - aligned, group.free_blocks)


def _gaps(runs: Sequence[Owner], group: BlockGroup) -> Iterator[tuple[int, int]]:
    at, last = group.first_block, group.first_block + group.blocks
    # A run may begin in the previous group.
    begin = bisect.bisect_right(runs, at, key=lambda run: run.first_block) - 1
    for index in range(max(0, begin), len(runs)):
        run = runs[index]
        if run.first_block >= last:
            break
        if run.first_block > at:
            yield at, run.first_block
        at = max(at, run.first_block + run.blocks)
    if at < last:
        yield at, last


def move(image: Path, block_bytes: int, groups: Collection[BlockGroup], moves: Collection[Move]) -> None:
    """Apply ``moves`` to the raw ``image``. Raises ArtefactError when e2fsck finds a fault in the result."""
    if not moves:
        return
    with image.open("r+b") as file:
        for each in moves:
            file.seek(each.source * block_bytes)
            content = file.read(each.blocks * block_bytes)
            file.seek(each.target * block_bytes)
            file.write(content)
            # Blocks without an owner stay zero. Zeros compress well, and show nothing of earlier content.
            file.seek(each.source * block_bytes)
            file.write(bytes(len(content)))
    argv: list[str | Path] = ["debugfs", "-w", "-f", "-", image]
    script = "".join(f"{line}\n" for line in _commands(groups, moves))
    done = door.run(argv, timeout_s=600, env=FIXED_TIME, stdin=script.encode())
    # debugfs' exit status does not show a failure. Apart from its version, debugfs prints something only
    # when a command fails.
    faults = [line for line in done.stderr.decode(errors="replace").splitlines()[1:] if line.strip()]
    if faults:
        raise CommandError(done.argv, done.returncode, "\n".join(faults[:5]))
    try:
        door.run(["e2fsck", "-fn", image], timeout_s=600, env=FIXED_TIME)
    except CommandError as error:
        raise ArtefactError(
            f"{image} is no whole ext4 once its directories are side by side",
            details=error.tail.splitlines(),
            hint="a report of this with the image's packages would help",
        ) from error


def _commands(groups: Collection[BlockGroup], moves: Collection[Move]) -> Iterator[str]:
    """The debugfs(8) commands that record the moves in the image's metadata. The commands change the block bitmaps, the
    extents in the inodes, and the groups' counts of free blocks.
    """
    freed: dict[int, int] = defaultdict(int)
    for each in moves:
        yield f"setb {each.target} {each.blocks}"
        yield f"freeb {each.source} {each.blocks}"
        word = _FIRST_EXTENT_BLOCK + _EXTENT_WORDS * each.extent
        yield f"set_inode_field <{each.inode}> block[{_WORD_NAMES.get(word, word)}] {each.target}"
        for block in range(each.source, each.source + each.blocks):
            freed[_group_of(groups, block)] += 1
        freed[_group_of(groups, each.target)] -= each.blocks
    by_number = {group.number: group for group in groups}
    for number, more in sorted(freed.items()):
        yield f"set_block_group {number} free_blocks_count {by_number[number].free_blocks + more}"
        yield f"set_block_group {number} checksum calc"


def _group_of(groups: Collection[BlockGroup], block: int) -> int:
    return next(
        group.number for group in groups if group.first_block <= block < group.first_block + group.blocks
    )
