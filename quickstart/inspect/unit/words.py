"""Parse words, quotes, escapes and specifiers in unit files (systemd.syntax(7), systemd.service(5) and
systemd.unit(5)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from quickstart.errors import UnsupportedUnitError
from quickstart.parse.printable import brief

_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "s": " ",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_CODED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_SPACE = " \t\n\r"
SEPARATOR = ";"
# systemd's own limit for a line (LONG_LINE_MAX of def.h). Here it also applies to a line with expanded specifiers.
MAX_LINE_CHARACTERS = 1 << 20
# Placeholders for %H and %l, whose values only the running machine knows. The starter replaces them. No text has
# these characters.
HOST_NAME, SHORT_HOST_NAME = "\ud800", "\ud801"


@dataclass(frozen=True)
class Names:
    """The values of a unit's specifiers. ``unit`` is the unit's full name."""

    unit: str

    @property
    def stem(self) -> str:
        """The unit's name without its type, which is `.service` or `.socket`."""
        return self.unit.removesuffix(".service").removesuffix(".socket")

    @property
    def prefix(self) -> str:
        """The part of the unit's name before `@`, without the type."""
        return self.stem.partition("@")[0]

    @property
    def instance(self) -> str:
        """The part of the unit's name between `@` and the type."""
        return self.stem.partition("@")[2]

    def value(self, letter: str) -> str | None:
        """The value of the specifier that consists of `%` and ``letter``. The result is None for a specifier whose
        value only the running machine knows.
        """
        return self._values.get(letter)

    @cached_property
    def _values(self) -> Mapping[str, str]:
        return {
            "n": self.unit,
            "N": self.stem,
            "p": self.prefix,
            "P": unescape_name(self.prefix),
            "i": self.instance,
            "I": unescape_name(self.instance),
            "j": self.prefix.rpartition("-")[2],
            "J": unescape_name(self.prefix.rpartition("-")[2]),
            "f": "/" + unescape_name(self.instance or self.prefix).lstrip("/"),
            "t": "/run",
            "S": "/var/lib",
            "C": "/var/cache",
            "L": "/var/log",
            "E": "/etc",
            "T": "/tmp",  # noqa: S108 - what %T and %V mean
            "V": "/var/tmp",  # noqa: S108
            "h": "/root",
            "u": "root",
            "U": "0",
            "g": "root",
            "G": "0",
            "%": "%",
        }

    def expand(self, text: str, with_host_name: bool = False) -> str:
        """``text`` with its specifiers replaced. Raises UnsupportedUnitError for a specifier whose value is
        not known at build time.

        With ``with_host_name``, %H and %l are replaced by the placeholders HOST_NAME and SHORT_HOST_NAME. The
        starter replaces the placeholders by the machine's name.
        """
        late = {"H": HOST_NAME, "l": SHORT_HOST_NAME} if with_host_name else {}
        if text.count("%") * len(self.unit) > MAX_LINE_CHARACTERS:
            raise UnsupportedUnitError(f"{self.unit}: `{brief(text)}` has too many specifiers")

        def value(match: re.Match[str]) -> str:
            found = late.get(match[1]) or self.value(match[1])
            if found is None:
                raise UnsupportedUnitError(
                    f"{self.unit}: `%{match[1]}` in `{brief(text)}` is known to the running machine only"
                )
            return found

        return re.sub(r"%(.?)", value, text, flags=re.DOTALL)


def unescape_name(name: str) -> str:
    """The original text of an escaped part of a unit's name (systemd-escape(1))."""
    plain = name.replace("-", "/")
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), plain)


def split_words(unit: str, text: str) -> list[str]:
    """The words in ``text``, with quotes and escapes resolved. A `;` that is a word by itself is returned with a
    NUL at its end, so that it differs from a quoted `;`. No other word contains a NUL.

    Raises UnsupportedUnitError for an escape that systemd does not know, and for an open quote.
    """
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            value, length = _escape(unit, text, position, current is None and not quote)
            current = current if current is not None else []
            current.append(value)
            position += length
        elif quote:
            if char == quote:
                quote = ""
            else:
                current = current if current is not None else []
                current.append(char)
        elif char in "\"'":
            quote, current = char, current if current is not None else []
        elif char in _SPACE:
            if current is not None:
                words.append("".join(current))
            current = None
        elif char == ";" and current is None and text[position : position + 1] in ("", *_SPACE):
            words.append(f"{SEPARATOR}\0")
        else:
            current = current if current is not None else []
            current.append(char)
    if quote:
        raise UnsupportedUnitError(f"{unit}: `{brief(text)}` has an open quote")
    return words if current is None else [*words, "".join(current)]


def _escape(unit: str, text: str, position: int, at_start: bool) -> tuple[str, int]:
    """The value of the escape at ``position`` (after the backslash), and its length."""
    coded = _CODED.match(text, position)
    if coded:
        value = int(coded[4], 8) if coded[4] else int(coded[1] or coded[2] or coded[3], 16)
        if 0 < value < 0x110000 and not 0xD800 <= value < 0xE000:
            return chr(value), len(coded[0])
    letter = text[position]
    if at_start and letter == ";" and text[position + 1 : position + 2] in ("", *_SPACE):
        return ";", 1
    if letter not in _ESCAPES:
        raise UnsupportedUnitError(f"{unit}: the escape \\{letter} in `{brief(text)}` is not known")
    return _ESCAPES[letter], 1
