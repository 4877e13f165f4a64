"""List the units that are enabled at the build, and the units that start before the application.

A unit that is enabled after the build, for example a packet filter, may have to start before the application.
Init uses this list to detect such a unit (initramfs/init/early-units, docs/users/never-stale.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.before import EXTENSIONS, OWN_NETWORKS
from quickstart.inspect.unit.facts import VOLATILE, Deciding, way_to
from quickstart.inspect.unit.files import UNIT_PATHS, names_of, unit_file
from quickstart.inspect.unit.initscripts import started_scripts
from quickstart.inspect.unit.neighbours import handing_sockets
from quickstart.inspect.unit.order import MAX_LINKS, PULLING, comes_before, conflicting
from quickstart.inspect.unit.sysctl import ADMINISTRATORS_UNITS
from quickstart.inspect.unit.wanted import wanted_units
from quickstart.model import IMAGE_TIME_S


def enabled_text(root: ImageRoot, *units: str, hidden: Iterable[str] = ()) -> bytes:
    """The list of the enabled units and of the units that start before the application, as text. The list has one line
    for each fact, and the lines are sorted. In the lines, X stands for the name of a unit. For the directories
    X.requires and X.upholds, the list has the same lines as for X.wants. There are these kinds of lines.

    - ``X.wants/UNIT``: a link that pulls in UNIT (``absent X.wants/UNIT`` when UNIT does not exist).
    - ``UNIT.d/FILE``: a drop-in.
    - ``UNIT.d``: a link in place of a directory of drop-ins.
    - ``wanted UNIT``: a unit without a file that a unit of each boot names, or the mount of a path that one needs.
    - ``application UNIT``: a name of one of ``units``.
    - ``alias NAME``: a link in a unit directory that leads to one of ``units``, or to its template.
    - ``before UNIT``: another unit, existing or not, that starts before one of ``units``, or that may start
      in place of one (Conflicts=).
    - ``hides PATH``: one of the paths ``hidden``, which are paths in memory that ``units`` hide or restrict.
    - ``script NAME``: an init script that a link in rc2.d to rc5.d starts.
    - ``directory PATH``: a directory that systemd-sysext or systemd-confext treats as an extension, or a
      directory of drop-ins for systemd-networkd's files.
    - ``as-built MTIME CTIME X.wants`` (or ``UNIT.d``): a directory X.wants or UNIT.d in the packages' unit
      directory, with the times of its last modification and of its inode's last change, in seconds. The name ``.``
      stands for the packages' unit directory itself.

    Raises UnsupportedUnitError when a directory X.wants is a link, because init would not see its entries.
    """
    lines = {*_links(root), *_drop_ins(root)}
    lines |= {f"directory {str(path)[1:]}" for path in _directories(root)}
    lines |= {f"hides {path}" for path in hidden}
    lines |= {f"script {name}" for name in started_scripts(root)}
    own = {name for unit in units for name in names_of(root, unit)}
    lines |= {f"application {name}" for name in own}
    # In the unit directories, the name of an alias has no instance.
    stems = {name.partition("@")[0] for name in own}
    lines |= {f"alias {name}" for name in _there(root) if name.partition("@")[0] in stems and "@." in name}
    lines |= {f"alias {name}" for name in own}
    if (packages := root.resolve(PurePosixPath(UNIT_PATHS[-1])).canonical) is not None:
        lines.add(_as_built(root, packages).rpartition(" ")[0] + " .")
    for unit in units:
        rivals, sockets = _beside(root, unit)
        lines |= {f"before {name}" for name in rivals - own}
        lines |= {f"wanted {name}" for name in wanted_units(root, unit)}
        # A socket starts before the service that gets it, so the units before the socket also start before the
        # service.
        lines |= {f"before {name}" for each in (unit, *sockets) for name in comes_before(root, each) - own}
    return b"".join(os.fsencode(line) + b"\n" for line in sorted(lines) if "\n" not in line)


def _beside(root: ImageRoot, unit: str) -> tuple[set[str], tuple[str, ...]]:
    """The units that conflict with ``unit``, and the socket units that pass their sockets to it. Both results are empty
    when ``unit`` has no unit file.
    """
    try:
        unit_file(root, unit)
    except UnsupportedUnitError:
        return set(), ()
    return conflicting(root, unit), handing_sockets(root, unit)


def _directories(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The directories that are extensions (systemd-sysext(8)), and the directories of drop-ins for systemd-networkd's
    files. Files and links in the same places are not in the result, because before.py already lists them as packed
    facts.
    """
    patterns = (*(f"{place}/*" for place in EXTENSIONS), *(f"{place}/*.d" for place in OWN_NETWORKS))
    for pattern in map(PurePosixPath, patterns):
        for path in root.glob(pattern):
            if root.host(path).is_dir() and not root.host(path).is_symlink():
                yield path


