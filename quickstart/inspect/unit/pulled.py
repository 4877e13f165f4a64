"""The units that pull in a unit of the image, directly or by way of others (systemd.unit(5)).

A unit that no such way leads to from the default target is not started by a boot, although its file is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from quickstart.errors import StartSetError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, names_of
from quickstart.inspect.unit.initscripts import script_of, start_links
from quickstart.inspect.unit.instances import wrapper_of
from quickstart.inspect.unit.order import PULLING_KEYS, Budget, owned_texts, pulled_by_links, values_by_name

_DEFAULT = "default.target"
# What it is where the image does not say.
_USUAL_GOALS = frozenset({"multi-user.target", "graphical.target"})
# It asks for a unit that runs already.
_NEVER_STARTS = "Requisite"
# What these units start besides what they pull in.
_TRIGGERING = {"[Socket]": "Service", "[Path]": "Unit", "[Timer]": "Unit"}
_TRIGGERS = ("socket", "path", "timer")
# A desktop's units have some ten thousand together.
_MOST_CHARACTERS = 4 << 20

PulledBy = Mapping[str, set[str]]


def pullers(root: ImageRoot, unit: str, by: PulledBy | None = None) -> tuple[str, ...]:
    """The names of ``unit``, and of every unit that pulls it in or triggers it, with their aliases. ``by`` is
    the result of ``pulled_by``, for callers that ask for several units.
    """
    by = pulled_by(root) if by is None else by
    found: dict[str, None] = {}
    left = [unit]
    while left:
        name = left.pop()
        if name in found:
            continue
        found[name] = None
        left += by.get(name, ())
        if name.endswith(".service"):
            left += (each for kind in _TRIGGERS if (each := f"{name.removesuffix('service')}{kind}") in by)
            left += filter(None, [wrapper_of(root, name)])
        left += _names(root, name)
    return tuple(found)


def is_started(root: ImageRoot, unit: str, by: PulledBy | None = None) -> bool:
    """Whether a boot of the image starts ``unit``: something leads to it from the default target, or it is an
    init script with a link for a run level. ``by`` is as in ``pullers``.
    """
    known = set(pullers(root, unit, by))
    goals = {_DEFAULT, *_names(root, _DEFAULT)}
    if goals == {_DEFAULT}:
        goals |= _USUAL_GOALS
    scripts = filter(None, (script_of(root, name) for name in known))
    return bool(goals & known) or any(start_links(root, script.name) for script in scripts)


def _names(root: ImageRoot, unit: str) -> tuple[str, ...]:
    try:
        return names_of(root, unit)
    except (StartSetError, UnsupportedUnitError):
        # It is judged by the name that is known.
        return (unit,)


def pulled_by(root: ImageRoot) -> PulledBy:
    """For each name the units that pull it in by a link or by a key. A link for a template, a prefix or a type
    (``service.wants``) is a link of each such unit. A unit that is pulled in by nothing has an empty set when
    its file is there.
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
    members = {group: _members(group, found) for group in set().union(*found.values()) if _is_group(group)}
    for pullers_of_name in found.values():
        for group in pullers_of_name & members.keys():
            pullers_of_name.update(members[group])
    return found


def _is_group(name: str) -> bool:
    """Whether what ``name`` pulls in is pulled in by several units: by the instances of a template, by the units
    with a prefix, or by all units of a type.
    """
    return "." not in name or "@." in name or name.rpartition(".")[0].endswith("-")


def _members(group: str, names: Iterable[str]) -> frozenset[str]:
    """The units of ``group``. A boot always starts some unit of a type, so the default target stands for them."""
    stem, dot, kind = group.rpartition(".")
    if not dot:
        return frozenset({_DEFAULT})
    return frozenset(name for name in names if name.startswith(stem) and name.endswith(f".{kind}")) - {group}


def _pulling_values(text: str) -> Iterator[str]:
    for key, value in assignments((text,), "[Unit]"):
        if key in PULLING_KEYS and key != _NEVER_STARTS:
            yield value
    for section, wanted in _TRIGGERING.items():
        for key, value in assignments((text,), section) if wanted in text else ():
            if key == wanted:
                yield value
