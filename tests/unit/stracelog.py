"""Makes logs of strace from rows, and the results of parsing them."""

from __future__ import annotations

from quickstart.model import Op
from quickstart.trace.events import Born, Item, Seen, read_events


def log(*rows: str | bytes) -> list[bytes]:
    """Rows "PID TEXT" as strace writes them: a time after the PID, a newline at the end."""
    lines = []
    for row in rows:
        pid, _, text = (row if isinstance(row, bytes) else row.encode()).partition(b" ")
        lines.append(pid.ljust(6) + b" 1795227173.803140 " + text + b"\n")
    return lines


def items(*rows: str | bytes) -> list[Item]:
    return list(read_events(log(*rows)))


def born(found: list[Item]) -> dict[int, Born]:
    return {item.number: item for item in found if isinstance(item, Born)}


def events(*rows: str | bytes) -> list[tuple[int, Op, str, str | None]]:
    """(PID, operation, path, error) of all that was seen."""
    found = items(*rows)
    pids = {number: item.pid for number, item in born(found).items()}
    return [(pids[i.number], i.op, i.path, i.error) for i in found if isinstance(i, Seen)]


def paths(*rows: str | bytes) -> list[str]:
    return [path for _, _, path, _ in events(*rows)]
