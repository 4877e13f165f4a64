"""Pass a file that somebody else has made to its reader, and hash the bytes on the way. The file was hashed once
before, so a different hash shows that the file has changed since then.
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
    """The descriptor of a pipe. The content of the open file ``source`` can be read from this pipe once, as long as
    the ``with`` block runs.

    Raises BadInputError at the end of the ``with`` block when the file's SHA-256 differs from ``digest``. In this case,
    the caller must discard the reader's results.
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
    """A thread that writes a file into a pipe. ``digest`` is empty until the thread has read the whole file."""

    def __init__(self, source: int, path: Path, writing: int) -> None:
        super().__init__(daemon=True)
        self.digest = ""
        self.give_up = threading.Event()
        self._source, self._path, self._writing = source, path, writing

    def run(self) -> None:
        digest = hashlib.sha256()
        out: int | None = self._writing
        # If the file got shorter, or cannot be read, its digest stays empty.
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
    """Write all of ``chunk`` into the pipe ``out``. Return ``out``, or None when the pipe's reading end is closed."""
    left = memoryview(chunk)
    with suppress(BrokenPipeError):
        while left:
            left = left[os.write(out, left) :]
        return out
    return None
