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
# Ends of lines that sed(1), by which init reads the rules for /tmp, does not know.
_OTHER_ENDS = re.compile(r"\r(?!\n)|\0")
# Types whose path is a pattern (needs_glob in src/tmpfiles/tmpfiles.c).
_TAKES_PATTERN = re.compile(r"[wetTaAhHzZmrRxX]\S*")
_MODE = re.compile(r"""(["'~:]*)([0-7]{1,5})["']?""")
# A mode that cannot be read may be any mode, so nobody but root gets in until systemd-tmpfiles has read it.
_UNKNOWN_MODE, _MOST_MODE = 0o700, 0o7777
_LINKS = {"/var/run": ("/run", "../run"), "/var/lock": ("/run/lock", "../run/lock")}
_SHM = re.compile(r"^/run/shm(?=/)")
# Of two lines of these types for one path, systemd-tmpfiles follows the first one (item_compatible in src/tmpfiles/tmpfiles.c).
_MAKES = re.compile(r"[fFdDvqQpLcbC](?:([!+=~^$?-])(?!.*\1))*")
# tmpfiles.d(5), "Age". A line with another age is invalid to systemd-tmpfiles, and the next line for the path counts.
_SHORT, _LONG = (
    "(?:us(?:ec)?|ms(?:ec)?|s(?:ec(?:onds?)?)?)",
    "(?:m(?:in(?:utes?)?)?|hours?|hr?|d(?:ays?)?|w(?:eeks?)?|M|months?|y(?:ears?)?)",
)
# Longer times would be more than 64 bits of microseconds.
AGE = re.compile(
    rf"-|~?(?:[aAbBcCmM]{{1,8}}:)?(?:[0-9]{{1,9}}|(?:[0-9]{{1,9}}{_SHORT}|[0-9]{{1,5}}{_LONG}){{1,3}})"
)
# Types that change everything below their path.
_IS_RECURSIVE = re.compile(r"[RZATH]\S*")
_QUOTES = "\"'"


def lines_of(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each line of ``text`` that is no comment, with its words: type, path, mode, user, group, age and argument. The words
    are as they are written, with quotes and escapes.
    """
    for whole in _ENDS.split(text):
        line = whole.strip(_BLANKS)
        if line and not line.startswith("#"):
            yield line, tuple(re.split(f"[{_BLANKS}]+", line))


def has_other_ends(text: str) -> bool:
    """Whether ``text`` has a character that ends a line for systemd-tmpfiles only."""
    return _OTHER_ENDS.search(text) is not None


def takes_pattern(kind: str) -> bool:
    """Whether the path of a line of the type ``kind`` may be a pattern. Of two lines for one path, systemd-tmpfiles compares
    only those that both take a pattern, or both do not.
    """
    return _TAKES_PATTERN.fullmatch(kind) is not None


def makes(kind: str) -> bool:
    """Whether a line of the type ``kind`` makes a file or directory."""
    return _MAKES.fullmatch(kind) is not None


def is_recursive(kind: str) -> bool:
    """Whether a line of the type ``kind`` changes or removes everything below its path."""
    return _IS_RECURSIVE.fullmatch(kind) is not None


def has_escapes(word: str) -> bool:
    """Whether ``word`` has quotes or backslashes, other than quotes around all of it."""
    bare = word[1:-1] if len(word) > 1 and word[0] in _QUOTES and word[-1] == word[0] else word
    return bool(set(bare) & set("\"'\\"))


def is_usual_link(words: tuple[str, ...]) -> bool:
    """Whether the line makes /var/run or /var/lock the link that it is in every Debian."""
    kind, path, *rest = words
    return bool(re.fullmatch(r"L[+?!]*", kind)) and rest[4:] in ([target] for target in _LINKS.get(path, ()))


def unquoted(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` without the quotes at their ends."""
    return tuple(word.strip(_QUOTES) for word in words)


def plain(path: str) -> str:
    """``path`` in the form in which systemd-tmpfiles uses it. The form has no ``.`` and no double slashes. A specifier
    such as %t at the beginning is replaced by its directory, and the links /var/run, /var/lock and /run/shm are followed.
    """
    named = re.sub(r"/(?:\./|/)+", "/", path)
    named = named.removesuffix("/.") or "/"
    begin = _SPECIFIER.match(named)
    whole = in_run(_SPECIFIERS[begin[0]] + named[begin.end() :] if begin else named)
    return _SHM.sub("/dev/shm", whole, 1)  # noqa: S108


def certain_beginning(kind: str, path: str) -> str | None:
    """How the path that a line of the type ``kind`` names as ``path`` begins, as far as this is certain, if the rest depends
    on quotes, escapes, specifiers or a pattern in it. None if all of ``path`` is certain.
    """
    bare = path[1:-1] if len(path) > 1 and path[0] in _QUOTES and path[-1] == path[0] else path
    # The boot ID and the machine ID are 32 hexadecimal digits.
    bare = re.sub("%[bm]", "0" * 32, bare)
    specifier = _SPECIFIER.match(bare)
    begin = specifier[0] if specifier else ""
    odd = r"[%\"'\\*?\[{]" if takes_pattern(kind) else r"[%\"'\\]"
    found = begin + re.split(odd, bare[len(begin) :], maxsplit=1)[0]
    return None if found == bare else plain(found)


def given_mode(word: str, *, is_open: bool) -> str:
    """The mode in a line of tmpfiles.d, with a `:` in front if it is for a new directory only. In an open place, where a
    directory of the name may exist, nothing is returned for a mode that depends on the directory's own one (`~`), and
    for one that cannot be read.
    """
    if word == "-":
        return ":0755"
    match = _MODE.fullmatch(word)
    bits = int(match[2], 8) if match else _MOST_MODE + 1
    if is_open and (match is None or "~" in match[1] or bits > _MOST_MODE):
        return ""
    only_new = ":" if match and ":" in match[1] else ""
    return f"{only_new}0{bits if bits <= _MOST_MODE else _UNKNOWN_MODE:o}"


def given_name(word: str) -> str:
    """The user or group in a line of tmpfiles.d, with a `:` in front if it is for a new file only. Empty if it is no name."""
    if word == "-":
        return ":root"
    name = word.removeprefix(":")
    if name.startswith(":"):
        return ""
    return ":" * word.startswith(":") + ("root" if name == "0" else name)
