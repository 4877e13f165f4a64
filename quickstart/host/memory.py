"""Find out how much memory the host has available (proc(5))."""

from __future__ import annotations

from pathlib import Path

_MEMORY = Path("/proc/meminfo")


def available_bytes() -> int:
    """The memory in bytes that is available without swapping (MemAvailable in proc(5))."""
    lines = _MEMORY.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
