"""Find the units that pull in a unit of the image, directly or through other units (systemd.unit(5)).

A boot does not start a unit just because its file exists. The default target must pull the unit in, directly or
through other units.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.aliases import UnitNames
from quickstart.inspect.unit.files import all_names, assignments, names_of, names_with_directories, unit_texts
from quickstart.inspect.unit.initscripts import SCRIPTS, script_of, started_scripts
from quickstart.inspect.unit.instances import wrapper_of
from quickstart.inspect.unit.order import PULLING_KEYS, Budget, owned_texts, pulled_by_links, values_by_name
from quickstart.parse.printable import brief

_DEFAULT = "default.target"
_SERVICE = ".service"
# No name has a NUL.
_MEMBERS = "\0"
# What it is where the image does not say.
_USUAL_GOALS = frozenset({"multi-user.target", "graphical.target"})
# This directive only requires that the unit already runs.
_NEVER_STARTS = "Requisite"
# What these units start besides what they pull in.
_TRIGGERING = {"[Socket]": "Service", "[Path]": "Unit", "[Timer]": "Unit", "[Service]": "Sockets"}
_TRIGGERS = ("socket", "path", "timer")
# These trigger a unit when something happens, and not always in a boot.
_OCCASIONS = (".path", ".timer")
# A desktop's units have some ten thousand together.
_MOST_CHARACTERS = 4 << 20

# The limit for the text of instances' wrappers, with their drop-ins.
_MOST_WRAPPING = 2 << 20
_NOT_FOUND = (StartSetError, UnsupportedUnitError)


@dataclass(frozen=True)
class PulledBy:
    """The units and groups that pull in each unit of an image, by a link (``X.wants/UNIT``) or by a directive
    (``Wants=UNIT``). A group is a name that stands for several units: all units of a template, of a prefix or of a type
    (see ``_is_group``).

    ``by`` maps each unit's name to the set of units and groups that pull the unit in. The set is empty for a unit that
    has a file and that nothing pulls in. ``by`` also has one special key for each group. The function ``_all_of``
    returns this key, and the value of the key is the set of the group's members.

    ``names`` are the names in the unit directories. When there are implausibly many names, ``names`` is None, and no
    aliases are known. ``scripts`` are the names of the init scripts.
    """

    by: Mapping[str, set[str]]
    names: UnitNames | None
    scripts: frozenset[str]


def pullers(root: ImageRoot, *units: str, known: PulledBy | None = None) -> tuple[str, ...]:
    """The names of ``units``, and of every unit that pulls one of them in or triggers it, directly or through other
    units. The result also has the aliases of these units. ``known`` is the result of the function ``pulled_by``. A
    caller that calls this function several times gives ``known``, so that ``pulled_by`` runs only once.
    """
    known = pulled_by(root) if known is None else known
    return tuple(name for name in _ways(root, units, known) if not name.startswith(_MEMBERS))


def is_started(root: ImageRoot, unit: str, known: PulledBy | None = None) -> bool:
    """Whether a boot of the image starts ``unit``, by the rules of the function ``started_of``."""
    return bool(started_of(root, (unit,), known))


def refuse_occasional(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when a boot starts ``unit`` only by way of a path or timer unit. In this case, the
    conditions of the path or timer unit, and the event that this unit waits for, decide whether the boot starts
    ``unit``.

    If another unit pulls in ``unit``, a condition of this other unit does not matter. systemd examines the condition
    when it starts the other unit, and by then systemd already has a start job for ``unit`` (systemd.unit(5),
    "Conditions and Asserts").
    """
    known = pulled_by(root)
    if started_of(root, (unit,), known) and not started_of(root, (unit,), known, on_occasion=False):
        occasions = (name for name in pullers(root, unit, known=known) if name.endswith(_OCCASIONS))
        by = sorted(started_of(root, occasions, known))
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: a boot starts it only when {brief(by[0])} triggers it",
            hint=f"enable {unit} itself in the image",
        )


def started_of(
    root: ImageRoot, units: Iterable[str], known: PulledBy | None = None, *, on_occasion: bool = True
) -> frozenset[str]:
    """The units among ``units`` that a boot of the image starts. These are the units that the default target pulls in,
    directly or through other units, and the init scripts that have a link for a run level. ``known`` is the result of
    the function ``pulled_by``. A caller that calls this function several times gives ``known``, so that ``pulled_by``
    runs only once. Without ``on_occasion``, the result does not have units that only a path or timer unit triggers.
    """
    asked = tuple(units)
    if not asked:
        return frozenset()
    known = pulled_by(root) if known is None else known
    goals = {_DEFAULT, *_names(root, _DEFAULT, known)}
    if goals == {_DEFAULT}:
        goals |= _USUAL_GOALS
    ways = _ways(root, asked, known)
    starts: defaultdict[str, list[str]] = defaultdict(list)
    for name, above in ways.items():
        for each in above:
            if on_occasion or not each.endswith(_OCCASIONS):
                starts[each].append(name)
    linked = started_scripts(root)
    left = [name for name in ways if name in goals or _script(root, name, known) in linked]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += starts[name]
    return frozenset(found.intersection(asked))


