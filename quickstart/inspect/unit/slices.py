"""Find the slices that contain a unit (systemd.slice(5)). A restriction of a slice applies to every process
in the slice.

An early start comes before systemd has set up the slices, so the build refuses a unit whose slice has a
restriction that the starter cannot set. The starter writes the limits of the slices' cgroups together with
those of the unit's own cgroup (resources.py).
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.directives import CGROUP, CGROUP_LATE
from quickstart.inspect.unit.files import (
    UNIT_PATHS,
    assignments,
    directives,
    emptied,
    names_with_directories,
    slice_texts,
)
from quickstart.inspect.unit.source import Source
from quickstart.inspect.unit.values import BadValueError
from quickstart.parse.printable import brief

_ROOT = "-.slice"
# A slice with one of these does not start without another unit (systemd.unit(5)).
_NEEDS = frozenset(
    (
        *("Requires", "Requisite", "BindsTo", "RequiresMountsFor"),
        *("RequiresOverridable", "RequisiteOverridable", "BindTo"),
    )
)
# Prefixes of names that the kernel, or systemd itself, has for files in a cgroup.
_KERNELS = (
    *("_", ".", "cgroup.", "cpu.", "cpuacct.", "cpuset.", "io.", "blkio.", "memory.", "devices.", "pids."),
    *(
        "bpf-firewall.",
        "bpf-devices.",
        "bpf-foreign.",
        "bpf-socket-bind.",
        "bpf-restrict-network-interfaces.",
    ),
)
_KERNELS_FILES = frozenset(("notify_on_release", "release_agent", "tasks"))
# A file's name is no longer (NAME_MAX of limits.h).
_MAX_NAME = 255
# Each slice is looked up, with its drop-ins. systemd's own slices are two levels deep.
_MAX_DEPTH = 32


def group_path(source: Source) -> str:
    """The path of the unit's cgroup below the root of all cgroups. By default, all instances of a template share one
    slice.
    """
    return "/".join(map(_escaped, (*slice_names(source)[1:], source.unit)))


def _escaped(name: str) -> str:
    """The name of a unit's cgroup. A name that could be the kernel's gets a `_` at its beginning (cg_escape in
    systemd's src/basic/cgroup-util.c).
    """
    if not name.startswith(_KERNELS) and name not in _KERNELS_FILES:
        return name
    if name[0] not in "_." and name.count(".") > 1:
        # systemd 252 escapes only a name that has nothing else before its last dot, and later versions escape all.
        raise UnsupportedUnitError(
            f"{name} cannot be started early: the name of its control group depends on the version of systemd"
        )
    return f"_{name}"


def slice_names(source: Source) -> tuple[str, ...]:
    """The slices that contain the unit, from the root slice down to the unit's own slice. Raises
    UnsupportedUnitError for an invalid name.
    """
    default = "system.slice"
    if source.names.instance:
        prefix = source.names.prefix.replace("\\", "\\x5c").replace("-", "\\x2d")
        default = f"system-{prefix}.slice"
    own = source.last("Slice", default)
    # unit_name_printf() of systemd 252 knows no others, and systemd then leaves out the line.
    if re.search(r"%[^ijnNp%]", own):
        raise source.refusal("Slice", own, BadValueError("has a specifier that is not for a unit's name"))
    name = source.names.expand(own)
    known = re.fullmatch(r"[A-Za-z0-9:_.\\-]+\.slice", name) and len(name) <= _MAX_NAME
    parts = name.removesuffix(".slice").split("-")
    if not known or not all(parts):
        raise source.refusal("Slice", name, BadValueError("is no name of a slice"))
    if len(parts) > _MAX_DEPTH:
        raise source.refusal("Slice", name, BadValueError(f"is more than {_MAX_DEPTH} slices deep"))
    return (_ROOT, *(f"{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts))))


def _required(root: ImageRoot, name: str) -> Iterator[PurePosixPath]:
    """The links by which the slice requires other units. A link for a prefix of its name or for all slices counts, too."""
    for place in UNIT_PATHS:
        for each in names_with_directories(name):
            yield from root.glob(PurePosixPath(place) / f"{glob.escape(each)}.requires/*")


def refuse_slices(root: ImageRoot, source: Source) -> None:
    """Raise UnsupportedUnitError when a slice that contains the unit has a restriction that the starter cannot apply
    before the unit's first process starts.
    """
    for name in slice_names(source):
        texts = slice_texts(root, name)
        for key, value in assignments(texts, "[Unit]"):
            # systemd starts no unit in a slice that has failed.
            if value and (key.startswith("Assert") or key in _NEEDS):
                raise UnsupportedUnitError(
                    f"{source.unit} cannot be started early: its slice {name} has {key}=",
                    hint="give the unit another slice (Slice=) in the image",
                )
        for link in _required(root, name):
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: its slice {name} requires a unit ({brief(str(link))})",
                hint="give the unit another slice (Slice=) in the image",
            )
        assigned = assignments(texts, "[Slice]")
        found = directives(assigned)
        if emptied(assigned, frozenset({"DevicePolicy"})):
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: its slice {name} has an empty DevicePolicy=, which takes nothing back",
                hint="remove the empty line in the image",
            )
        # systemd ignores Delegate= there (can_delegate in its src/core), and the starter does, too.
        lost = sorted(set(found) - CGROUP - CGROUP_LATE)
        if lost:
            raise UnsupportedUnitError(
                f"{source.unit} cannot be started early: its slice {name} has {', '.join(lost)}",
                hint="give the unit another slice (Slice=) in the image, or say it in the unit's own drop-in",
            )
