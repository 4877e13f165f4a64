"""Read the unit files of an image and their drop-ins, and parse these files into assignments (systemd.unit(5),
systemd.syntax(7)).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.aliases import UnitNames, unit_names
from quickstart.inspect.unit.initscripts import SCRIPTS, generated_text, read_script, script_of
from quickstart.inspect.unit.lines import BLANKS, line_fault, unit_lines
from quickstart.inspect.unit.words import MAX_LINE_CHARACTERS

# systemd.unit(5), "Unit File Load Path". The first directory that has the unit counts. Drop-ins are read from all
# directories.
UNIT_PATHS = (
    *("/etc/systemd/system.control", "/etc/systemd/system", "/etc/systemd/system.attached"),
    *("/usr/local/lib/systemd/system", "/usr/lib/systemd/system"),
)
# systemd-system.conf(5): the manager's own file, then its drop-ins.
MANAGER_PATHS = ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")

# The limit for a unit with its drop-ins, and for system.conf with its drop-ins. Debian's largest have a few KiB.
_MAX_TEXT_CHARACTERS = 2 * MAX_LINE_CHARACTERS

# systemd's UNIT_NAME_MAX, without the NUL at its end. No unit has a longer name.
_MAX_NAME_BYTES = 255
# Debian's units have up to four names.
_MAX_NAMES = 64
# A stranger's files are longer, and their sections would be kept in memory.
_KEPT_CHARACTERS = 1 << 17

Directives = Mapping[str, tuple[str, ...]]


def assignments(texts: tuple[str, ...], wanted: str) -> tuple[tuple[str, str], ...]:
    """Every `name=value` in the section ``wanted`` (such as ``[Service]``), in order, including empty values.

    When a text has a fault at which systemd stops reading, the result has only the assignments before the fault.
    """
    return tuple(sections(texts).get(wanted, ()))


def sections(texts: tuple[str, ...]) -> Mapping[str, Sequence[tuple[str, str]]]:
    """The assignments of each section, as ``assignments`` returns them. The result also has the sections without
    assignments.
    """
    return _kept_sections(texts) if sum(map(len, texts)) <= _KEPT_CHARACTERS else _sections(texts)


@lru_cache(maxsize=16)
def _kept_sections(texts: tuple[str, ...]) -> Mapping[str, Sequence[tuple[str, str]]]:
    # Some 20 readers ask for a unit's sections in turn.
    return _sections(texts)


def _sections(texts: tuple[str, ...]) -> Mapping[str, Sequence[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        section: list[tuple[str, str]] | None = None
        for line in unit_lines(text):
            if line_fault(line):
                break
            if line.startswith("["):
                section = found.setdefault(line, [])
            elif section is not None and "=" in line:
                name, _, value = (part.strip(BLANKS) for part in line.partition("="))
                section.append((name, value))
    return {name: tuple(lines) for name, lines in found.items()}


def parse_service(texts: tuple[str, ...]) -> Directives:
    """The [Service] directives of a unit and its drop-ins, in order. An empty assignment clears the earlier
    values of its directive.
    """
    return directives(assignments(texts, "[Service]"))


# Directives that fill one list in systemd, so that an empty one clears the values of both (load-fragment-gperf.gperf.in in
# systemd's src/core).
_PAIRS = (
    ("ReadWritePaths", "ReadWriteDirectories"),
    ("ReadOnlyPaths", "ReadOnlyDirectories"),
    ("InaccessiblePaths", "InaccessibleDirectories"),
    ("BindPaths", "BindReadOnlyPaths"),
    ("LoadCredential", "LoadCredentialEncrypted"),
    ("SetCredential", "SetCredentialEncrypted"),
    ("IOSchedulingClass", "IOSchedulingPriority"),
)
_CLEARED_TOGETHER = {name: pair for pair in _PAIRS for name in pair}


def directives(found: tuple[tuple[str, str], ...]) -> Directives:
    """The values of each directive, without the values that an empty assignment clears."""
    kept: dict[str, list[str]] = {}
    for name, value in found:
        if value:
            kept.setdefault(name, []).append(value)
        else:
            kept |= {each: [] for each in _CLEARED_TOGETHER.get(name, (name,))}
    return {name: tuple(values) for name, values in kept.items() if values}


def emptied(found: tuple[tuple[str, str], ...], names: frozenset[str]) -> tuple[str, ...]:
    """The names in ``names`` whose last assignment is empty, but which had an earlier value."""
    last = dict(found)
    given = {name for name, value in found if value}
    return tuple(sorted(name for name, value in last.items() if not value and name in given & names))


def _prefixes(prefix: str) -> Iterator[str]:
    """All shorter beginnings of ``prefix`` that end with a dash, the longest first. For ``a-b-c``, these are
    ``a-b-`` and ``a-``. ``prefix`` itself is not included, even when it ends with a dash.
    """
    while "-" in prefix[:-1]:
        prefix = f"{prefix[:-1].rpartition('-')[0]}-"
        yield prefix


def _drop_in_names(unit: str) -> Iterator[str]:
    """The names X of the directories X.d for ``unit``'s drop-ins, the most specific first (systemd.unit(5),
    "Description"). Yields nothing for a name that is too long for a unit.

    An instance also uses the drop-ins of its template. A unit whose name has dashes also uses the drop-ins of each
    prefix that ends with a dash (unit_file_find_dirs in systemd).
    """
    if len(os.fsencode(unit)) > _MAX_NAME_BYTES:
        return
    stem, _, kind = unit.rpartition(".")
    prefix, _, instance = stem.partition("@")
    shorter = tuple(_prefixes(prefix))
    yield unit
    if instance:
        yield f"{prefix}@.{kind}"
    yield from (f"{each}.{kind}" for each in shorter)
    if instance:
        yield from (f"{each}@{name}.{kind}" for each in shorter for name in (instance, ""))


def _own_drop_in_places(names: Iterable[str]) -> tuple[str, ...]:
    """The names of the drop-in directories (``NAME.d``) for all ``names`` of a unit, without duplicates."""
    return tuple(dict.fromkeys(f"{name}.d" for each in names for name in _drop_in_names(each)))


def names_with_directories(unit: str) -> tuple[str, ...]:
    """The names X for which X.d, X.wants, X.requires and X.upholds count for ``unit`` (unit_file_find_dirs in systemd).
    These are the unit's own name, the name of its template, the names with its prefixes (``a-.service`` for
    ``a-b.service``), and its type, such as ``service``. The result does not have the names of the unit's aliases. The
    result is empty for a name that is too long for a unit.
    """
    own = tuple(_drop_in_names(unit))
    return (*own, unit.rpartition(".")[2]) if own else ()


def drop_in_places(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The names of the drop-in directories (``NAME.d``) for all names of ``unit``. The last name is that of the
    directory for all units of the same type (service.d). This directory has the lowest priority.
    """
    return (*_own_drop_in_places(names_of(root, unit)), f"{unit.rpartition('.')[2]}.d")