def _ways(root: ImageRoot, units: Iterable[str], known: PulledBy) -> dict[str, tuple[str, ...]]:
    """A map whose keys are ``units`` and all units or groups that pull one of ``units`` in, directly or through other
    units and groups. The value of a key has the units and groups that directly pull in or trigger the key, and the
    key's other names. The function examines each unit or group once, even when it pulls in many others.
    """
    found: dict[str, tuple[str, ...]] = {}
    wrapper = _wrappers(root)
    left = list(units)
    while left:
        name = left.pop()
        if name in found:
            continue
        above = [*known.by.get(name, ())]
        if name.endswith(_SERVICE):
            stem = name.removesuffix(_SERVICE)
            above += (each for kind in _TRIGGERS if (each := f"{stem}.{kind}") in known.by)
            above += filter(None, [wrapper(stem.partition("@")[0])] if "@" in stem else [])
        above += _names(root, name, known)
        found[name] = tuple(above)
        left += above
    return found


def _wrappers(root: ImageRoot) -> Callable[[str], str]:
    """A function that returns the wrapper of a template's instances, or an empty string. A wrapper is a unit whose work
    its instances do (instances.py). The function reads the files of each wrapper only once.
    """
    left = Budget("the wrappers of the image's instances", _MOST_WRAPPING)

    @functools.cache
    def wrapper(template: str) -> str:
        try:
            texts = unit_texts(root, f"{template}{_SERVICE}")
        except _NOT_FOUND:
            return ""
        left.take(f"{template}{_SERVICE}", texts)
        return wrapper_of(root, f"{template}@{_SERVICE}")

    return wrapper


def _names(root: ImageRoot, unit: str, known: PulledBy) -> tuple[str, ...]:
    names = known.names
    stem, _, kind = unit.rpartition(".")
    has_file = names is not None and not names.there.isdisjoint((unit, f"{stem.partition('@')[0]}@.{kind}"))
    if not has_file and stem not in known.scripts:
        return (unit,)
    try:
        return names_of(root, unit, known.names)
    except _NOT_FOUND:
        # In this case, only the given name of the unit counts.
        return (unit,)


def _script(root: ImageRoot, unit: str, known: PulledBy) -> str | None:
    """The name of the init script from which systemd makes ``unit``, or None."""
    script = script_of(root, unit) if unit.removesuffix(_SERVICE) in known.scripts else None
    return script.name if script is not None else None


def pulled_by(root: ImageRoot) -> PulledBy:
    """The units and groups that pull in each unit of the image. A link for a template, a prefix or a type
    (``service.wants``) applies to several units, which are the members of a group.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for puller, pulled in pulled_by_links(root).items():
        for name in pulled:
            found[name].add(puller)
    left = Budget("the image's units, with what they pull in,", _MOST_CHARACTERS)
    for _, names, text in owned_texts(root):
        for name in names:
            found[name].update(())
        values = list(_pulling_values(text))
        for name, word in values_by_name(names if values else (), values, left):
            found[word].add(name)
    groups = {group for each in found.values() for group in each if _is_group(group)}
    for pullers_of_name in found.values():
        pullers_of_name.update(_all_of(group) for group in pullers_of_name & groups)
    members = _members(groups, found)
    scripts = root.resolve(SCRIPTS).canonical
    try:
        known = all_names(root)
    except UnsupportedUnitError:
        known = None
    return PulledBy(
        {**found, **{_all_of(group): each for group, each in members.items()}},
        known,
        frozenset(root.names(scripts) if scripts is not None and root.host(scripts).is_dir() else ()),
    )


def _is_group(name: str) -> bool:
    """Whether ``name`` stands for several units: for the instances of a template, the units with a prefix, or
    all units of a type. Each of these units pulls in the units that ``name`` pulls in.
    """
    return "." not in name or "@." in name or name.rpartition(".")[0].endswith("-")


def _all_of(group: str) -> str:
    """The key in ``PulledBy.by`` for the members of ``group``. No unit has this name."""
    return f"{_MEMBERS}{group}"


def _members(groups: Collection[str], names: Iterable[str]) -> Mapping[str, set[str]]:
    """The members of each of ``groups``. For the group of a type, the default target stands for all members,
    because a boot always starts some unit of each type.
    """
    found: dict[str, set[str]] = {group: set() if "." in group else {_DEFAULT} for group in groups}
    for name in names if groups else ():
        for group in names_with_directories(name):
            if group != name and "." in group and group in found:
                found[group].add(name)
    return found


def _pulling_values(text: str) -> Iterator[str]:
    for key, value in assignments((text,), "[Unit]"):
        if key in PULLING_KEYS and key != _NEVER_STARTS:
            yield value
    for section, wanted in _TRIGGERING.items():
        for key, value in assignments((text,), section) if wanted in text else ():
            if key == wanted:
                yield value
