"""Strings of anybody on a terminal or a page: what is no printing character becomes an escape."""

from __future__ import annotations

import re

# A message may have several lines, and quote a console.
LINES = "\n\t"
# What a console may do to a terminal: move within its line, and colours (ECMA-48, SGR).
_CONSOLE = "\n\r\t\b"
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,30}m)")
# The beginning of a colour at the end of what has come so far.
_BEGUN = re.compile(r"\x1b(\[[0-9;]{0,30})?$")


def shown(text: str, keep: str = "") -> str:
    """``text``, which may hold any file name: control characters and bytes that are no UTF-8 as escapes."""
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def console_shown(text: str) -> tuple[str, str]:
    """What a guest wrote to its console, for a terminal: colours stay, every other order to the terminal is an escape.

    Returns that, and the end of ``text`` that may be the beginning of a colour: it is to be put before what comes next.
    """
    begun = _BEGUN.search(text)
    rest = begun[0] if begun else ""
    parts = _COLOUR.split(text.removesuffix(rest))
    return "".join(part if index % 2 else shown(part, _CONSOLE) for index, part in enumerate(parts)), rest