def names_of(root: ImageRoot, unit: str, known: UnitNames | None = None) -> tuple[str, ...]:
    """``unit`` and its aliases. The drop-ins of an alias also apply to the unit. Callers that ask for many units pass
    the result of ``all_names`` as ``known``.

    An instance also has the aliases of its template, with its own instance name (systemd.unit(5),
    "Description").
    """
    own = (unit, _template(unit)) if _template(unit) else (unit,)
    file = next((path for name in own if (path := _first(root, name)) is not None), None)
    found = {unit: None}
    if file is None and script_of(root, unit) is not None:
        found.update(dict.fromkeys(read_script(root, unit).aliases))
    if file is not None:
        ending = f".{unit.rpartition('.')[2]}"
        known = all_names(root, ending) if known is None else known
        same = (*known.by_file.get(file, ()), *sorted({each for name in own for each in known.same_as(name)}))
        names = (name for name in same if name.endswith(ending))
        found.update(dict.fromkeys(_instance(name, unit) for name in names))
    if len(found) > _MAX_NAMES:
        raise UnsupportedUnitError(
            f"{unit} has {len(found)} names in the image, at most {_MAX_NAMES} are read"
        )
    return tuple(found)


def all_names(root: ImageRoot, ending: str = "") -> UnitNames:
    """All names that end with ``ending`` in the image's unit directories."""
    places = (root.resolve(PurePosixPath(each)).canonical for each in UNIT_PATHS)
    return unit_names(root, [place for place in places if place is not None], ending)


