"""Divide the text of a file of tmpfiles.d(5) into lines and words, as systemd-tmpfiles does. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quickstart.parse.guestpaths import in_run

# systemd.unit(5), "Specifiers": those that are usual at the beginning of a path.
_SPECIFIERS = {"%t": "/run", "%S": "/var/lib", "%C": "/var/cache", "%L": "/var/log"}
_SPECIFIERS |= {"%T": "/tmp", "%V": "/var/tmp", "%h": "/root"}  # noqa: S108
_SPECIFIER = re.compile(r"%[tTVSCLh](?=/|$)")
# What ends a line for systemd (read_line_full in src/basic/fileio.c), and what separates words (WHITESPACE). Python knows
# more of both.
_ENDS, _BLANKS = re.compile(r"[\n\r\0]"), " \t"
_QUOTES = "\"'"


def lines_of(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each line of ``text`` that is no comment, with its words: type, path, mode, user, group, age and argument. The words
    are as they are written, with quotes and escapes.
    """
    for whole in _ENDS.split(text):
        line = whole.strip(_BLANKS)
        if line and not line.startswith("#"):
            yield line, tuple(re.split(f"[{_BLANKS}]+", line))


def unquoted(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` without the quotes at their ends."""
    return tuple(word.strip(_QUOTES) for word in words)


def plain(path: str) -> str:
    """``path`` in the form in which systemd-tmpfiles uses it. The form has no ``.`` and no double slashes. A specifier
    such as %t at the beginning is replaced by its directory, and the links /var/run and /var/lock are followed.
    """
    named = re.sub(r"/(?:\./|/)+", "/", path)
    begin = _SPECIFIER.match(named)
    return in_run(_SPECIFIERS[begin[0]] + named[begin.end() :] if begin else named)


def certain_beginning(path: str) -> str | None:
    """How the path that a line names as ``path`` begins, as far as this is certain, if the rest depends on quotes, escapes or
    specifiers in it. None if all of ``path`` is certain.
    """
    bare = path[1:-1] if len(path) > 1 and path[0] in _QUOTES and path[-1] == path[0] else path
    # The boot ID and the machine ID are 32 hexadecimal digits.
    bare = re.sub("%[bm]", "0" * 32, bare)
    specifier = _SPECIFIER.match(bare)
    begin = specifier[0] if specifier else ""
    found = begin + re.split(r"[%\"'\\]", bare[len(begin) :], maxsplit=1)[0]
    return None if found == bare else plain(found)
