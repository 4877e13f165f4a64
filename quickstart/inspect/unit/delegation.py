"""Read Delegate=, which lets a unit manage the control groups below its own control group
(systemd.resource-control(5)).

Before the unit's first process starts, the starter (the program that starts the unit early) enables the delegated
controllers in the unit's control group, and gives the group to the unit's user. The rules are those of systemd 252 and
257 (config_parse_delegate in src/core/load-fragment.c, unit_get_delegate_mask in src/core/cgroup.c, cg_set_access in
src/shared/cgroup-setup.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError, boolean, choice
from quickstart.inspect.unit.words import split_words

Record = tuple[str, ...]

# The controllers that Delegate=yes stands for (CGROUP_MASK_DELEGATE), in systemd's order. systemd also accepts names
# of cgroup v1 and of BPF programs, but a group cannot have these as controllers.
_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
_HINT = (
    "remove Delegate= from the unit if it manages no control groups of its own; see docs/internals/starter.md"
)


def delegated(source: Source) -> tuple[str, ...] | None:
    """The controllers that the unit may use in the control groups below its own control group, without duplicates. The
    result is None when nothing is delegated to the unit. As in systemd, an assignment adds its controllers to those of
    earlier assignments. After an empty assignment, the unit may still make control groups, but has no controllers.
    """
    found: tuple[str, ...] | None = None
    for value in source.every("Delegate"):
        found = source.converted("Delegate", value, partial(_assigned, source.unit, found or ()))
    return found


def _assigned(unit: str, before: tuple[str, ...], value: str) -> tuple[str, ...] | None:
    if not value:
        return ()
    try:
        return _CONTROLLERS if boolean(value) else None
    except BadValueError:
        pass
    if "\\" in value:
        raise BadValueError("has a backslash")
    words = [choice(word, _CONTROLLERS) for word in split_words(unit, value)]
    return tuple(each for each in _CONTROLLERS if each in {*before, *words})


def delegate_records(source: Source) -> Iterator[Record]:
    """The record `delegate CONTROLLER…` of a unit with Delegate=, for the starter, which starts the unit early. Raises
    UnsupportedUnitError if the unit also has a directive that some versions of systemd handle in another way than the
    starter.
    """
    controllers = delegated(source)
    if controllers is None:
        return
    if "ExecStartPost" in source.found:
        # The commands run in a group `.control` below the unit's group. systemd 252 keeps this group for root, and
        # systemd 257 gives it to the user.
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: it has ExecStartPost= with Delegate=, whose commands have a control group of"
            " their own",
            hint=_HINT,
        )
    owners = {source.last(name, "") for name in ("User", "Group")}
    if owners - {"", "root", "0"} or source.flag("DynamicUser"):
        # The user would own the control group while systemd adopts the unit. He could move and freeze our processes there, as the
        # kernel does not ask whose they are (cgroup-v2.rst, "Delegation Containment"), and hide his own ones in deep groups.
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: it has Delegate= and another user or group than root, who would own its"
            " control group",
            hint=_HINT,
        )
    yield "delegate", *controllers
