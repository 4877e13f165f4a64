"""Check the numbers that QEMU reports about a guest (pure). A hostile guest may have taken over its QEMU, so each value
may be anything.
"""

from __future__ import annotations

from quickstart.errors import GuestError
from quickstart.model import RootIo

_NAMES = ("rd_operations", "rd_bytes", "wr_operations", "wr_bytes")


def root_io_of(devices: object, root: str) -> RootIo:
    """QEMU's counters of the block device ``root``. ``devices`` is the answer to the QMP command query-blockstats.
    Raises GuestError when QEMU has no such counters.
    """
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and device.get("device") == root:
            stats = device.get("stats")
            numbers = [_count(stats.get(name)) for name in _NAMES] if isinstance(stats, dict) else [None]
            counts = [each for each in numbers if each is not None]
            if len(counts) != len(_NAMES):
                raise GuestError("QEMU's counters for the root volume are none")
            return RootIo(*counts)
    raise GuestError("QEMU has no counters for the root volume")


def instructions_of(replay: object) -> int:
    """The number of instructions that a guest has executed. ``replay`` is the answer to the QMP command query-replay.
    Raises GuestError when QEMU does not give a number.
    """
    count = _count(replay.get("icount")) if isinstance(replay, dict) else None
    if count is None:
        raise GuestError("QEMU does not count the guest's instructions")
    return count


def _count(value: object) -> int | None:
    # A bool is an int, too.
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return value
    return None
