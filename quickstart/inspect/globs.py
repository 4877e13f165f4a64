"""Path patterns of profiles: `*`, `?`, character classes, and `**` across directories."""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import PurePosixPath

_GLOB_PARTS = re.compile(r"(\*\*|\*|\?|\[!?\]?[^]]*\])")


def matches(path: PurePosixPath, glob: str) -> bool:
    """Whether ``path`` matches ``glob``. ``*`` and ``?`` match within one name, and ``**`` matches across
    directories. A glob without a wildcard also matches everything below it.
    """
    if not any(char in glob for char in "*?["):
        # Not by path.parents, which makes each of them: a stranger's path may have two thousand.
        top, below = str(PurePosixPath(glob)), str(path)
        return below == top or below.startswith(top if top.endswith("/") else f"{top}/")
    return _compiled(glob).fullmatch(str(path)) is not None


@functools.cache
def _compiled(glob: str) -> re.Pattern[str]:
    """The regular expression for a glob. The glob may be untrusted, so matching takes at most quadratic time
    in the path's length.

    The part between two ``**`` is matched at the first place where it matches, and each ``*`` matches as
    little as possible, without backtracking (atomic groups). No match is missed, because ``*`` does not match
    a slash, so a match at a later place never ends earlier.
    """
    parts: list[list[str]] = [[""]]
    for part in _GLOB_PARTS.split(glob):
        if part == "**":
            parts.append([""])
        elif part == "*":
            parts[-1].append("")
        else:
            parts[-1][-1] += "[^/]" if part == "?" else _class_or_text(part)
    first, *others = [_within_names(part, part is parts[-1]) for part in parts]
    return re.compile(first + "".join(f"(?>.*?{other})" for other in others), re.DOTALL)


def _within_names(fixed: list[str], is_last: bool) -> str:
    """The regular expression for the part of a glob between two ``**``, given as the pieces ``fixed`` between
    its ``*``. The last part of a glob must match up to the path's end.
    """
    tails = [f"(?>[^/]*?{part})" for part in fixed[1:]]
    if is_last:
        tails[-1:] = [f"[^/]*{part}" for part in fixed[1:][-1:]]
    return fixed[0] + "".join(tails) + (r"\Z" if is_last else "")


def _class_or_text(part: str) -> str:
    if len(part) < 3 or part[0] != "[" or part[-1] != "]":
        return re.escape(part)
    # fnmatch translates a character class; what it writes around it differs between versions of Python. No slash is one of it.
    return "(?!/)" + re.sub(r"\A\(\?s:(.*)\)\\[zZ]\Z", r"\1", fnmatch.translate(part), flags=re.DOTALL)
