"""Show the console of a guest while the guest runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from quickstart.cli.guarded import guarded
from quickstart.guest import ConsoleLog


@contextmanager
def followed(log: ConsoleLog) -> Iterator[None]:
    """Copy the console's output to stderr until the ``with`` block ends."""
    done = threading.Event()
    target = guarded(sys.stderr)

    def follow() -> None:
        position, last = 0, False
        while not last:
            last = done.wait(0.1)
            # A guest may write as fast as we show its output, so this shows only what was there at the last look.
            end = log.size_bytes
            while position < end and (piece := log.read(position)).data:
                if piece.position > position:
                    target.write(b"\n[%d bytes are left out here]\n" % (piece.position - position))
                target.write(piece.data)
                position = piece.position + len(piece.data)
            target.flush()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
