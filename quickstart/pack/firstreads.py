"""Find the parts of the application's data that the first requests of the traced boots read, and plan to request these
parts when the application is ready (pure; docs/internals/prefetch.md).

The first requests are a command of the profile, which sends the requests that usually come first after ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.image.blockmap import BlockMap, Kind
from quickstart.initramfs.prefetch import Prefetch
from quickstart.inspect.globs import matches
from quickstart.model import Profile, Trace
from quickstart.pack.parts import Part, joined
from quickstart.pack.prefetch import metadata_ranges

# The application waits while this prefetch uses the volume's link. So, unlike the first plan, this prefetch reads few
# unneeded bytes.
_GAP_BYTES = 16 * 1024
# The prefetch is for the first seconds, and what it reads takes memory. What is beyond these limits is read when it is needed.
_MOST_PARTS = 4096
_MOST_BYTES = 64 * 1024 * 1024


def data_read(
    profile: Profile, traces: Sequence[Trace], blocks: BlockMap
) -> Mapping[PurePosixPath, tuple[Part, ...]]:
    """The parts of data files that the first requests read in at least one of ``traces``. The keys of the result are
    the paths of the files, in the order of the first reads. Data files are the files that prefetch.data of the profile
    names, except those that files.exclude of the profile names.

    ``blocks`` is the block map of the disk from which the traced boots ran. During a traced boot, the file system may
    give a block to another file. This function still counts the block for the file to which the block belongs in
    ``blocks``. Counting a block for the wrong file is harmless. Even if the guest reports nonsense, at worst a later
    boot reads a part that the boot does not need.
    """
    taken: dict[PurePosixPath, bool] = {}
    found: dict[PurePosixPath, list[Part]] = {}

    def is_taken(path: PurePosixPath) -> bool:
        if path not in taken:
            named = any(matches(path, each) for each in profile.data_prefetch.data)
            taken[path] = named and not any(matches(path, each) for each in profile.files.exclude)
        return taken[path]

    reads = tuple(each for trace in traces for each in trace.first_reads)
    for offset, _ in reads:
        (owner,) = blocks.owners(offset, 1)
        if owner.kind is Kind.FILE and owner.path is not None and is_taken(owner.path):
            found.setdefault(owner.path, [])
    # Without overlaps, a guest cannot make this long.
    for offset, length in joined(reads):
        for owner in blocks.owners(offset, length):
            if owner.kind is Kind.FILE and owner.path is not None and is_taken(owner.path):
                part = (owner.offset_bytes, owner.blocks * blocks.block_bytes)
                found.setdefault(owner.path, []).append(part)
    return {path: tuple(joined(parts, _GAP_BYTES)) for path, parts in found.items()}


def plan_later(
    data: Mapping[PurePosixPath, tuple[Part, ...]], first: Prefetch, blocks: BlockMap
) -> Prefetch | None:
    """The plan to request the parts ``data`` from the volume with the block map ``blocks``. The plan has the parts in
    the order of ``data``, and the metadata of the file system that are needed to find these parts. Because of this
    order, a request that needs few parts does not wait until the parts for all other requests are read. The plan does
    not repeat what the plan ``first`` requests. The result is None when nothing is left to request.
    """
    early = frozenset(first.files)
    every = ((path, offset, length) for path in data if path not in early for offset, length in data[path])
    parts = tuple(itertools.islice(_limited(every), _MOST_PARTS))
    if not parts:
        return None
    return Prefetch(metadata_ranges({path for path, _, _ in parts}, first, blocks), (), parts)


def _limited(parts: Iterator[tuple[PurePosixPath, int, int]]) -> Iterator[tuple[PurePosixPath, int, int]]:
    total = 0
    for part in parts:
        total += part[2]
        if total > _MOST_BYTES:
            return
        yield part
