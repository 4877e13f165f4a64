"""The content of a fresh volume that is made of a snapshot.

EC2 does not promise what a block has that the snapshot lacks (bottlerocket-os/bottlerocket#2169). Here, it has noise, so
that nothing can depend on such a block without being noticed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from quickstart.ec2.emulator.account import BLOCK_BYTES, VOLUME_SUFFIX, Account, Snapshot

_GIB = 1 << 30


def fresh_volume(account: Account, snapshot: Snapshot, size_gib: int) -> Path:
    """A file with the content of a volume of ``size_gib``. Volumes of the same size share it, and must not write to it.
    Behind the end of the snapshot, it has zeros. Raises OSError when the snapshot was deleted meanwhile.
    """
    path = account.directory / f"{snapshot.id}-{size_gib}.{VOLUME_SUFFIX}"
    with account.volume_lock:
        if not path.exists():
            partial = path.with_suffix(".partial")
            try:
                _write(snapshot, size_gib, partial)
                partial.rename(path)
            finally:
                # For example, the disk was full.
                partial.unlink(missing_ok=True)
    return path


def _write(snapshot: Snapshot, size_gib: int, path: Path) -> None:
    # Not for secrets: the same snapshot has to have the same noise.
    noise = random.Random(snapshot.id).randbytes(BLOCK_BYTES)  # noqa: S311
    source = os.open(snapshot.blocks, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with path.open("wb") as target:
            target.truncate(size_gib * _GIB)
            for number in range(snapshot.volume_gib * _GIB // BLOCK_BYTES):
                at = number * BLOCK_BYTES
                is_there = number in snapshot.digests
                data = os.pread(source, BLOCK_BYTES, at) if is_there else noise
                os.pwrite(target.fileno(), data, at)
    finally:
        os.close(source)
