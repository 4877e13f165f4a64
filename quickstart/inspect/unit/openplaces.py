"""Judge lines of tmpfiles.d(5) for /tmp, /var/tmp, /dev/shm and /run/lock, where every user may make a file of any name. In
a stock boot, systemd-tmpfiles has made its files there before any user's program runs. In a fast start, it comes later, and
takes over what is there: a directory with its content and its ACL. This module has no side effects.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.tmpfileslines import AGE, certain_beginning, is_recursive, makes, plain

# In these places, every user may make a file of any name. In a stock boot, systemd-tmpfiles comes first.
_TMP, _VAR_TMP = "/tmp/", "/var/tmp/"  # noqa: S108
OPEN_PLACES = (_TMP, _VAR_TMP, "/dev/shm/", "/run/lock/")  # noqa: S108
MADE_IN = ("/run/", *OPEN_PLACES)
_ROOTS = tuple(place.rstrip("/") for place in OPEN_PLACES)
# What a user has made there first would stay what it is: a file with a descriptor that is open, a link, a directory with an ACL.
_TAKES_OVER = re.compile(r"[fFpLCcbwzZmaAtThHe]\S*")
_MAKES_DIRECTORY = re.compile(r"[dDvqQ]\S*")
# `earlier-files` follows these lines (systemd-tmp.conf), or nothing looks for the files (snapd, flatpak).
_REMOVED_LATER = tuple(
    f"{place}{name}"
    for place in (_TMP, _VAR_TMP)
    for name in ("systemd-private-", "snap-private-tmp", "flatpak-cache-")
)
# Of x11.conf, which systemd itself brings.
X11 = tuple(f"/tmp/.{name}-unix" for name in ("X11", "ICE", "XIM", "font"))  # noqa: S108
_X11_LOCKS = "/tmp/.X[0-9]*-lock"  # noqa: S108
# Of the package x11-common, which all programs with windows need.
_X11_FILES = PurePosixPath("/etc/X11")
# What init makes of an open place: type, mode, user and group, age, argument. Of a `D`, init's script earlier-files knows
# this form only.
_AS_INIT_MAKES_IT = (
    *map(re.compile, (r"[devqQ]!?", "-|0*1777", "-|root|0", "-|root|0")),
    AGE,
    re.compile("-"),
)
_EMPTIES = tuple(
    map(re.compile, ("D!?", "-|1777", "-|root", "-|root", r"-|[0-9]{1,6}(?:s|min|m|h|d|w)?", "-"))
)
_IGNORED_AT_BOOT = re.compile(r"[xX]\S*")
# Types of lines that remove, empty or overwrite a file.
DESTRUCTIVE = re.compile(r"(?:[rRDFw]|[LCfpbc][^\s+]*\+)\S*")


def is_left(root: ImageRoot, path: str, mode: str) -> bool:
    """Whether the starter does not make the directory ``path``. These are directories in /run that every user may write
    to, and the directories of the X Window System in an image that has nothing of it.
    """
    if path in X11:
        return not has_x_window_system(root)
    is_open = bool(int(mode, 8) & stat.S_IWOTH)
    return is_open and path.startswith("/run/") and not path.startswith("/run/lock/")


def open_place(path: str) -> str | None:
    """The place in which every user may make a file of any name, if ``path`` is this place itself."""
    return path.rstrip("/") if path.rstrip("/") in _ROOTS else None


def is_in_open_place(path: str) -> bool:
    """Whether every user may make a file of the name ``path``. A path with ``..`` may lead to such a place, too."""
    is_below = f"{path}/".startswith(OPEN_PLACES) and path.rstrip("/") not in _ROOTS
    return is_below or (".." in path.split("/") and any(place in f"{path}/" for place in OPEN_PLACES))


def may_lead_there(kind: str, spelled: str) -> bool:
    """Whether the path that a line names as ``spelled`` may be an open place or in one, and only systemd-tmpfiles knows,
    because of quotes, escapes or specifiers. False for a line that does nothing at boot.
    """
    if _IGNORED_AT_BOOT.fullmatch(kind):
        return False
    begins = certain_beginning(kind, spelled)
    if begins is None:
        whole = plain(spelled).rstrip("/")
        return is_recursive(kind) and any(place.startswith(f"{whole}/") for place in OPEN_PLACES)
    return any(place.startswith(begins) or begins.startswith(place) for place in OPEN_PLACES)


class OpenPlaces:
    """Judges the lines for the open places themselves, in the order in which systemd-tmpfiles reads them. Such a line must
    ask for what init makes there: in a stock boot, other rights count before any service starts.
    """

    def __init__(self) -> None:
        self._made: set[str] = set()

    def is_refused(self, place: str, words: tuple[str, ...]) -> bool:
        """Whether `refuse_tmpfiles` refuses the line with ``words`` for the open place ``place``."""
        kind, spelled, *_ = words
        # A spelling that init's script earlier-files does not know.
        if spelled not in (place, f"{place}/"):
            return True
        is_second = place in self._made and makes(kind)
        if makes(kind):
            self._made.add(place)
        if is_second or _IGNORED_AT_BOOT.fullmatch(kind):
            return False
        form = _EMPTIES if kind.startswith("D") else _AS_INIT_MAKES_IT
        given = (kind, *words[2:])
        is_known = len(given) <= len(form) and all(
            pattern.fullmatch(word) for pattern, word in zip(form, given, strict=False)
        )
        return not is_known or (kind.startswith("D") and place != _TMP.rstrip("/"))


def is_refused_there(kind: str, path: str, made: Collection[str], *, is_emptied: bool, has_x: bool) -> bool:
    """Whether `refuse_tmpfiles` refuses a line of the type ``kind`` for ``path``, where every user may make a file of
    this name. ``made`` are the directories that the starter makes first. ``is_emptied`` says that nothing of earlier
    boots is in /tmp, and ``has_x`` that the image has something of the X Window System.
    """
    is_nobodys = (path in X11 or path == _X11_LOCKS) and (is_emptied or not has_x)
    if _MAKES_DIRECTORY.fullmatch(kind):
        # A directory of /var/tmp would have to be emptied, too. The kernel makes the other places anew.
        is_kept = path.startswith(_VAR_TMP) or (path.startswith(_TMP) and not is_emptied)
        return path.rstrip("/") not in made or (kind[0] == "D" and is_kept and not is_nobodys)
    if _TAKES_OVER.fullmatch(kind):
        return True
    if not DESTRUCTIVE.fullmatch(kind) or path.startswith(_REMOVED_LATER) or is_nobodys:
        return False
    return path.startswith(_VAR_TMP) or ".." in path.split("/") or (path.startswith(_TMP) and not is_emptied)


def has_x_window_system(root: ImageRoot) -> bool:
    """Whether the image has something of the X Window System."""
    return root.resolve(_X11_FILES).canonical is not None
