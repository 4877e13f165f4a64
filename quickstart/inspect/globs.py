"""Match paths with the patterns of profiles. The wildcards of a pattern are `*`, `?`, character classes, and `**`,
which matches across directories.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

_GLOB_PARTS = re.compile(r"(\*\*|\*|\?|\[!?\]?[^]]*\])")
_ANY, _WITHIN_NAME = "**", "*"
# fnmatch reads them as text: they have no end.
_NO_CLASSES = ("[]", "[!]")


def matches(path: PurePosixPath | str, glob: str) -> bool:
    """Whether ``path`` matches ``glob``. ``*`` and ``?`` match within one name, and ``**`` matches across
    directories. A glob without a wildcard matches its own path and every path below it.

    Glob and path may be untrusted. A match takes time proportional to the length of the path.
    """
    text = str(path)
    head, middle, tail = _compiled(glob)
    if middle is None:
        # path.parents is not used, because it makes an object for each parent, and a stranger's path may have two
        # thousand.
        return text == head or text.startswith(tail)
    if not (text.startswith(head) and text.endswith(tail)) or len(text) < len(head) + len(tail):
        return False
    return middle.matches(text[len(head) : len(text) - len(tail)])


@functools.cache
def _compiled(glob: str) -> tuple[str, _Middle | None, str]:
    """A glob as three parts: the text before the first wildcard, the pattern from the first wildcard to the
    last, and the text after the last wildcard. For almost every path, a comparison with the two texts already
    shows that the path does not match.

    The three parts of a glob without a wildcard are its path, None, and its path with a slash at the end.
    """
    if not any(char in glob for char in "*?["):
        top = str(PurePosixPath(glob))
        return top, None, top if top.endswith("/") else f"{top}/"
    parts = list(_tokens(glob))
    wild = [place for place, part in enumerate(parts) if _is_wild(part)]
    if not wild:
        return glob, _Middle([]), ""
    first, last = wild[0], wild[-1] + 1
    return "".join(parts[:first]), _Middle(parts[first:last]), "".join(parts[last:])


def _tokens(glob: str) -> Iterator[str]:
    """The tokens of a glob, in order. A token is a wildcard or one other character."""
    for number, part in enumerate(_GLOB_PARTS.split(glob)):
        # Every second part is what the pattern has found.
        if number % 2 and part not in _NO_CLASSES:
            yield part
        else:
            yield from part


def _is_wild(token: str) -> bool:
    return len(token) > 1 or token in ("*", "?")


class _Middle:
    """The pattern in the middle of a glob. This class follows all ways in which the pattern can match at the same time.
    So it reads each character of a path only once, for any pattern.

    The state of a match is a number. Bit N of this number says that the first N tokens of the pattern match the text
    that has been read. N does not count the tokens ``*`` and ``**``.
    """

    def __init__(self, tokens: list[str]) -> None:
        # The positions of stars. What was matched up to a star stays matched for the next character, too.
        self._any = self._within_name = length = 0
        self._plain: dict[str, int] = defaultdict(int)
        self._wild: dict[str, int] = defaultdict(int)
        for token in tokens:
            if token == _ANY:
                self._any |= 1 << length
            elif token == _WITHIN_NAME:
                self._within_name |= 1 << length
            else:
                (self._wild if _is_wild(token) else self._plain)[token] |= 1 << length
                length += 1
        self._whole = 1 << length
        # Between two neighbours of these, all characters are alike for the wildcards.
        named = {ord(char) for char in "".join(("/", *self._wild))}
        self._borders = sorted(named | {code + 1 for code in named})
        self._alike: dict[int, int] = {}

    def matches(self, text: str) -> bool:
        state, whole = 1, self._whole
        # A last ** takes whatever follows.
        done = whole & self._any
        plain, everywhere, within_name = self._plain.get, self._any, self._any | self._within_name
        for char in text:
            places = plain(char, 0) | self._wild_places(char) if self._wild else plain(char, 0)
            state = (state & places) << 1 | state & (everywhere if char == "/" else within_name)
            if not state or state & done:
                break
        return state & whole != 0

    def _wild_places(self, char: str) -> int:
        """A number in which bit N says that token N of the pattern is ``?`` or a character class and matches
        ``char``. Tokens are counted from 0, without ``*`` and ``**``.
        """
        alike = bisect(self._borders, ord(char))
        if (places := self._alike.get(alike)) is None:
            found = (bits for token, bits in self._wild.items() if _takes(token, char))
            places = self._alike[alike] = functools.reduce(operator.or_, found, 0)
        return places


def _takes(wildcard: str, char: str) -> bool:
    """Whether ``wildcard``, which is ``?`` or a character class, matches ``char``. Neither wildcard matches a slash."""
    return char != "/" and (wildcard == "?" or _class(wildcard).match(char) is not None)


@functools.cache
def _class(wildcard: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(wildcard))
