"""Refuse an early start when the application would start before a unit that a stock boot starts first. In an early
start, our init starts the application before systemd runs. A stock boot is the distribution's own boot.

The unit reader (inspect/unit) predicts from the image which units a boot starts before the application. This module
does not predict, but uses systemd's report of the reference boot, which is a traced stock boot. The report says which
units systemd started, for whatever reason, and how they were ordered. So this module also finds a packet filter, a
check or a mount that only a generator, a udev rule or a preset starts.

Apart from reading drop-ins of the image, the functions are pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from quickstart.errors import TraceError, UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import assignments, unit_texts
from quickstart.inspect.unit.mounted import tmp_options
from quickstart.inspect.unit.order import Budget
from quickstart.inspect.unit.words import names_in
from quickstart.model import Trace
from quickstart.model.started import LoadedUnit, RootMount
from quickstart.model.words import FileSystem
from quickstart.pack.harmless import (
    is_asked_for,
    is_generated_socket,
    is_harmless,
    is_only_waiting,
    may_be_copied,
    may_be_generated,
)
from quickstart.pack.lookups import answering
from quickstart.parse.printable import brief

_KINDS = (".service", ".mount", ".automount", ".socket")
_WITH_COMMANDS = ("[Service]", "[Socket]")
# A unit that comes after one of these targets comes after every service of the machine, also after unrelated
# services.
_GOALS = frozenset({"multi-user.target", "graphical.target"})
# In an early start, a unit does not find what these targets stand for.
_LATE = frozenset({"cloud-init.target", "cloud-config.target"})
# These services replace directories of /usr and /etc. Init compares the files that they look for
# (inspect/unit/before.py).
_EXTENDING = frozenset({"systemd-sysext.service", "systemd-confext.service"})
_NETWORK_PRE = "network-pre.target"
# Debian's services that set up a network card: ifupdown and systemd-networkd.
_NETWORKS = ("networking.service", "ifup@", "systemd-networkd.service")
_PACKAGES = ("/usr/lib/systemd/system/", "/lib/systemd/system/")
# What systemd's own generators make of fstab(5), for example.
_GENERATED = "/run/systemd/generator/"
_ADMINISTRATORS = "/etc/systemd/system/"
_RUNTIME = "/run/systemd/system/"
# The limit for all units that the boot started before the application. Debian's have a few KiB.
_DROP_INS = "the drop-ins of what the boot started"
_MOST_CHARACTERS = 2 << 20


def refuse_earlier(
    traces: Sequence[Trace], units: Iterable[str], root: ImageRoot, subvolume: str = ""
) -> None:
    """Raise UnsupportedUnitError when a traced boot shows that ``units`` must not start early. ``units`` are the units
    that would start early. With ``subvolume``, the root is this subvolume of btrfs. There are three cases.

    - A traced boot started, or tried to start, another unit before one of ``units``, and this other unit is not known
      to be harmless for an early start.
    - One of ``units`` waits for the whole boot.
    - A traced boot mounted something other than the root volume at /.

    Raises TraceError when systemd's report of a boot does not have one of ``units``.
    """
    stack = frozenset(units)
    has_command = functools.cache(functools.partial(_has_command, root, Budget(_DROP_INS, _MOST_CHARACTERS)))
    has_tmp = bool(tmp_options(root))
    for trace in traces:
        loaded = {each.name: each for each in trace.loaded.units}
        for unit in sorted(stack):
            if unit not in loaded:
                raise TraceError(f"systemd's account of the boot does not have {unit}", hint="build again")
            _refuse_root(unit, trace.loaded.roots, subvolume)
            _refuse_last(loaded, unit)
            if not has_tmp and "tmp.mount" in units_before(loaded, unit):
                # basic.target wants this mount, also if fstab says noauto.
                raise UnsupportedUnitError(
                    f"{unit} cannot be started early: the reference boot mounted /tmp, and init would not",
                    hint="remove the line of /tmp from fstab in the image, or the word noauto from it",
                )
            asked_for, answers = _asked_for(root, loaded[unit]), answering(traces, loaded[unit])
            for name in sorted(units_before(loaded, unit) - stack):
                if why := _why_not(loaded[name], asked_for, answers, has_command):
                    raise UnsupportedUnitError(
                        f"{unit} cannot be started early: the reference boot started {brief(name)} before it{why}",
                        hint=_hint(name),
                    )
            # A unit that does not wait for the network has none either, in a stock boot, until a packet filter is there.
            for name in sorted(_before_the_network(loaded) - stack):
                if why := _why_not(loaded[name], (), (), has_command):
                    raise UnsupportedUnitError(
                        f"{unit} cannot be started early: the reference boot started {brief(name)} before the network{why}",
                        hint=_hint(name),
                    )


def _asked_for(root: ImageRoot, application: LoadedUnit) -> frozenset[str]:
    """The units after which ``application`` is ordered directly, and not through other units. A unit of cloud-init
    counts only when the application's own unit names it in After=, because cloud-init orders its units before ssh on
    any machine.
    """
    if not any(name.startswith("cloud-") for name in application.after):
        return application.after
    try:
        texts = unit_texts(root, application.name)
    except UnsupportedUnitError:
        return application.after
    own = {
        word
        for name, value in assignments(texts, "[Unit]")
        if name == "After"
        for word in names_in(application.name, value)
    }
    return frozenset(name for name in application.after if name in own or not name.startswith("cloud-"))


def _refuse_last(loaded: Mapping[str, LoadedUnit], unit: str) -> None:
    """Raise UnsupportedUnitError for a unit that is ordered after multi-user.target or graphical.target, directly or
    through other units. Such a unit waits for all services of the boot, and QuickStart does not know what these
    services prepare for the unit. Also raise the error for a unit that is ordered directly after a target of
    cloud-init, because cloud-init runs after an early start.
    """
    for late in sorted(_LATE & loaded[unit].after):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it comes after {late}, and cloud-init runs after an early start",
            hint=f"remove {late} from After= in a unit file of the image",
        )
    for goal in sorted(_GOALS & {*loaded[unit].after, *_before(loaded, unit)}):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it comes after {goal}, and so after every other service",
            hint=f"let it come after network.target in place of {goal}, in a unit file of the image",
        )


def _refuse_root(unit: str, roots: Sequence[RootMount], subvolume: str) -> None:
    """Raise UnsupportedUnitError when the reference boot mounted something other than the whole root volume as /. For
    example, the scripts of overlayroot in the image's own initramfs mount an overlay as /. A fast start uses our
    initramfs, and does not run these scripts.
    """
    whole = [(RootMount(f"/{subvolume}" if each is FileSystem.BTRFS else "/", each),) for each in FileSystem]
    if roots not in whole:
        shown = brief(", then ".join(f"{each.inside} of {each.fs_type}" for each in roots))
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: the image's own initramfs mounts {shown} as /, and not the volume alone",
            hint="remove the package that does this (overlayroot …) from the image",
        )


def _hint(name: str) -> str:
    if is_harmless(name) and not is_asked_for(name):
        return "remove the change from the image if the application does not depend on it"
    named = (
        "name both in `units` of the profile, or disable or mask that service"
        if name.endswith(".service")
        else "disable or mask that unit"
    )
    return f"{named} in the image if the application does not depend on it"


def units_before(loaded: Mapping[str, LoadedUnit], unit: str) -> frozenset[str]:
    """The services, mounts, automounts and sockets that are ordered before ``unit`` and were due in the traced boot. A
    unit was due if systemd started it, or examined whether to start it (`_was_due`).
    """
    own_us = loaded[unit].started_us
    return frozenset(
        name for name in _before(loaded, unit) if name.endswith(_KINDS) and _was_due(loaded[name], own_us)
    )


def _before_the_network(loaded: Mapping[str, LoadedUnit]) -> frozenset[str]:
    """The units that set up the network in the traced boot, and the units that are ordered before these units or before
    network-pre.target. In an early start, init sets up the network in their place.
    """
    networks = {
        name
        for name, each in loaded.items()
        if name == _NETWORK_PRE or (name.startswith(_NETWORKS) and _was_due(each, 0))
    }
    return frozenset({name for each in networks for name in units_before(loaded, each)} | networks) - {
        _NETWORK_PRE
    }


def _why_not(
    unit: LoadedUnit,
    asked_for: Collection[str],
    answers: Collection[str],
    has_command: Callable[[str], bool],
) -> str | None:
    """The reason why the application must not start before ``unit``. The reason is the end of an error message. The
    result is None when the application may start before ``unit``.

    ``asked_for`` is the result of `_asked_for`, and ``answers`` is the result of `answering`. ``has_command`` gets the
    path of a unit file or drop-in, and returns whether this file may have a command.
    """
    if unit.name.endswith(".socket"):
        is_known = is_generated_socket(unit.name) and _is_below(unit.file, _GENERATED)
        files = (each for each in ("" if is_known else unit.file, *unit.drop_ins) if each)
        return next((f", with the commands of {brief(each)}" for each in files if has_command(each)), None)
    if not is_harmless(unit.name):
        return ", and what it prepares is not known"
    if is_asked_for(unit.name) and unit.name in asked_for:
        return ", because the unit itself comes after it"
    if unit.name in answers:
        return ", and the unit looks up what that service knows"
    is_service = unit.name.endswith(".service")
    # A mount that a program made has no file.
    usual = _PACKAGES if is_service else (*_PACKAGES, _GENERATED)
    if may_be_generated(unit.name):
        usual = (*usual, _RUNTIME, _GENERATED)
    if may_be_copied(unit.name):
        usual = (*usual, _ADMINISTRATORS)
    if not _is_below(unit.file, *usual) and (is_service or unit.file):
        return f", by {brief(unit.file) or 'no file'} in place of the package's unit"
    changing = (each for each in unit.drop_ins if is_service or not _is_below(each, _GENERATED))
    if is_only_waiting(unit.name):
        # netplan's generator names the interfaces to wait for.
        changing = (each for each in changing if not _is_below(each, *_PACKAGES, _RUNTIME))
    return next(
        (f", with the commands of {brief(each)}" for each in changing if not is_service or has_command(each)),
        None,
    )


def _is_below(path: str, *places: str) -> bool:
    return path.startswith(places) and ".." not in path.split("/")


def _has_command(root: ImageRoot, left: Budget, drop_in: str) -> bool:
    """Whether the unit file or drop-in at ``drop_in`` has a command (ExecStart= and the like). The result is also True
    when the image has no file at ``drop_in``. In this case, ``drop_in`` may be only a part of a path that contains
    blanks, because systemd's report separates paths by blanks.
    """
    path = PurePosixPath(drop_in)
    file = root.resolve(path).canonical if path.is_absolute() else None
    if file is None:
        return True
    text = root.read_text(file, _MOST_CHARACTERS)
    left.take(brief(drop_in), (text,))
    return "Exec" in text and any(
        name.startswith("Exec") for section in _WITH_COMMANDS for name, _ in assignments((text,), section)
    )


def _was_due(unit: LoadedUnit, own_us: int) -> bool:
    """Whether the boot started ``unit``, or examined the conditions for starting it (ConditionPathExists= and the
    like). A condition that did not hold in the reference boot may hold on another machine or in a later boot.

    The services systemd-sysext and systemd-confext count only if they were started. A mount without a unit file counts
    only if it was started no later than the application. ``own_us`` is the uptime at which the application was started,
    in microseconds. ``own_us`` is 0 if the application was not started.
    """
    if unit.name in _EXTENDING:
        return unit.started_us > 0
    if unit.name.endswith(".service") or unit.file:
        return bool(unit.started_us or unit.examined_us)
    # systemd orders every mount that it finds before local-fs.target, even a mount that the application or a later
    # service has made.
    return 0 < unit.started_us <= (own_us or unit.started_us)


def _before(loaded: Mapping[str, LoadedUnit], unit: str) -> Iterator[str]:
    """The units that systemd had loaded and that are ordered before ``unit``, directly or through other units."""
    left, seen = [unit], {unit}
    while left:
        found = loaded.get(left.pop())
        for name in (found.after if found else frozenset()) - seen:
            seen.add(name)
            if name in loaded:
                yield name
            if name not in _GOALS:
                left.append(name)
