"""The units that are enabled at the build, and the units that start before the application.

A unit that is enabled later may have to start before the application, for example a packet filter. Init uses
this list to decide that (initramfs/init/early-units, docs/users/never-stale.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS, assignments, unit_file, unit_texts
from quickstart.inspect.unit.initscripts import SCRIPTS, read_script
from quickstart.inspect.unit.sysctl import ADMINISTRATORS_UNITS
from quickstart.inspect.unit.words import Names, split_words
from quickstart.model import IMAGE_TIME_S

# systemd.unit(5): links in these make one unit pull in another.
_PULLING = (".wants", ".requires", ".upholds")
# systemd.service(5): what each service comes after without a word.
_DEFAULT_AFTER = ("sysinit.target", "basic.target")
# systemd.unit(5), "Description": what else follows After= is no unit, and has no file.
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.[a-z]{4,9}")
# Debian's desktop has some 400 units altogether.
_MAX_UNITS = 512


def enabled_text(root: ImageRoot, unit: str) -> bytes:
    """The list as text, one sorted line for each fact:

    - ``X.wants/UNIT``: a link that pulls in UNIT (``absent X.wants/UNIT`` when UNIT does not exist).
    - ``X.wants``: such a directory that is itself a link.
    - ``UNIT.d/FILE``: a drop-in of the administrator's.
    - ``before UNIT``: a unit, existing or not, that starts before ``unit``.
    - ``as-built MTIME CTIME X.wants``: a directory of the packages' units, with its times.
    """
    lines = {*_links(root), *_drop_ins(root), *(f"before {name}" for name in _comes_after(root, unit))}
    return b"".join(os.fsencode(line) + b"\n" for line in sorted(lines) if "\n" not in line)


def _links(root: ImageRoot) -> Iterator[str]:
    for place in map(PurePosixPath, UNIT_PATHS):
        canonical = root.resolve(place).canonical
        for name in root.names(canonical) if canonical is not None else ():
            if not name.endswith(_PULLING) or canonical is None:
                continue
            if root.link_target(canonical / name) is not None:
                yield name
            elif root.host(canonical / name).is_dir():
                pulled = {f"{name}/{each}": _is_there(root, each) for each in root.names(canonical / name)}
                yield from (each if is_there else f"absent {each}" for each, is_there in pulled.items())
                # One that is not there is looked for in each boot.
                if str(place) == UNIT_PATHS[-1] and all(pulled.values()):
                    mtime_s = root.host(canonical / name).lstat().st_mtime_ns // 10**9
                    yield f"as-built {mtime_s} {IMAGE_TIME_S} {name}"


def _is_there(root: ImageRoot, unit: str) -> bool:
    """Whether the unit or its template has a file. A mask counts as a file."""
    stem, _, kind = unit.rpartition(".")
    names = (unit, f"{stem.partition('@')[0]}@.{kind}")
    places = (root.resolve(PurePosixPath(place)).canonical for place in UNIT_PATHS)
    return any(name in root.names(place) for place in places if place is not None for name in names)


def _drop_ins(root: ImageRoot) -> Iterator[str]:
    for place in ADMINISTRATORS_UNITS:
        for path in root.glob(place / "*.d" / "*.conf"):
            yield f"{path.parent.name}/{path.name}"


def _comes_after(root: ImageRoot, unit: str) -> set[str]:
    """The units that start before ``unit``, by its After=, by the After= of these units, and so on."""
    found: set[str] = set()
    left = [unit, *_DEFAULT_AFTER]
    read = 0
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if not _UNIT.fullmatch(name):
            continue
        try:
            file = unit_file(root, name)
            if file.parent == SCRIPTS:
                read_script(root, name)
        except UnsupportedUnitError:
            # Nobody has it yet, it is masked, or it is a script that says nothing of its place.
            continue
        read += 1
        if read > _MAX_UNITS:
            raise UnsupportedUnitError(f"{unit} comes after more than {_MAX_UNITS} units of the image")
        values = [value for key, value in assignments(unit_texts(root, name), "[Unit]") if key == "After"]
        left += [word for value in values for word in _words(name, value)]
    return found - {unit}


def _words(unit: str, value: str) -> list[str]:
    """The words in ``value``, without quotes and with specifiers expanded. When that is impossible, the value
    split at blanks.
    """
    try:
        return [Names(unit).expand(word) for word in split_words(unit, value)]
    except UnsupportedUnitError:
        return value.split()
