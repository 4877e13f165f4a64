"""The owners of the blocks of a disk with partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import HostLacksError
from quickstart.image import diskmap
from quickstart.image.blockmap import Kind
from quickstart.image.diskmap import DiskMap, read_disk_map
from tests.unit.test_ledger import BLOCK, OWNERS, block_map

BEGIN = 8 * BLOCK
MAP = DiskMap(block_map(), BEGIN, len(OWNERS) * BLOCK)
END = BEGIN + MAP.size_bytes


@pytest.mark.parametrize(
    ("offset", "length", "kinds"),
    [
        (0, 512, [(Kind.OUTSIDE, 0, 1)]),
        (BEGIN - 512, 512, [(Kind.OUTSIDE, 7, 1)]),
        (BEGIN, BLOCK, [(OWNERS[0][0], 0, 1)]),
        (BEGIN - BLOCK, 2 * BLOCK, [(Kind.OUTSIDE, 7, 1), (OWNERS[0][0], 0, 1)]),
        (END - BLOCK, 2 * BLOCK, [(OWNERS[-1][0], len(OWNERS) - 1, 1), (Kind.OUTSIDE, END // BLOCK, 1)]),
        (END, 3 * BLOCK, [(Kind.OUTSIDE, END // BLOCK, 3)]),
    ],
)
def test_what_is_outside_of_the_root_volume(
    offset: int, length: int, kinds: list[tuple[Kind, int, int]]
) -> None:
    found = MAP.owners(offset, length)
    assert [(each.kind, each.first_block, each.blocks) for each in found] == kinds


def test_the_whole_disk_has_no_gap() -> None:
    found = MAP.owners(0, END + BLOCK)
    assert [each.kind for each in found] == [Kind.OUTSIDE, *(kind for kind, _ in OWNERS), Kind.OUTSIDE]


def test_a_copy_that_has_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").write_bytes(b"x" * 8192)
    monkeypatch.setattr(diskmap, "free_bytes", lambda place: 4095)
    with pytest.raises(HostLacksError, match="too little space"):
        read_disk_map(tmp_path / "disk", 4096)
