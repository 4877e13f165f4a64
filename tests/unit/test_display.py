"""What a step of many pieces says where there is no terminal."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from quickstart.cli.output import Display


def test_counted_pieces() -> None:
    """A line after each tenth, whatever thread counts, and one at the end."""
    stream = io.StringIO()
    display = Display(Console(file=stream, width=80))
    with display.counted("send the disk", 40) as advance, ThreadPoolExecutor(4) as pool:
        for _ in range(40):
            pool.submit(advance)
    *lines, last = stream.getvalue().splitlines()
    assert lines == [f"  send the disk  {number} of 40" for number in range(4, 40, 4)]
    assert last.startswith("  send the disk  40 in ")


def test_nothing_to_count() -> None:
    stream = io.StringIO()
    with Display(Console(file=stream, width=80)).counted("send the disk", 0):
        pass
    assert stream.getvalue().startswith("  send the disk  0 in ")
