"""Find the units that systemd starts before the application, by the ordering of the image's units.

When one of these units is enabled after the build, the application must not start early. unit/enabled.py lists these
units.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import (
    UNIT_PATHS,
    assignments,
    names_of,
    names_with_directories,
    unit_file,
    unit_texts,
)
from quickstart.inspect.unit.initscripts import SCRIPTS, generated_text, read_script
from quickstart.inspect.unit.words import names_in

# systemd.unit(5): links in these make one unit pull in another.
PULLING = (".wants", ".requires", ".upholds")
PULLING_KEYS = frozenset(
    {
        *("Wants", "Requires", "Requisite", "BindsTo", "Upholds"),
        # What systemd called some of them earlier, and still knows.
        *("BindTo", "RequiresOverridable", "RequisiteOverridable"),
    }
)
# systemd.service(5): each service comes after these targets, even without After=.
DEFAULT_AFTER = ("sysinit.target", "basic.target")
# systemd.unit(5), "Description": other words after After= are no names of units, and have no file.
UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.[a-z]{4,9}")
# A boot does not reach these targets. The units of an initramfs are in the initramfs.
_OTHER_BOOTS = re.compile(r"initrd.*|(shutdown|umount|final|halt|poweroff|reboot|kexec|exit)\.target")
# Debian's desktop has some 400 units altogether.
_MAX_UNITS = 512
# The limit for names, including names that no unit has.
_MAX_STARTED = 4096
# The limit for the links of all enabled units, for any goal. Debian's desktop has some 200. Each is a line that init
# reads at each boot.
MAX_LINKS = 8192
# Limits for the files, drop-ins and scripts that are searched for Before=, with all their text. Many names may be
# links to one long file.
_MAX_FILES = 8192
_MAX_CHARACTERS = 16 << 20
# The limit for the units to which all files belong. A drop-in of a type belongs to some hundred units.
_MAX_OWNERS = 1 << 18
# The limit for the text of the units that a boot starts, with their drop-ins. Debian's desktop has 1 MiB.
_MAX_STARTED_CHARACTERS = 4 << 20
# The Before= of one drop-in may apply to each unit, with as many words as a line has.
_MAX_BEFORE_CHARACTERS = 1 << 20

_Order = Mapping[str, set[str]]
# A file, the names of the units that it belongs to, and its text.
Owned = tuple[PurePosixPath, tuple[str, ...], str]


@dataclass
class Budget:
    """A limit for the text of units that a build reads. The sum ``used`` must not exceed ``most``. For each text, the
    method ``take`` adds the number of the text's characters and the constant ``each_more`` to ``used``. The constant
    stands for the time to look up a file. Because of the constant, even many short texts reach the limit. There may be
    many such texts, because a drop-in may belong to any number of units. ``what`` names the text in messages.
    """

    what: str = "the units that the image starts, with their drop-ins,"
    most: int = _MAX_STARTED_CHARACTERS
    used: int = 0
    each_more: int = 256

    def take(self, unit: str, texts: Iterable[str]) -> None:
        """Add ``texts``, which belong to ``unit``, to the sum ``used``. Raises UnsupportedUnitError when the sum
        exceeds ``most``.
        """
        self.used += sum(len(text) + self.each_more for text in texts)
        if self.used > self.most:
            raise UnsupportedUnitError(
                f"{self.what} have more than {self.most} characters, the last read is {unit}"
            )


def comes_before(root: ImageRoot, unit: str) -> set[str]:
    """The units, existing or not, that start before ``unit``, directly or through other units. Another unit starts
    before ``unit`` if ``unit`` names the other unit in After=, or if the other unit names ``unit`` in Before=. Another
    unit also starts before ``unit`` if a target pulls in the other unit, and this target is reached before ``unit``.

    The result includes the aliases of these units. The result also includes a template when any of the template's
    instances may start before ``unit``.
    """
    pulled = pulled_by_links(root)
    # First, because it looks at the size of each file.
    files = tuple(owned_texts(root))
    earlier = _earlier(files, started_units(root, unit, pulled))
    found: set[str] = set()
    text_left = Budget()
    left = [unit, *DEFAULT_AFTER]
    read = 0
    while left:
        name = left.pop()
        if name in found or _OTHER_BOOTS.fullmatch(name):
            continue
        found.add(name)
        left += earlier.get(name, ())
        if not UNIT_NAME.fullmatch(name):
            continue
        try:
            file = unit_file(root, name)
            if file.parent == SCRIPTS:
                read_script(root, name)
        except UnsupportedUnitError:
            # The unit does not exist yet, is masked, or is a script that does not say its place in the order.
            continue
        read += 1
        if read > _MAX_UNITS:
            raise UnsupportedUnitError(f"{unit} comes after more than {_MAX_UNITS} units of the image")
        left += names_of(root, name)
        texts = unit_texts(root, name)
        text_left.take(name, texts)
        left += _named(name, texts, {"After"})
        if name.endswith(".target") and _waits(texts):
            wanted = {*_linked(name, pulled), *_named(name, texts, PULLING_KEYS)}
            left += (each for each in wanted if _is_waited_for(root, each, text_left))
    return found - set(names_of(root, unit))


def conflicting(root: ImageRoot, unit: str) -> set[str]:
    """The units that ``unit`` excludes (Conflicts=). If one of these units is enabled later, systemd may
    start it instead of ``unit``.
    """
    named = _named(unit, unit_texts(root, unit), {"Conflicts"})
    found = {alias for name in named for alias in (name, *_known_names(root, name))}
    return {name for name in found if not _OTHER_BOOTS.fullmatch(name)}


def _known_names(root: ImageRoot, unit: str) -> tuple[str, ...]:
    try:
        return names_of(root, unit)
    except (StartSetError, UnsupportedUnitError):
        return ()


def started_units(root: ImageRoot, unit: str, pulled: _Order) -> set[str]:
    """The units that a boot of the image starts. They are ``unit``, the default target, and all units that ``unit`` and
    the target pull in, directly or through other units. The result also has the services of the socket, path and timer
    units among them. The result does not have the instances that a device may start.
    """
    found: set[str] = set()
    text_left = Budget()
    left = [unit, "default.target", *DEFAULT_AFTER]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if len(found) > _MAX_STARTED:
            raise UnsupportedUnitError(f"the image starts more than {_MAX_STARTED} units")
        left += _linked(name, pulled)
        stem, _, kind = name.rpartition(".")
        left += (f"{stem}.service",) if kind in ("socket", "path", "timer") else ()
        try:
            texts = unit_texts(root, name) if UNIT_NAME.fullmatch(name) else ()
            left += names_of(root, name) if texts else ()
        except (StartSetError, UnsupportedUnitError):
            continue
        text_left.take(name, texts)
        left += _named(name, texts, PULLING_KEYS)
        keys = {"[Socket]": "Service", "[Path]": "Unit", "[Timer]": "Unit", "[Service]": "Sockets"}
        for section, wanted in keys.items():
            left += (
                word
                for key, value in assignments(texts, section)
                if key == wanted
                for word in names_in(name, value)
            )
    return found


def _is_waited_for(root: ImageRoot, unit: str, text_left: Budget) -> bool:
    """Whether a target that pulls in ``unit`` is reached only after ``unit`` has started. The result is true for a unit
    that does not exist.
    """
    try:
        texts = unit_texts(root, unit)
    except (StartSetError, UnsupportedUnitError):
        return True
    text_left.take(unit, texts)
    return _waits(texts)


def _waits(texts: tuple[str, ...]) -> bool:
    """Whether the unit whose files have the texts ``texts`` has default dependencies. A target is ordered after a unit
    that it pulls in only when both the target and the unit have default dependencies (systemd.target(5)).
    """
    values = [value for key, value in assignments(texts, "[Unit]") if key == "DefaultDependencies"]
    return not values or values[-1].lower() not in ("no", "n", "false", "f", "off", "0")


def _named(unit: str, texts: Iterable[str], keys: Iterable[str]) -> Iterator[str]:
    """The words in the values of ``keys`` in the section [Unit] of ``texts``."""
    for key, value in assignments(tuple(texts), "[Unit]"):
        if key in keys:
            yield from names_in(unit, value)


def pulled_by_links(root: ImageRoot) -> _Order:
    """A map from each directory of links, such as nginx.service.wants, to the names of the units that its links pull
    in. The key is the directory's name without its last suffix, here ``nginx.service``. So the key is the name of a
    unit, a template, a prefix (``app-.service``) or a type (``service``). Raises UnsupportedUnitError for implausibly
    many links.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    left = MAX_LINKS
    for place in _places(root):
        for name in root.names(place):
            stem, _, kind = name.rpartition(".")
            below = _resolved(root, place / name) if f".{kind}" in PULLING else None
            if below is None or not root.host(below).is_dir():
                continue
            links = root.names(below)
            left -= len(links)
            if left < 0:
                raise UnsupportedUnitError(
                    f"the image enables more than {MAX_LINKS} units, the last directory read is {place / name}"
                )
            found[stem].update(links)
    return found