def _first(root: ImageRoot, unit: str) -> PurePosixPath | None:
    """The canonical path of the first entry with the unit's name in the search path, or None."""
    places = (root.resolve(PurePosixPath(directory) / unit).canonical for directory in UNIT_PATHS)
    return next((place for place in places if place is not None), None)


def _instance(name: str, unit: str) -> str:
    """The instance of the template ``name`` with the instance name of ``unit``. A ``name`` that is not a template
    is returned unchanged.
    """
    prefix, at, rest = name.partition("@.")
    return f"{prefix}@{unit.partition('@')[2]}" if at and "@" in unit and rest else name


def _template(unit: str) -> str:
    """The template NAME@.TYPE of an instance NAME@INSTANCE.TYPE. The result is empty for other units."""
    stem, _, kind = unit.rpartition(".")
    name, at, instance = stem.partition("@")
    return f"{name}@.{kind}" if at and instance else ""


def drop_ins_of(root: ImageRoot, unit: str) -> dict[str, PurePosixPath]:
    """A map from file names to the paths of ``unit``'s drop-ins. When several drop-ins have the same name, the first
    one in the search order is used.
    """
    found: dict[str, PurePosixPath] = {}
    *own, general = drop_in_places(root, unit)
    for names in (own, (general,)):
        for directory in UNIT_PATHS:
            for name in names:
                place = PurePosixPath(directory) / name
                for file in _settings_files(root, place):
                    found.setdefault(file, place / file)
    return found


def _settings_files(root: ImageRoot, place: PurePosixPath) -> Iterator[str]:
    """The names of a directory's ``.conf`` files that systemd reads. The result does not have hidden files."""
    below = root.resolve(place).canonical
    if below is not None and root.host(below).is_dir():
        yield from (name for name in root.names(below) if name.endswith(".conf") and not name.startswith("."))


def unit_texts(root: ImageRoot, unit: str) -> tuple[str, ...]:
    """The text of the unit file (or of the unit that systemd makes from an init script), and then the texts of
    its drop-ins in the order of their names.

    Raises UnsupportedUnitError when the image does not have the unit.
    """
    main, *drop_ins = unit_files(root, unit)
    if main.parent == SCRIPTS:
        return (generated_text(read_script(root, unit)), *texts_of(root, drop_ins, unit))
    return texts_of(root, (main, *drop_ins), unit)


def unit_files(root: ImageRoot, unit: str) -> list[PurePosixPath]:
    """The unit file or init script, and then the unit's drop-ins in the order of their names. Raises
    UnsupportedUnitError when the image does not have the unit.
    """
    main, drop_ins = unit_file(root, unit), drop_ins_of(root, unit)
    # A drop-in may be a link, to /dev/null when it is switched off.
    found = (root.resolve(drop_ins[name]).canonical for name in sorted(drop_ins))
    return [main, *(file for file in found if file is not None and root.host(file).is_file())]


