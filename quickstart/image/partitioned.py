"""Write a disk that has a GUID partition table."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quickstart.host.holes import data_chunks, write_at
from quickstart.image.gpt import GptPartition, gpt


@dataclass(frozen=True)
class Filled:
    """A partition and the file that has its content. A partition without a file is empty."""

    partition: GptPartition
    source: Path | None = None


def write_partitioned(
    path: Path, partitions: Sequence[Filled], size_bytes: int, identifier: uuid.UUID
) -> None:
    """Write a disk with ``size_bytes`` bytes to the new file ``path``. ``identifier`` is the GUID of the disk. Zeros in
    the sources become holes. The same arguments always give the same bytes.

    Raises ValueError when the partitions do not fit on the disk, or when a source is larger than its partition.
    """
    table = gpt([each.partition for each in partitions], size_bytes, identifier)
    with path.open("xb", buffering=0) as file:
        # The root file system contains /etc/shadow.
        os.fchmod(file.fileno(), 0o600)
        file.truncate(size_bytes)
        write_at(file.fileno(), table.first, 0)
        write_at(file.fileno(), table.last, size_bytes - len(table.last))
        for each in partitions:
            if each.source is not None:
                _fill(file.fileno(), each.partition, each.source)


def _fill(disk: int, partition: GptPartition, source: Path) -> None:
    source_bytes = source.stat().st_size
    if source_bytes > partition.size_bytes:
        raise ValueError(f"{source} has {source_bytes} bytes, and its partition {partition.size_bytes}")
    with source.open("rb") as file:
        for offset, chunk in data_chunks(file.fileno(), source_bytes):
            write_at(disk, chunk, partition.begin_bytes + offset)