def _linked(unit: str, pulled: _Order) -> Iterator[str]:
    """The units that ``unit`` pulls in by links, including the links for its template, its prefixes and its
    type.
    """
    return (each for name in names_with_directories(unit) for each in pulled.get(name, ()))


def owned_texts(root: ImageRoot) -> Iterator[Owned]:
    """Each unit file, drop-in and init script, as (path, names of the units that it belongs to, text).

    Raises UnsupportedUnitError for implausibly many files, for too much text, and when drop-ins belong to too many
    units altogether. The size of a file is checked before the file is read.
    """
    texts = dict(_texts(root))
    units = {owner for owner, path in texts if path.parent.suffix != ".d" and "." in owner}
    by_type: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(units):
        by_type[name.rpartition(".")[2]].append(name)
    others = functools.cache(functools.partial(_others, by_type=by_type))
    left = _MAX_OWNERS
    for (owner, path), text in texts.items():
        # A drop-in may belong to all units of a type, or to all units with a prefix.
        names = (owner, *others(owner))
        left -= len(names)
        if left < 0:
            raise UnsupportedUnitError(
                f"the image's drop-ins belong to more than {_MAX_OWNERS} units altogether, the last is {path}"
            )
        yield path, names, text


def values_by_name(names: Iterable[str], values: Sequence[str], left: Budget) -> Iterator[tuple[str, str]]:
    """Each of ``names`` together with each word in ``values``. The function expands the specifiers in the words again
    for each name, because their values may depend on the name.

    Raises UnsupportedUnitError when ``left``, the limit for the text, is used up. There is a limit because one
    drop-in may apply to thousands of units.
    """
    for name in names:
        left.take(name, values)
        for word in (word for value in values for word in names_in(name, value)):
            yield name, word


