"""Read the files of tmpfiles.d(5), and find the directories in /run, /tmp, /var/tmp and /dev/shm that they create. Services
rely on these directories, but systemd-tmpfiles has not run when a service starts early.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot
from quickstart.inspect.unit.openplaces import MADE_IN, is_in_open_place, is_left, open_place
from quickstart.inspect.unit.tmpfileslines import AGE, given_mode, given_name, lines_of, makes, plain

PACKAGES = "/usr/lib/tmpfiles.d"
_PATHS = ("/etc/tmpfiles.d", "/usr/local/lib/tmpfiles.d", PACKAGES)
# These types make a directory (of ext4, also those for subvolumes). `!`, `-`, `+` … behind them say when and how, which
# does not matter for a missing directory.
_MAKES_DIRECTORY = re.compile(r"[dDvqQ][!+=~^$-]*")
# Directories of services that systemd itself starts, so no application can rely on them before systemd runs. (Looking
# up their users would read the volume.)
OF_SYSTEMD = ("/run/systemd/", "/run/log/", "/run/user/", "/run/credentials/", "/run/dbus/")
# The limit for all files, because many names may be links to one long file. Debian's own files have some KiB.
_MOST_CHARACTERS = 1 << 20


def run_directories(root: ImageRoot) -> tuple[tuple[str, ...], ...]:
    """The directories in /run, /tmp, /var/tmp and /dev/shm that must exist before the unit starts, as `run-directory`
    records for the starter, which makes the directories (docs/internals/starter.md). A parent comes before its
    children. In a stock boot, no user can make a directory of such a name before systemd-tmpfiles.

    The result does not have these kinds of directories:

    - systemd's own directories
    - directories with a user or group that the image does not have
    - paths with quotes, with ``..`` or with a specifier (a specifier for a directory, such as %t, is allowed at the
      beginning of a path)
    - directories in /run that every user may write to, except in /run/lock, which has a size of its own. A user's
      program that starts early (cron's @reboot) could otherwise fill /run, and systemd starts journald only afterwards
    - the directories of the X Window System, in an image that has nothing of it
    """
    users, groups = _names(root, "/etc/passwd"), _names(root, "/etc/group")
    found: dict[str, tuple[str, ...]] = {}
    for _, text in configured_files(root):
        for path, access in _made_by(text):
            # Of several lines for one path, systemd-tmpfiles follows the first, even if the starter cannot.
            if path not in found:
                found[path] = ()
                mode, user, group = access or ("", "", "")
                is_known = user.removeprefix(":") in users and group.removeprefix(":") in groups
                if access and is_known and not is_left(root, path, mode.lstrip(":")):
                    found[path] = ("run-directory", mode, user, group, path)
    return tuple(found[path] for path in sorted(found) if found[path])


def _made_by(text: str) -> Iterator[tuple[str, tuple[str, str, str] | None]]:
    """The path of each file or directory that ``text`` makes in a place where init makes directories. Of a directory that
    the starter can make, also its mode, user and group. In an open place, these have a `:` in front if they are for a new
    directory only.
    """
    for _, words in lines_of(text):
        kind, spelled, mode, user, group, age = (words + ("-",) * 5)[:6]
        path = plain(spelled.strip("\"'")).rstrip("/")
        if len(words) < 2 or not makes(kind.strip("\"'")) or not path.startswith(MADE_IN):
            continue
        is_open = is_in_open_place(path)
        access = given_mode(mode, is_open=is_open), given_name(user), given_name(group)
        is_plain = plain(spelled).rstrip("/") == path and not set(path) & set("%\"'\\")
        if (
            _MAKES_DIRECTORY.fullmatch(kind)
            and is_plain
            and all(word.removeprefix(":") for word in access)
            and AGE.fullmatch(age)
            and ".." not in path.split("/")
            and not f"{path}/".startswith(OF_SYSTEMD)
            and not open_place(path)
        ):
            made_mode, made_user, made_group = (
                access if is_open else (word.removeprefix(":") for word in access)
            )
            yield path, (made_mode, made_user, made_group)
        else:
            yield path, None


def configured_files(root: ImageRoot) -> Iterator[tuple[PurePosixPath, str]]:
    """The files of tmpfiles.d(5) with their texts, sorted by file name. When several directories have a file of the
    same name, the result has only the file in the first directory. The administrator's directories come first. Raises
    UnsupportedUnitError for implausibly much text.
    """
    files: dict[str, PurePosixPath] = {}
    for directory in _PATHS:
        below = root.resolve(PurePosixPath(directory)).canonical
        for file in root.host(below).glob("*.conf") if below is not None else ():
            if not file.name.startswith("."):
                files.setdefault(file.name, PurePosixPath(directory) / file.name)
    left = _MOST_CHARACTERS
    for name in sorted(files):
        canonical = root.resolve(files[name]).canonical
        if canonical is not None and root.host(canonical).is_file():
            text = root.read_text(canonical)
            left -= len(text)
            if left < 0:
                raise UnsupportedUnitError(
                    f"the image's tmpfiles.d has more than {_MOST_CHARACTERS} characters, the last read is {files[name]}",
                    hint="take away what is not needed of it",
                )
            yield canonical, text


def _names(root: ImageRoot, file: str) -> frozenset[str]:
    path = root.resolve(PurePosixPath(file)).canonical
    return (
        frozenset(line.partition(":")[0] for line in root.read_text(path, MAX_TABLE_BYTES).splitlines())
        if path
        else frozenset()
    )
