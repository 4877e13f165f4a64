"""Find out from the reference boot whether a unit that manages its own control groups (Delegate=) does something that
an early start does not support (pure).

A unit with Delegate= may make groups below its own group, hand controllers on to these groups, and set limits there.
After an early start, systemd adopts the unit, and manages the unit's group for the first time. systemd then takes the
controllers back, so the limits would be lost (unit_update_cgroup in systemd's src/core/cgroup.c, 252 and 257). When
systemd restarts the unit later, systemd does not take the controllers back, because the unit's group is then new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.containers import DOCKER, is_docker
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import Event, Op, Trace
from quickstart.parse.printable import brief

_GROUPS = PurePosixPath("/sys/fs/cgroup")
_HANDING_ON = "cgroup.subtree_control"
# sd_booted(3)
_BOOTED = PurePosixPath("/run/systemd/system")
_MAKE_BOOTED = ("run-directory", "0755", "root", "root", str(_BOOTED))


def refuse_controllers_of_own(traces: Sequence[Trace], unit: str) -> None:
    """Raise UnsupportedUnitError when a program of the units has handed controllers on from a control group to the
    groups below this group (by writing to cgroup.subtree_control). At each boot, init also checks whether the units'
    own groups hand controllers on (hands_controllers_on in initramfs/init/hand-off).
    """
    for event in _done(traces):
        if event.op is Op.WRITE and event.path.name == _HANDING_ON and event.path.is_relative_to(_GROUPS):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: it gives controllers to control groups of its own"
                f" ({brief(str(event.path.parent))}), and systemd would take them back when it adopts the unit",
                hint='early = "never" in the profile\'s [start] makes every boot a stock boot',
            )


def refuse_wrapped_docker(traces: Sequence[Trace], unit: UnitStart) -> None:
    """Raise UnsupportedUnitError when a program of the units that start early has executed dockerd, and none of these
    units names dockerd as its own program in ExecStart=. In this case, the build does not know where dockerd keeps its
    containers (inspect/unit/containers.py).
    """
    executed = any(event.op is Op.EXEC and event.path.name == DOCKER for event in _done(traces))
    if executed and not any(is_docker(each.start) for each in unit.all_units):
        raise UnsupportedUnitError(
            f"{unit.unit} cannot be started early: a script of it starts {DOCKER}, and the build does not see its options",
            hint=f"let ExecStart= of the unit be {DOCKER} itself",
        )


def told_of_systemd(traces: Sequence[Trace], unit: UnitStart) -> UnitStart:
    """Return ``unit``, in some cases with a setting that makes the starter create the directory /run/systemd/system. By
    this directory, a program finds out whether systemd runs (sd_booted(3)). The function adds the setting if a unit of
    the stack has Delegate=, and a program looked for the directory in a traced boot. Such a program, for example
    dockerd, decides only once whether systemd or the program itself makes the program's control groups. Such a program
    calls systemd only later, when the program makes a control group.

    Units without Delegate= do not get the setting, because their programs would call systemd at once, before systemd
    runs.
    """
    looked = any(path == _BOOTED for event in _done(traces) for path in (event.path, event.real))
    return _told(unit) if looked and any(each.delegates for each in unit.all_units) else unit


def _told(unit: UnitStart) -> UnitStart:
    companions = tuple(_told(each) for each in unit.companions)
    settings = (*unit.settings, _MAKE_BOOTED) if unit.delegates else unit.settings
    return replace(unit, settings=settings, companions=companions)


def _done(traces: Sequence[Trace]) -> tuple[Event, ...]:
    """The successful actions of the units' programs in the traced boots."""
    return tuple(event for trace in traces for event in trace.events if event.error is None)