def _earlier(files: Iterable[Owned], started: Collection[str]) -> _Order:
    """A map from each unit to the units whose files name this unit in Before=. The function ignores a Before= in the
    files of a unit that no boot starts. If such a unit is enabled after the build, init itself reads the Before= in its
    files.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    left = Budget("the Before= of the image's units", _MAX_BEFORE_CHARACTERS, each_more=0)
    for path, names, text in files:
        values = [value for key, value in _assigned(text) if key == "Before"]
        may_start = (name for name in names if name in started or "@." in name or path.parent == SCRIPTS)
        for name, word in values_by_name(may_start if values else (), values, left):
            found[word].add(name)
    return found


def _assigned(text: str) -> tuple[tuple[str, str], ...]:
    return assignments((text,), "[Unit]") if "Before" in text else ()


def _others(owner: str, by_type: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The units to which a drop-in of the directory ``owner`` (without ``.d``) belongs, except ``owner`` itself.
    ``by_type`` has the sorted names of the units of each type.
    """
    stem, _, kind = owner.rpartition(".")
    if stem and not stem.endswith("-"):
        return ()
    names = by_type.get(kind, ())
    behind = itertools.islice(names, bisect_left(names, stem), None)
    return tuple(itertools.takewhile(lambda name: name.startswith(stem), behind))


def _files(root: ImageRoot) -> Iterator[tuple[str, PurePosixPath]]:
    """Each unit file and drop-in of the image, as (name, path). The name is that of the unit file, or of the
    drop-in's directory without ``.d``. The path begins with a canonical unit directory.
    """
    for place in _places(root):
        for name in root.names(place):
            if name.endswith(".d"):
                below = _resolved(root, place / name)
                entries = root.names(below) if below is not None and root.host(below).is_dir() else ()
                yield from ((name[:-2], place / name / each) for each in entries if each.endswith(".conf"))
            elif not name.endswith(PULLING):
                yield name, place / name


def _resolved(root: ImageRoot, path: PurePosixPath) -> PurePosixPath | None:
    try:
        return root.resolve(path).canonical
    except StartSetError:
        # systemd does not follow a circle of links either.
        return None


def _texts(root: ImageRoot) -> Iterator[tuple[tuple[str, PurePosixPath], str]]:
    """The text of each unit file, drop-in and init script of the image, as ((name, path), text). The name is that
    of the unit, or of the drop-in's directory without ``.d``. For an init script, the text is that of the unit that
    systemd makes from the script.

    Raises UnsupportedUnitError for implausibly many files and for too much text. The size of a file is
    checked before the file is read.
    """
    files = list(itertools.islice(_files(root), _MAX_FILES + 1))
    there = {name for name, _ in files}
    scripts = root.resolve(SCRIPTS).canonical
    names = root.names(scripts) if scripts is not None else []
    if len(files) + len(names) > _MAX_FILES:
        raise UnsupportedUnitError(f"the image has more than {_MAX_FILES} files of units")
    left_bytes = _MAX_CHARACTERS

    def counted(path: PurePosixPath) -> PurePosixPath | None:
        nonlocal left_bytes
        canonical = _resolved(root, path)
        if canonical is None or not root.host(canonical).is_file():
            return None
        left_bytes -= root.host(canonical).stat().st_size
        if left_bytes < 0:
            raise UnsupportedUnitError(
                f"the image's units have more than {_MAX_CHARACTERS} characters, the last file is {path}"
            )
        return canonical

    for name, path in files:
        canonical = counted(path)
        if canonical is not None and canonical.parent != SCRIPTS:
            yield (name, path), root.read_text(canonical)
    for each in names:
        if f"{each}.service" in there or counted(SCRIPTS / each) is None:
            continue
        try:
            script = read_script(root, f"{each}.service")
        except UnsupportedUnitError:
            continue
        yield (f"{each}.service", SCRIPTS / each), generated_text(script)


def _places(root: ImageRoot) -> tuple[PurePosixPath, ...]:
    found = (root.resolve(PurePosixPath(place)).canonical for place in UNIT_PATHS)
    return tuple(place for place in found if place is not None)
