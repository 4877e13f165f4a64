"""Show untrusted strings on a terminal or a page. Characters that cannot be printed are replaced by escapes."""

from __future__ import annotations

import re
import shlex

# The characters that a page of a report keeps. A message of ours is one line.
LINES = "\n\t"
# Limits for an untrusted word in our messages. The longest word that users paste into a shell is a path.
_BRIEF_CHARACTERS = 200
_PASTED_CHARACTERS = 1024
# A console may only move within its line, and set colours (ECMA-48, SGR).
_CONSOLE = "\n\r\t\b"
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,30}m)")
# A blank behind another blank, and letters that look like blanks (Hangul filler, empty Braille pattern).
_BLANKS = re.compile(r"(?<= ) |[\u115f\u1160\u2800\u3164\uffa0]")
# The beginning of a colour at the end of what has come so far.
_BEGUN = re.compile(r"\x1b(\[[0-9;]{0,30})?$")


def shown(text: str, keep: str = "") -> str:
    """``text`` with escapes in place of control characters and bytes outside UTF-8. Characters in ``keep``
    are not escaped. ``text`` may be any file name.
    """
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def brief(text: str) -> str:
    """``text``, a word or name from an untrusted source, in a form that is safe and short enough for a message. Control
    characters are escaped, so ``text`` cannot begin a new line, and a long ``text`` is shortened to a readable length.
    In a series of blanks, all blanks except the first are escaped. Otherwise, a terminal that wraps a long line at the
    blanks could show the end of ``text`` on a line of its own, where it looks like another message of QuickStart.
    """
    return in_full(text if len(text) <= _BRIEF_CHARACTERS else f"{text[:_BRIEF_CHARACTERS]}…")


def in_full(text: str) -> str:
    """``text`` as in `brief`, but of any length."""
    return _BLANKS.sub(lambda match: _escaped(match[0]), shown(text))


def command(*words: str) -> str | None:
    """The command line of ``words``, quoted where necessary, for a user to paste into a shell. The result is None when
    a user should not paste one of the words. A user should not paste a word that is too long, that has a character
    which cannot be printed, or that has a backtick. In our messages, a backtick marks the end of a command.
    """
    if any(shown(word) != word or "`" in word or len(word) > _PASTED_CHARACTERS for word in words):
        return None
    return shlex.join(words)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return "\\x20" if char == " " else char.encode("unicode_escape").decode()


def console_shown(text: str) -> tuple[str, str]:
    """A guest's console output for a terminal. Colour sequences, line ends, tabs and backspaces are kept. Every other
    control character is shown as visible text, such as ``\\x1b``.

    Returns the text to print, and the end of ``text`` that may be an incomplete colour sequence. The caller
    prepends this end to the next piece of output.
    """
    begun = _BEGUN.search(text)
    rest = begun[0] if begun else ""
    parts = _COLOUR.split(text.removesuffix(rest))
    return "".join(part if index % 2 else shown(part, _CONSOLE) for index, part in enumerate(parts)), rest
