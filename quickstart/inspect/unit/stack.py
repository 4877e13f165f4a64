"""Read the units of a stack in the order in which they start early (docs/users/stacks.md).

The last unit of a stack answers the readiness request. The other units are the companions of the last unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from quickstart.errors import UnsupportedUnitError
from quickstart.host.cpulimit import cpu_limit
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.bus import BUS, refuse_broker, refuse_other_bus
from quickstart.inspect.unit.containers import before_companions
from quickstart.inspect.unit.model import UnitStart
from quickstart.inspect.unit.order import comes_before
from quickstart.inspect.unit.read import read_unit
from quickstart.inspect.unit.sockets import MOST_SOCKETS


@cpu_limit("the image")
def read_stack(root: ImageRoot, units: Sequence[str], run_start_pre: bool = True) -> UnitStart:
    """How the last unit of ``units`` starts. The other units are the companions in the result, in the order in which
    these companions start.

    Raises UnsupportedUnitError for:

    - a unit that cannot start early
    - a companion that has to start after the last unit
    - a socket unit that comes after a unit of the stack
    - too many sockets
    """
    refuse_broker(root, units)
    *companions, last = units
    unit = read_unit(root, last, run_start_pre, units)
    refuse_other_bus(unit)
    if not companions:
        return unit
    # The caretaker watches all processes that use the bus from the beginning (caretaker/watch.c).
    bus = {BUS} & set(units)
    earlier = {name: (comes_before(root, name) & set(units)) | (bus - {name}) for name in units}
    for name in companions:
        if last in earlier[name]:
            raise UnsupportedUnitError(
                f"{name} starts after {last}, which `units` names as the one that answers",
                hint=f"put {last} before {name} in `units`",
            )
    starts = [read_unit(root, name, run_start_pre, units) for name in ordered(companions, earlier)]
    for start in starts:
        refuse_other_bus(start)
    _refuse_shared_user((unit, *starts))
    unit, *starts = (replace(each, on_bus=bool(bus - {each.unit})) for each in (unit, *starts))
    return _with_sockets(root, replace(unit, companions=before_companions(unit, starts)))


def _refuse_shared_user(units: Sequence[UnitStart]) -> None:
    """Raise UnsupportedUnitError if two units have the same user, and systemd makes this user up (DynamicUser=).
    systemd keeps such a user as long as one of the two units runs.
    """
    having = dict[str, str]()
    for each in units:
        user = each.made_up_user
        if user is not None and having.setdefault(user, each.unit) != each.unit:
            raise UnsupportedUnitError(
                f"{having[user]} and {each.unit} have the same user {user}, whom systemd makes up (DynamicUser=)",
                hint="give one of them another name in User=, or leave it out: systemd starts it after the hand-off",
            )


def _with_sockets(root: ImageRoot, unit: UnitStart) -> UnitStart:
    """``unit`` with the value ``sockets_before`` in each companion. This value is the number of sockets that PID 1
    holds before the companion's sockets. PID 1 binds the sockets of the whole stack before any of the units starts, as
    a stock boot does before basic.target.
    """
    names = {each.unit for each in unit.all_units}
    sockets = [socket for each in unit.all_units for socket in each.sockets]
    if len(sockets) > MOST_SOCKETS:
        raise UnsupportedUnitError(
            f"the units of the stack get {len(sockets)} sockets from systemd, at most {MOST_SOCKETS} can be bound",
            hint="leave one of these units out: systemd starts it after the hand-off",
        )
    for name in dict.fromkeys(socket.unit for socket in sockets):
        if first := sorted(comes_before(root, name) & names):
            raise UnsupportedUnitError(
                f"{name} cannot be bound early: systemd binds it after {first[0]} has started",
                hint=f"leave {first[0]} or the service of {name} out of `units`",
            )
    counts = (len(each.sockets) for each in (unit, *unit.companions))
    befores = itertools.accumulate(counts)
    return replace(
        unit,
        companions=tuple(
            replace(each, sockets_before=before)
            for each, before in zip(unit.companions, befores, strict=False)
        ),
    )


def ordered(units: Sequence[str], earlier: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """``units`` in an order in which each unit comes after the units that the mapping ``earlier`` names for this unit.
    Units without an order between them keep their order. Raises UnsupportedUnitError for a circular order.
    """
    left, found = list(units), list[str]()
    while left:
        ready = next((name for name in left if not set(earlier[name]) & set(left) - {name}), None)
        if ready is None:
            raise UnsupportedUnitError(f"each of {', '.join(left)} comes after another of them")
        left.remove(ready)
        found.append(ready)
    return tuple(found)
