"""Choose the units of a profile from the unit files in the image.

A user may name an alias of a unit. The functions replace the alias by the unit for which the alias stands. A user may
also name a wrapper, which is a unit that does nothing itself, such as postgresql.service (see own_instance in
inspect/unit/instances.py, which finds wrappers). The functions replace the wrapper by the instance that does the work,
such as postgresql@15-main.service. The function ``with_needed`` then adds the services that the units need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit import unit_texts
from quickstart.inspect.unit.initscripts import script_of
from quickstart.inspect.unit.instances import own_instance
from quickstart.inspect.unit.neighbours import unmet_requirements, wanted_before
from quickstart.model import Profile
from quickstart.pack.harmless import is_harmless
from quickstart.parse.faults import near
from quickstart.parse.printable import command
from quickstart.profile import MOST_UNITS, is_unit_name

_TYPE = ".service"
_UNITS = ("/usr/lib/systemd/system", "/etc/systemd/system")


def own_name(root: ImageRoot, unit: str) -> str:
    """The name by which systemd runs ``unit``, which may be an alias (systemd.unit(5), `Alias=`). Raises
    UnsupportedUnitError when systemd does not accept the real name of the unit, or when a profile does not accept this
    name.
    """
    for place in reversed(_UNITS):
        found = root.resolve(PurePosixPath(place) / unit).canonical
        if found is not None and found.name.endswith(_TYPE):
            if not is_unit_name(found.name):
                raise UnsupportedUnitError(
                    f"{unit} is a link to {str(found)!r:.300}, which is no name of a unit",
                    hint="give a root where it has a name that systemd takes",
                )
            return unit if "@" in found.name else found.name
    return unit


def with_own_unit(root: ImageRoot, draft: Profile) -> tuple[Profile, str]:
    """Return two values:

    - ``draft``, in which the unit that does the work replaces a wrapper (a unit that does nothing itself)
    - the name of the wrapper that this unit replaces, or an empty string if the unit of ``draft`` was not a wrapper

    Raises UnsupportedUnitError when the image does not have the unit, or when the unit is a wrapper of
    several instances.
    """
    draft = replace(draft, unit=own_name(root, draft.unit))
    demand_unit(root, draft)
    instance = own_instance(root, draft.unit)
    return (replace(draft, unit=instance), draft.unit) if instance else (draft, "")


def _own_companion(root: ImageRoot, draft: Profile, name: str) -> str:
    """The unit that does the work of the companion ``name``. Raises UnsupportedUnitError in the same cases as
    ``with_own_unit``.
    """
    return with_own_unit(root, replace(draft, unit=name, companions=()))[0].unit


def with_needed(root: ImageRoot, draft: Profile) -> tuple[Profile, Mapping[str, str]]:
    """Return two values. The first value is ``draft`` with two changes. The unit that does the work replaces a
    companion that is an alias or a wrapper. And the services that the units need are added to the companions. The
    second value maps each added service to the assignment or link that names this service.

    A unit needs three kinds of services:

    - services that the unit requires (Requires=, Requisite=, BindsTo=)
    - services that the unit wants and comes after (Wants= with After=), unless pack/harmless.py lists them as harmless
    - services whose sockets the unit comes after, unless pack/harmless.py lists these services as harmless

    The function does not add a service if the image does not have the service, if the service's name is not allowed in
    a profile, or if the profile already has the largest allowed number of units (MOST_UNITS). The build later refuses
    the unit that needs this service. Raises UnsupportedUnitError when the image does not have a companion, when a
    companion is a wrapper of several instances, or when systemd or a profile does not accept a companion's real name.
    """
    draft = replace(draft, companions=tuple(_own_companion(root, draft, name) for name in draft.companions))
    needed: dict[str, str] = {}
    left = list(draft.units)
    while left:
        for name, why in _needed(root, left.pop(), draft).items():
            unit = _service(root, name)
            if unit and unit not in draft.units and len(draft.units) < MOST_UNITS:
                draft = replace(draft, companions=(unit, *draft.companions))
                needed[unit] = why
                left.append(unit)
    return draft, needed


def _needed(root: ImageRoot, unit: str, draft: Profile) -> Mapping[str, str]:
    """The units that ``unit`` needs and that ``draft`` does not have yet. The result maps each of these units to the
    reason why ``unit`` needs it.
    """
    wanted = {
        name: why
        for name, why in wanted_before(root, unit).items()
        if not is_harmless(name) and name not in draft.units
    }
    return {**wanted, **unmet_requirements(root, unit, draft.units)}


def _service(root: ImageRoot, name: str) -> str:
    """The name by which systemd runs the service ``name``, or an empty string if the image has no such service."""
    if not name.endswith(_TYPE) or not is_unit_name(name):
        return ""
    try:
        unit_texts(root, name)
        return own_name(root, name)
    except UnsupportedUnitError:
        return ""


def demand_unit(root: ImageRoot, draft: Profile) -> None:
    """Raise UnsupportedUnitError, with a hint that names similar units, when the image does not have the unit."""
    try:
        unit_texts(root, draft.unit)
    except UnsupportedUnitError as error:
        # If the image has an init script of this name, the user meant this script, so a similar name is no help.
        meant = "" if script_of(root, draft.unit) is not None else _meant(root, draft)
        raise UnsupportedUnitError(error.message, hint=meant or error.hint, details=error.details) from error


def _meant(root: ImageRoot, draft: Profile) -> str:
    """A hint that names the image's unit with the most similar name. If no name is similar enough, the hint names the
    units of the profile's packages.
    """
    places = {path.name: path for place in _UNITS for path in root.glob(PurePosixPath(place) / f"*{_TYPE}")}
    # The names are compared without their type, because an equal ending makes all names similar.
    if meant := near(draft.unit.removesuffix(_TYPE), sorted(name.removesuffix(_TYPE) for name in places)):
        return meant.removeprefix("; ")
    canonical = {name: root.resolve(path).canonical for name, path in places.items()}
    owned = owners(root, [each for each in canonical.values() if each is not None])
    names = [
        name
        for name, path in sorted(canonical.items())
        if path and path in owned and owned[path].package in draft.packages and command(name)
    ]
    return f"services of {', '.join(draft.packages)}: {', '.join(names)}" if names else ""
