"""Outputs for bytes from a guest: a terminal, which the guest must not control, or a memory buffer, which is limited."""

from __future__ import annotations

import codecs
from typing import BinaryIO, TextIO, cast

from quickstart.parse.printable import console_shown


def guarded(stream: TextIO) -> BinaryIO:
    """An output for a guest's bytes. The bytes go to ``stream`` unchanged, unless it is a terminal: then
    control characters are escaped.
    """
    if not stream.isatty():
        return stream.buffer
    return cast(BinaryIO, Printable(stream.buffer))


class Printable:
    """Passes text on in the form that `console_shown` gives it: every control sequence except colours is
    shown as an escape (``\x1b``).

    A terminal obeys control sequences. Control sequences can set the terminal's title or clipboard, or make
    the terminal type input for the user (console_codes(4)).
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
    """Keeps the first ``limit_bytes`` of what is written, and counts the bytes after that."""

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
        """Do nothing, because nothing is buffered."""
