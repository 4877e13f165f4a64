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
# An escape of systemd-escape(1) that is none.
_BROKEN = re.compile(r"\\(?!x[0-9a-fA-F]{2})")
_CODED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_BYTES = re.compile(r"[\udc80-\udcff]+")
_SPACE = " \t\n\r"
SEPARATOR = ";"
_QUOTES = frozenset("\"'")
_QUOTING = _QUOTES | {"\\"}
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
        value only the running machine knows, and for one that systemd cannot unescape: it would leave out the line.
        """
        part = {"P": self.prefix, "I": self.instance, "J": self.prefix.rpartition("-")[2]}.get(letter, "")
        if _BROKEN.search(part):
            return None
        if letter == "f" and not _is_path_name(self.instance or self.prefix):
            return None
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


def _is_path_name(name: str) -> bool:
    """Whether ``name`` stands for a normalized path (unit_name_path_unescape in systemd's src/basic/unit-name.c)."""
    if name == "-":
        return True
    is_plain = not name.startswith("-") and not name.endswith("-") and "--" not in name
    return bool(name) and is_plain and not _BROKEN.search(name) and not {".", ".."} & set(name.split("-"))


def unescape_name(name: str) -> str:
    """The original text of an escaped part of a unit's name (systemd-escape(1))."""
    plain = name.replace("-", "/")
    return _characters(re.sub(r"\\x([0-9a-fA-F]{2})", lambda match: _byte(int(match[1], 16)), plain))


def _byte(value: int) -> str:
    """A byte of a text. A byte above 0x7f is a part of a character, and stands for itself until `_characters`."""
    return chr(value) if value < 0x80 else chr(0xDC00 + value)


def _characters(text: str) -> str:
    """``text``, in which the bytes that `_byte` has returned are the characters that they have in UTF-8. Other bytes
    stay as they are, as in the name of a file (os.fsdecode).
    """

    def decoded(match: re.Match[str]) -> str:
        return match[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")

    return _BYTES.sub(decoded, text)


def names_in(unit: str, value: str) -> list[str]:
    """The names of units in ``value``, with specifiers expanded. systemd takes a quote or a backslash as a character of
    the name (config_parse_unit_deps in its src/core/load-fragment.c). To be safe, the result also has the names as
    another reader would take them, without quotes and escapes.
    """
    names = [_expanded(unit, word) for word in re.split(f"[{_SPACE}]+", value) if word]
    if _QUOTING.isdisjoint(value):
        return names
    # No name has a quote.
    return [*dict.fromkeys((*(each for each in names if _QUOTES.isdisjoint(each)), *words_of(unit, value)))]


def _expanded(unit: str, word: str) -> str:
    try:
        return Names(unit).expand(word)
    except UnsupportedUnitError:
        return word


def words_of(unit: str, value: str) -> list[str]:
    """The words in ``value``, without quotes and with specifiers expanded. When ``value`` cannot be parsed, the
    result is ``value`` split at blanks.
    """
    try:
        return [Names(unit).expand(word) for word in split_words(unit, value)]
    except UnsupportedUnitError:
        return value.split()


def split_words(unit: str, text: str) -> list[str]:
    """The words in ``text``, with quotes and escapes resolved. A `;` that is a word by itself is returned with a
    NUL at its end, so that it differs from a quoted `;`. No other word contains a NUL.

    Raises UnsupportedUnitError for an escape that systemd does not know, for escaped bytes that are no text, and for an
    open quote.
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
    found = [_characters(word) for word in (words if current is None else [*words, "".join(current)])]
    if any(map(_BYTES.search, found)):
        raise UnsupportedUnitError(f"{unit}: `{brief(text)}` has bytes that are no text")
    return found


def _escape(unit: str, text: str, position: int, at_start: bool) -> tuple[str, int]:
    """The value of the escape at ``position`` (after the backslash), and its length."""
    coded = _CODED.match(text, position)
    if coded:
        value = int(coded[4], 8) if coded[4] else int(coded[1] or coded[2] or coded[3], 16)
        is_byte = bool(coded[1] or coded[4])
        if is_byte and 0 < value < 0x100:
            return _byte(value), len(coded[0])
        if not is_byte and 0 < value < 0x110000 and not 0xD800 <= value < 0xE000:
            return chr(value), len(coded[0])
    letter = text[position]
    if at_start and letter == ";" and text[position + 1 : position + 2] in ("", *_SPACE):
        return ";", 1
    if letter not in _ESCAPES:
        raise UnsupportedUnitError(f"{unit}: the escape \\{letter} in `{brief(text)}` is not known")
    return _ESCAPES[letter], 1
