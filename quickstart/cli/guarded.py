"""Where the bytes of a guest go: a terminal, which a guest must not tell what to do, or memory, which has an end."""

from __future__ import annotations

import codecs
from typing import BinaryIO, TextIO, cast

from quickstart.cli.output import shown

_KEPT = "\n\r\t"


def guarded(stream: TextIO) -> BinaryIO:
    """``stream`` for a guest's bytes: as they come, but on a terminal without its control characters."""
    if not stream.isatty():
        return stream.buffer
    return cast(BinaryIO, Printable(stream.buffer))


class Printable:
    """Passes text on with an escape (``\\\\x1b``) for each control character but newline, carriage return and tab.

    A terminal obeys sequences of them: they set its title or its clipboard, or have it type for the user (console_codes(4)).
    """

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> int:
        self._target.write(shown(self._decoder.decode(data), _KEPT).encode())
        return len(data)

    def flush(self) -> None:
        self._target.flush()


class Kept:
    """Keeps the first ``limit_bytes`` of what is written, and counts the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.data = bytearray()
        self.left_out_bytes = 0

    def write(self, data: bytes) -> int:
        kept = data[: self._limit_bytes - len(self.data)]
        self.data += kept
        self.left_out_bytes += len(data) - len(kept)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""
