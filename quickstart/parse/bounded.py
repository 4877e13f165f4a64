"""Read untrusted numbers, lines, files and TOML with limits on time and memory.

Python's own functions have no such limits. int() takes time that grows with the square of the number of digits, and
raises ValueError for more than 4300 digits. The methods of files read a complete line or a complete file, even if the
line or the file is very large. tomllib keeps every prefix of a dotted key, so a key with many parts takes much memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

# limits.h, with the NUL at its end: a longer path names nothing.
PATH_MAX = 4096
UINT64_MAX = (1 << 64) - 1
INT64_MAX = (1 << 63) - 1
# The limit for a document that a person writes. Our longest has 6 KiB.
MAX_TOML_BYTES = 256 << 10
_MAX_KEY_PARTS = 32
_DECIMAL = re.compile(r"[0-9]{1,20}")
# Here and in other modules, (?>(?:…)*) stands for (?:…)*+, which is wrong in Python before 3.11.5 when a round fails
# in its middle (gh-106052). The pattern matches texts whose dots are not those of a key: strings of the four kinds,
# and comments (toml.io, v1.0.0).
_NO_KEY = re.compile(
    r'"""(?>(?:[^"\\]++|\\.|"(?!""))*)"{3,5}'
    r"|'''(?>(?:[^']++|'(?!''))*)'{3,5}"
    r'|"(?>(?:[^"\\\n]++|\\[^\n])*)"'
    r"|'[^'\n]*+'"
    r"|#[^\n]*+",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^\"'#]++")
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MAX_KEY_PARTS}}}")


def natural(text: str, most: int = UINT64_MAX) -> int | None:
    """The number in ``text`` (ASCII decimal digits), if the number is from 0 to ``most``. The result is None for any
    other text. ``most`` must be less than 10**20.
    """
    if _DECIMAL.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value <= most else None


def lines_of(file: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    """The lines of a file, with their newlines. A line longer than ``most_bytes`` is yielded in pieces of
    ``most_bytes`` + 1 bytes. These pieces do not end with a newline.
    """
    return iter(partial(file.readline, most_bytes + 1), b"")


def joined(pieces: Iterable[bytes], least_bytes: int) -> Iterator[bytes]:
    """The bytes of ``pieces``, joined into pieces of at least ``least_bytes`` bytes. The last piece may be shorter."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= least_bytes:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def read_whole(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file. A link is followed.

    Raises OSError when the file is not regular, because a FIFO would block. Also raises OSError when more than
    ``most_bytes`` bytes can be read from the file, even if stat(2) shows a smaller size.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(min(status.st_size, most_bytes) + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """The TOML document in ``text``, which may have at most a few hundred KiB. The document's values can be written as
    JSON, because dates become text.

    Raises ValueError with a readable message for any other text.
    """
    if len(text) > MAX_TOML_BYTES:
        raise ValueError(f"it has more than {MAX_TOML_BYTES} characters")
    if _LONG_KEY.search(_without_strings(text)):
        raise ValueError(f"a key has more than {_MAX_KEY_PARTS} parts")
    try:
        found = tomllib.loads(text)
        # A hexadecimal number may have more digits than can be written in decimal.
        json.dumps(found, default=str)
    except RecursionError as error:
        raise ValueError("its tables and arrays are nested too deep") from error
    return found


def _without_strings(text: str) -> str:
    """``text`` without comments, and with a word in place of each string. The result ends at the first string
    that has no closing quote, where tomllib also stops.
    """
    parts: list[str] = []
    at = 0
    while at < len(text):
        plain = _PLAIN.match(text, at)
        start = plain.end() if plain else at
        parts.append(text[at:start])
        match = _NO_KEY.match(text, start)
        if match is None:
            break
        parts.append("" if text[start] == "#" else "k")
        at = match.end()
    return "".join(parts)