def own_drop_ins(root: ImageRoot) -> Deciding:
    """The places of the administrator's drop-ins of all units, and the links that lead to them. The list that the
    function ``enabled_text`` makes has only the names of drop-ins. So init must also compare the files of these
    drop-ins, and must notice a new file that replaces a package's drop-in of the same name (systemd.unit(5)).
    """
    places = (path for place in UNIT_PATHS for path in root.glob(PurePosixPath(place) / "*.d" / "*.conf"))
    names = {PurePosixPath(path.parent.name, path.name) for path in places}
    paths = (place / name for place in ADMINISTRATORS_UNITS for name in names)
    return Deciding(tuple({each for path in paths for each in way_to(root, path) if _is_kept(each)}))


def _is_kept(path: PurePosixPath) -> bool:
    # What is in memory is made anew at each boot.
    return path.name != "null" and path.parts[1] not in VOLATILE


def _links(root: ImageRoot) -> Iterator[str]:
    masks: set[str] = set()
    there = _there(root)
    left = MAX_LINKS
    for place in map(PurePosixPath, UNIT_PATHS):
        canonical = root.resolve(place).canonical
        for name in root.names(canonical) if canonical is not None else ():
            if not name.endswith(PULLING) or canonical is None:
                continue
            if root.link_target(canonical / name) is not None:
                raise UnsupportedUnitError(
                    f"{canonical / name} is a link, so what it enables later would not be seen",
                    hint="make it a directory with the links in it",
                )
            if root.host(canonical / name).is_dir():
                entries = [f"{name}/{each}" for each in root.names(canonical / name)]
                left -= len(entries)
                if left < 0:
                    raise UnsupportedUnitError(
                        f"the image enables more than {MAX_LINKS} units, the last directory read is {canonical / name}"
                    )
                masks.update(each for each in entries if _is_mask(root, canonical / each))
                pulled = {each: _is_there(there, PurePosixPath(each).name) for each in entries}
                yield from _said(pulled, masks)
                # Init checks a unit that does not exist, or is masked, at each boot.
                if str(place) == UNIT_PATHS[-1] and all(pulled.values()) and masks.isdisjoint(pulled):
                    yield _as_built(root, canonical / name)


def _said(pulled: dict[str, bool], masks: Collection[str]) -> Iterator[str]:
    for entry, is_there in pulled.items():
        if entry not in masks:
            yield entry if is_there else f"absent {entry}"


def _is_mask(root: ImageRoot, entry: PurePosixPath) -> bool:
    """Whether the entry masks its unit (systemd.unit(5)). An entry is a mask when it is a link to /dev/null or an empty
    file.
    """
    target = root.link_target(entry)
    host = root.host(entry)
    return target == "/dev/null" if target is not None else host.is_file() and not host.stat().st_size


def _there(root: ImageRoot) -> frozenset[str]:
    """All names in the image's unit directories."""
    places = (root.resolve(PurePosixPath(place)).canonical for place in UNIT_PATHS)
    return frozenset(name for place in places if place is not None for name in root.names(place))


def _is_there(there: Collection[str], unit: str) -> bool:
    """Whether the unit or its template has a unit file. A mask counts as a file."""
    stem, _, kind = unit.rpartition(".")
    return unit in there or f"{stem.partition('@')[0]}@.{kind}" in there


def _drop_ins(root: ImageRoot) -> Iterator[str]:
    for place in map(PurePosixPath, UNIT_PATHS):
        for path in root.glob(place / "*.d" / "*.conf"):
            yield f"{path.parent.name}/{path.name}"
        canonical = root.resolve(place).canonical
        for name in root.names(canonical) if canonical is not None else ():
            if not name.endswith(".d") or canonical is None:
                continue
            if root.link_target(canonical / name) is not None:
                yield name
            elif str(place) == UNIT_PATHS[-1] and root.host(canonical / name).is_dir():
                yield _as_built(root, canonical / name)


def _as_built(root: ImageRoot, directory: PurePosixPath) -> str:
    mtime_s = root.host(directory).lstat().st_mtime_ns // 10**9
    return f"as-built {mtime_s} {IMAGE_TIME_S} {directory.name}"
