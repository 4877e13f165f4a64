"""Collect the files of `ramboot`, one of the five ways to boot that the bench compares. The files of `ramboot` are all
files that the application opens, and the directories that the application uses. In the archive, each file has its
ordinary path.

`ramboot` is only for measurements. `ramboot` shows how fast a start without any root volume would be. So `ramboot`
contains files that an artefact's initramfs never has, such as data and secrets. `ramboot` is never part of an
artefact.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from quickstart.initramfs.newc import CpioEntry
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Event, FileRules, Op, StartSet, Trace

# Made by the kernel or by init at each boot.
_VOLATILE = frozenset({"proc", "sys", "dev", "run"})
# The files that init's second half reads and writes itself, and those that the starter reads for any user and
# environment of the unit.
_OF_INIT = tuple(
    PurePosixPath(path)
    for path in (
        *("/etc/hostname", "/tmp", "/var/log", "/var/tmp"),  # noqa: S108
        *("/etc/default/locale", "/etc/group", "/etc/locale.conf", "/etc/passwd"),
    )
)


def all_rules(rules: FileRules) -> FileRules:
    """The profile's rules about files, without the rules that exclude files."""
    return FileRules(include=rules.include, exclude=(), data=(), secrets=("/**",))


def paths(start_set: StartSet, traces: Sequence[Trace], root: ImageRoot) -> tuple[PurePosixPath, ...]:
    """The paths of the files, links and directories of the image that go into the archive. Each path comes after its
    parent directory. The caller must have computed ``start_set`` with the rules that the function ``all_rules``
    returns.
    """
    found = {file.path for file in start_set.files} | {each.path for each in start_set.excluded}
    for path in _OF_INIT:
        found |= _leads_to(root, path)
    for trace in traces:
        for event in trace.events:
            found |= _of_event(root, event)
    found |= {parent for path in found for parent in path.parents}
    return tuple(sorted((path for path in found if _can_pack(root, path)), key=os.fsencode))


def _of_event(root: ImageRoot, event: Event) -> set[PurePosixPath]:
    """The paths to pack for one event of a trace, for example the opening of a file. These paths are the links on the
    way to the event's path, and the file to which the links lead. A file that the program created is not in the image.
    For such a file, the result has the parent directory instead.
    """
    if len(event.path.parts) < 2 or event.path.parts[1] in _VOLATILE:
        return set()
    found = _leads_to(root, event.path)
    if not found and event.op is Op.WRITE and event.error is None:
        found = _leads_to(root, event.path.parent)
    return found


def _leads_to(root: ImageRoot, path: PurePosixPath) -> set[PurePosixPath]:
    found = root.resolve(path)
    return {*found.links, *([found.canonical] if found.canonical else [])}


def _can_pack(root: ImageRoot, path: PurePosixPath) -> bool:
    if len(path.parts) < 2 or path.parts[1] in _VOLATILE:
        return False
    mode = root.host(path).lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def entries(packed: Iterable[PurePosixPath], root: ImageRoot) -> Iterator[CpioEntry]:
    """The entries for the archive, with the modes and owners that the files have in the image."""
    for path in packed:
        host = root.host(path)
        status = host.lstat()
        yield CpioEntry(
            name=str(path).lstrip("/"),
            mode=status.st_mode,
            data=_data(root, path, status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime=int(status.st_mtime),
        )


def _data(root: ImageRoot, path: PurePosixPath, mode: int) -> bytes | Path:
    if stat.S_ISREG(mode):
        return root.host(path)
    return os.fsencode(root.host(path).readlink()) if stat.S_ISLNK(mode) else b""
