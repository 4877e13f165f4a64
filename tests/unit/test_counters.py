"""QEMU's numbers about a guest may be anything, because a hostile guest may have taken over its QEMU."""

from __future__ import annotations

import pytest

from quickstart.errors import GuestError
from quickstart.launch.counters import instructions_of, root_io_of
from quickstart.model import RootIo

STATS = {"rd_operations": 3, "rd_bytes": 4096, "wr_operations": 1, "wr_bytes": 512, "others": "x"}


def test_the_counters_of_the_root_volume() -> None:
    devices = [{"device": "other", "stats": {}}, {"device": "root", "stats": STATS}]
    assert root_io_of(devices, "root") == RootIo(3, 4096, 1, 512)


@pytest.mark.parametrize("devices", [None, [], {}, "root", [None], [{"device": "other", "stats": STATS}]])
def test_no_counters(devices: object) -> None:
    with pytest.raises(GuestError, match="no counters"):
        root_io_of(devices, "root")


@pytest.mark.parametrize("value", [None, -1, 1 << 64, 1.0, True, "3", [3]])
def test_counters_that_are_no_numbers(value: object) -> None:
    with pytest.raises(GuestError, match="are none"):
        root_io_of([{"device": "root", "stats": {**STATS, "rd_bytes": value}}], "root")
    with pytest.raises(GuestError, match="are none"):
        root_io_of([{"device": "root", "stats": value}], "root")
    with pytest.raises(GuestError, match="does not count"):
        instructions_of({"mode": "none", "icount": value})


def test_instructions() -> None:
    assert instructions_of({"mode": "none", "icount": 10_734_963}) == 10_734_963


@pytest.mark.parametrize("replay", [None, 5, [], {}, {"mode": "none"}])
def test_no_instructions(replay: object) -> None:
    with pytest.raises(GuestError, match="does not count"):
        instructions_of(replay)
