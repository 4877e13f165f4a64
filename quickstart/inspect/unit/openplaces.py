"""Judge lines of tmpfiles.d(5) for /tmp, /var/tmp and /dev/shm, where every user may make a file of any name. In a stock
boot, systemd-tmpfiles has made its files there before any user's program runs. In a fast start, it comes later, and takes
over what is there: a directory with its content and its ACL. This module has no side effects.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from pathlib import PurePosixPath

from quickstart.inspect.imageroot import ImageRoot

# In these places, every user may make a file of any name. In a stock boot, systemd-tmpfiles comes first.
_TMP, _VAR_TMP = "/tmp/", "/var/tmp/"  # noqa: S108
OPEN_PLACES = (_TMP, _VAR_TMP, "/dev/shm/")  # noqa: S108
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
# Types of lines that remove, empty or overwrite a file.
DESTRUCTIVE = re.compile(r"(?:[rRDFw]|[LCfpbc][^\s+]*\+)\S*")


def is_left(root: ImageRoot, path: str, mode: str) -> bool:
    """Whether the starter does not make the directory ``path``. These are directories in /run that every user may write
    to, and the directories of the X Window System in an image that has nothing of it.
    """
    if path in X11:
        return root.resolve(_X11_FILES).canonical is None
    is_open = bool(int(mode, 8) & stat.S_IWOTH)
    return is_open and path.startswith("/run/") and not path.startswith("/run/lock/")


def is_in_open_place(path: str) -> bool:
    """Whether every user may make a file of the name ``path``. A path with ``..`` may lead to such a place, too."""
    is_below = f"{path}/".startswith(OPEN_PLACES) and path.rstrip("/") not in _ROOTS
    return is_below or (".." in path.split("/") and any(place in f"{path}/" for place in OPEN_PLACES))


def is_refused_there(kind: str, path: str, made: Collection[str], *, is_emptied: bool) -> bool:
    """Whether `refuse_tmpfiles` refuses a line of the type ``kind`` for ``path``, where every user may make a file of
    this name. ``made`` are the directories that the starter makes first. ``is_emptied`` says that nothing of earlier
    boots is in /tmp.
    """
    if _MAKES_DIRECTORY.fullmatch(kind):
        # A directory of /var/tmp would have to be emptied, too.
        is_kept = path.startswith(_VAR_TMP) or not is_emptied
        return path.rstrip("/") not in made or (kind[0] == "D" and is_kept and path not in X11)
    if _TAKES_OVER.fullmatch(kind):
        return True
    if not DESTRUCTIVE.fullmatch(kind) or path.startswith(_REMOVED_LATER) or path == _X11_LOCKS:
        return False
    return path.startswith(_VAR_TMP) or ".." in path.split("/") or (path.startswith(_TMP) and not is_emptied)
