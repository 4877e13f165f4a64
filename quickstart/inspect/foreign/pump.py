"""A foreign file on its way to its reader. It is hashed as it passes, so the reader gets exactly the bytes
that were hashed before.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.host.unchanged import changed, exactly


@contextmanager
def pumped(source: int, path: Path, digest: str) -> Iterator[int]:
    """A pipe's descriptor, from which the open file ``source`` can be read once while the context lasts.

    Raises BadInputError at the end of the context unless the file's SHA-256 was ``digest``; the reader's
    results are then void.
    """
    reading, writing = os.pipe()
    pump = _Pump(source, path, writing)
    pump.start()
    try:
        try:
            yield reading
        finally:
            # Whoever reads has ended: the rest is hashed, and goes nowhere.
            os.close(reading)
    except BaseException:
        pump.give_up.set()
        raise
    finally:
        pump.join()
    if pump.digest != digest:
        raise changed(path)


class _Pump(threading.Thread):
    """Writes a file into a pipe. ``digest`` is empty until all of it has been read."""

    def __init__(self, source: int, path: Path, writing: int) -> None:
        super().__init__(daemon=True)
        self.digest = ""
        self.give_up = threading.Event()
        self._source, self._path, self._writing = source, path, writing

    def run(self) -> None:
        digest = hashlib.sha256()
        out: int | None = self._writing
        # It got shorter, or cannot be read: its digest stays empty.
        with suppress(BadInputError, OSError):
            try:
                for chunk in exactly(self._source, os.fstat(self._source).st_size, self._path):
                    if self.give_up.is_set():
                        return
                    digest.update(chunk)
                    out = None if out is None else _write(out, chunk)
                self.digest = digest.hexdigest()
            finally:
                os.close(self._writing)


def _write(out: int, chunk: bytes) -> int | None:
    """Write all of ``chunk``; None when nobody reads any more."""
    left = memoryview(chunk)
    with suppress(BrokenPipeError):
        while left:
            left = left[os.write(out, left) :]
        return out
    return None
