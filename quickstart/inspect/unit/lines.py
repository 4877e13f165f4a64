"""Read the lines of a unit file as systemd's config_parse() does (systemd.syntax(7), src/shared/conf-parser.c)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from quickstart.inspect.unit.words import MAX_LINE_CHARACTERS

# systemd's WHITESPACE, and what ends a line in its read_line, which is at most one character of each kind.
BLANKS = " \t\n\r"
_LINE_ENDS = re.compile(r"(?:\r\n|\n\r|[\n\r])\0?|\0")
_BYTE_ORDER_MARK = "\ufeff"
# string_is_safe() of systemd's src/basic/string-util.c.
UNSAFE = re.compile(r"""[\x00-\x1f\x7f"'\\]""")
# Bytes that are not UTF-8 appear as surrogates here. The other code points are no characters (utf8_is_valid).
_NO_CHARACTERS = re.compile(
    "[\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(each + 0xFFFE) + chr(each + 0xFFFF) for each in range(0, 0x110000, 0x10000))
    + "]"
)


def first_fault(text: str) -> str:
    """The fault at which systemd stops reading ``text``, or an empty string. systemd completely ignores a unit file
    with a fault. If a drop-in has a fault, systemd uses only the part of the drop-in before the fault.
    """
    return next((fault for line in unit_lines(text) if (fault := line_fault(line))), "")


def line_fault(line: str) -> str:
    """The fault that makes systemd's config_parse stop at ``line``, or an empty string. A line that is too
    long is a fault even if it is a comment.
    """
    if _is_too_long(line):
        return f"a line of more than {MAX_LINE_CHARACTERS} bytes"
    if _NO_CHARACTERS.search(line):
        return "bytes that are no UTF-8 text"
    if line.startswith("[") and not line.endswith("]"):
        return "a section's name without `]` at the end of its line"
    if line.startswith("[") and UNSAFE.search(line):
        return "a section's name with quotes, backslashes or control characters"
    return ""


def _is_too_long(line: str) -> bool:
    """Whether a line has too many bytes for systemd's read_line()."""
    # No character has more than four bytes.
    return len(line) * 4 >= MAX_LINE_CHARACTERS and len(os.fsencode(line)) >= MAX_LINE_CHARACTERS


def unit_lines(text: str) -> Iterator[str]:
    """The lines of ``text`` as systemd's config_parse reads them, without comments and without blanks at both
    ends.

    A carriage return or a NUL also ends a line. A backslash at the end of a line continues the line, but an even number
    of backslashes does not. A comment between the parts of a continued line is left out. The function removes the first
    byte order mark that begins a line of ``text``, and keeps later byte order marks.
    """
    begun: list[str] = []
    is_marked = False
    for line in _LINE_ENDS.split(text):
        if _is_too_long(line):
            # With its blanks: systemd counts them.
            yield line
            begun.clear()
            continue
        if line.lstrip(BLANKS).startswith(("#", ";")):
            continue
        if not is_marked and line.startswith(_BYTE_ORDER_MARK):
            line, is_marked = line[1:], True
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        begun.append(f"{line[:-1]} " if is_continued else line)
        if not is_continued:
            yield "".join(begun).strip(BLANKS)
            begun.clear()
    if begun:
        yield "".join(begun).strip(BLANKS)