def unit_file(root: ImageRoot, unit: str) -> PurePosixPath:
    """The canonical path of the unit file, or of the init script from which systemd makes the unit. Raises
    UnsupportedUnitError when the image has neither, and for a masked unit.
    """
    main: PurePosixPath | None = None
    template = _template(unit)
    for directory in UNIT_PATHS:
        found_here = root.resolve(PurePosixPath(directory) / unit)
        place = root.resolve(PurePosixPath(directory)).canonical
        # The unit itself is a link that leads nowhere. A link on the way to the unit's directory does not count.
        is_link = place is not None and root.link_target(place / unit) is not None
        if main is None and found_here.canonical is None and is_link:
            raise UnsupportedUnitError(f"{unit} is masked in the image by {found_here.links[-1]}")
        main = main or found_here.canonical
    if main is None and template:
        places = (root.resolve(PurePosixPath(directory) / template).canonical for directory in UNIT_PATHS)
        main = next((place for place in places if place is not None), None)
    if main is not None and main.parent == SCRIPTS:
        raise UnsupportedUnitError(f"{unit} is a link to {main}, which is no unit file")
    main = main or script_of(root, unit)
    if main is None or not root.host(main).is_file():
        raise UnsupportedUnitError(
            f"the image has no unit {unit}", hint="`unit` and `packages` in the profile must fit"
        )
    return main


def hidden_at(root: ImageRoot, file: PurePosixPath) -> PurePosixPath | None:
    """The path that may keep some users from reading ``file``, a canonical path. This path is ``file`` itself or a
    directory above it. The mode of this path excludes users other than the owner and the group, or the path has an
    access control list. The result is None when there is no such path.

    Our initramfs does not keep such restrictions, because every user who may read OUT, the directory that `build`
    writes, can read all files in the initramfs.
    """

    def is_closed(path: PurePosixPath, right: int) -> bool:
        return not root.host(path).stat().st_mode & right or root.has_acl(path)

    if is_closed(file, stat.S_IROTH):
        return file
    # Its root everybody enters (reference/rootfs.py).
    return next((each for each in file.parents[:-1] if is_closed(each, stat.S_IXOTH)), None)


def slice_texts(root: ImageRoot, name: str) -> tuple[str, ...]:
    """The text of the slice's file, if it exists, and then the texts of its drop-ins in the order of their names."""
    drop_ins = drop_ins_of(root, name)
    mains = (root.resolve(PurePosixPath(directory) / name).canonical for directory in UNIT_PATHS)
    main = next((place for place in mains if place is not None), None)
    found = [main, *(root.resolve(drop_ins[each]).canonical for each in sorted(drop_ins))]
    return texts_of(root, (file for file in found if file is not None and root.host(file).is_file()), name)


def manager_texts(root: ImageRoot, name: str = "system.conf") -> tuple[str, ...]:
    """The texts of the configuration file ``name`` of systemd and its drop-ins, in the order in which they are read."""
    places = (root.resolve(PurePosixPath(directory) / name).canonical for directory in MANAGER_PATHS)
    main = next((place for place in places if place is not None and root.host(place).is_file()), None)
    drop_ins: dict[str, PurePosixPath] = {}
    for directory in MANAGER_PATHS:
        place = PurePosixPath(directory) / f"{name}.d"
        for each in _settings_files(root, place):
            drop_ins.setdefault(each, place / each)
    found = [root.resolve(drop_ins[each]).canonical for each in sorted(drop_ins)]
    files = [place for place in (main, *found) if place is not None and root.host(place).is_file()]
    return texts_of(root, files, name)


def texts_of(root: ImageRoot, files: Iterable[PurePosixPath], what: str) -> tuple[str, ...]:
    """The texts of the files. Raises UnsupportedUnitError when all texts together are longer than the limit.
    ``what`` names the unit in the error's message.
    """
    found: list[str] = []
    left = _MAX_TEXT_CHARACTERS
    for file in files:
        text = root.read_text(file)
        left -= len(text)
        if left < 0:
            raise UnsupportedUnitError(
                f"{what} and its drop-ins have more than {_MAX_TEXT_CHARACTERS} characters, the last read is {file}"
            )
        found.append(text)
    return tuple(found)
