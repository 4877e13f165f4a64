"""Outputs for a guest's bytes: a terminal, which a guest must not control, or memory, which has a bound."""

from __future__ import annotations

import codecs
from typing import BinaryIO, TextIO, cast

from quickstart.parse.printable import console_shown


def guarded(stream: TextIO) -> BinaryIO:
    """``stream`` for a guest's bytes: as they come, but on a terminal without its control characters."""
    if not stream.isatty():
        return stream.buffer
    return cast(BinaryIO, Printable(stream.buffer))


class Printable:
    """Passes text on as `console_shown` shows it: every control sequence but colours becomes an escape
    (``\x1b``).

    A terminal obeys control sequences: they set its title or its clipboard, or make it type for the user
    (console_codes(4)).
    """

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._begun = ""

    def write(self, data: bytes) -> int:
        text, self._begun = console_shown(self._begun + self._decoder.decode(data))
        self._target.write(text.encode())
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
