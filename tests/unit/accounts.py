"""What systemd itself says of a boot: the units that it started, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Trace
from quickstart.model.started import Loaded, LoadedUnit, RootMount
from quickstart.pack.earlier import refuse_earlier
from tests.unit.imagebuilder import trace

LOG = """\
Root=/ ext4
Card=ens3 free 52:54:00:12:34:56
Card=ens4 enslaved 52:54:00:12:34:57
Route=ens3 00000000 0202000A 00000000
Route=ens3 0002000A 00000000 00FFFFFF
Local=127.0.0.1
Local=10.0.2.15
Local=10.0.2.15

Id=app.service
After=basic.target -.mount
InactiveExitTimestampMonotonic=9000000
ConditionTimestampMonotonic=8000000
FragmentPath=/usr/lib/systemd/system/app.service
DropInPaths=/etc/systemd/system/app.service.d/a.conf /run/b.conf

After=
InactiveExitTimestampMonotonic=0
ConditionTimestampMonotonic=0
DropInPaths=
FragmentPath=
Id=other.service
== end
"""
PACKAGES = "/usr/lib/systemd/system"
OWN = "/etc/systemd/system"


def booted(**after: str) -> Trace:
    """A trace of a boot with these units, all of them started; `__` in a name is a dash, and `_` a dot."""
    usual = {
        "app_service": "basic.target network.target",
        "basic_target": "sysinit.target",
        "network_target": "network-pre.target networking.service",
        "sysinit_target": "local-fs.target systemd-sysctl.service",
        "network__pre_target": "",
        **dict.fromkeys(("networking_service", "systemd__sysctl_service", "local__fs_target"), ""),
        **after,
    }
    names = {name: name.replace("__", "-").replace("_", ".") for name in usual}
    loaded = (
        LoadedUnit(
            name=names[name],
            after=frozenset(words.split()),
            started_us=1,
            file=f"{PACKAGES}/{names[name]}" if names[name].endswith((".service", ".target")) else "",
        )
        for name, words in usual.items()
    )
    return replace(trace(), loaded=Loaded(tuple(loaded), (RootMount("/", "ext4"),)))


def changed(base: Trace, unit: str, **changes: Any) -> Trace:
    units = tuple(replace(each, **changes) if each.name == unit else each for each in base.loaded.units)
    return replace(base, loaded=replace(base.loaded, units=units))


def refused(
    tmp_path: Path, *traces: Trace, units: Sequence[str] = ("app.service",), subvolume: str = ""
) -> str:
    try:
        refuse_earlier(traces, units, ImageRoot(tmp_path), subvolume)
    except UnsupportedUnitError as error:
        return error.message
    return ""
