"""Two kinds of output streams for bytes from a guest. A `Printable` writes to a terminal, and prevents the guest from
controlling the terminal. A `Kept` keeps a limited number of bytes in memory.
"""

from __future__ import annotations

import codecs
from typing import BinaryIO, TextIO, cast

from quickstart.parse.printable import console_shown


def guarded(stream: TextIO) -> BinaryIO:
    """An output stream that writes a guest's bytes to ``stream``. If ``stream`` is a terminal, control characters are
    escaped. Otherwise, the bytes are written unchanged.
    """
    if not stream.isatty():
        return stream.buffer
    return cast(BinaryIO, Printable(stream.buffer))


class Printable:
    """An output stream that makes a guest's text harmless and then writes the text to a terminal. The function
    `console_shown` keeps colours, and replaces every other control character by a visible escape such as ``\\x1b``.

    A terminal obeys control sequences (console_codes(4)). A control sequence can set the terminal's title or clipboard,
    or make the terminal send input in the user's place.
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
    """An output stream that keeps the first ``limit_bytes`` bytes in memory, and only counts the further bytes."""

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
        """Do nothing, because this stream has no buffer that could be flushed."""
