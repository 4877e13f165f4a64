"""Read a unit of the image into a UnitStart: everything that an early start repeats (systemd.service(5), systemd.exec(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.cloudinit import refuse_bootcmd
from quickstart.inspect.imageroot import MAX_TABLE_BYTES, ImageRoot
from quickstart.inspect.unit.apparmor import PARSER, refuse_profiles
from quickstart.inspect.unit.before import refuse_filters, refuse_local_clock, refuse_split_usr
from quickstart.inspect.unit.bus import bus_records, default_type, has_idle_name
from quickstart.inspect.unit.callgroups import call_groups
from quickstart.inspect.unit.commands import is_needless_early, parse_commands, refuse_command
from quickstart.inspect.unit.conditions import condition_records
from quickstart.inspect.unit.containers import container_records
from quickstart.inspect.unit.directives import HARMLESS, KEPT_WHEN_EMPTY, KNOWN
from quickstart.inspect.unit.dynamicuser import is_dynamic, refuse_dynamic, user_records, with_implied
from quickstart.inspect.unit.fatal import refuse_fatal
from quickstart.inspect.unit.files import (
    assignments,
    directives,
    drop_ins_of,
    emptied,
    hidden_at,
    manager_texts,
    slice_texts,
    unit_files,
    unit_texts,
)
from quickstart.inspect.unit.generators import refuse_generators
from quickstart.inspect.unit.hidden import hidden_directories, late_guards
from quickstart.inspect.unit.hooks import refuse_hooks
from quickstart.inspect.unit.instances import generating_conditions, working_instances
from quickstart.inspect.unit.journal import journal_sockets
from quickstart.inspect.unit.lines import first_fault
from quickstart.inspect.unit.listeners import refuse_listeners
from quickstart.inspect.unit.model import UnitCommand, UnitStart
from quickstart.inspect.unit.mounted import refuse_mounts
from quickstart.inspect.unit.mounts import late_binds
from quickstart.inspect.unit.nameservices import refuse_other_groups
from quickstart.inspect.unit.neighbours import (
    handing_sockets,
    instances_of,
    refuse_requirements,
    refuse_shared_namespaces,
)
from quickstart.inspect.unit.networkd import refuse_networkd
from quickstart.inspect.unit.pidone import (
    comment_records,
    knows_reload,
    limits_of_pid_one,
    newer_directives,
    refuse_manager,
)
from quickstart.inspect.unit.policies import refuse_policies
from quickstart.inspect.unit.pulled import refuse_occasional
from quickstart.inspect.unit.resources import resource_records
from quickstart.inspect.unit.rundirectories import run_directories
from quickstart.inspect.unit.settings import settings
from quickstart.inspect.unit.slices import group_path, refuse_slices, slice_names
from quickstart.inspect.unit.sockets import socket_conditions, sockets_of
from quickstart.inspect.unit.source import Source, Systemd
from quickstart.inspect.unit.tmpfiles import refuse_tmpfiles
from quickstart.inspect.unit.values import BadValueError, boolean, span_us
from quickstart.parse.printable import brief, command

_NO_TEXT = re.compile(r"[\0-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_TYPES = ("simple", "exec", "forking", "notify", "notify-reload", "dbus")
_ACCESS = ("none", "main", "exec", "all")
_TIMEOUTS = ("TimeoutStartSec", "TimeoutSec")
_DEFAULT_TIMEOUT = "90s"
# Each command has a process of its own. No unit has a tenth of this number.
_MAX_COMMANDS = 256
# The limit for a message, because an image may have any number of instances.
_MOST_NAMED = 16
# As init calls it (initramfs/init/hand-off).
HAND_OFF_DROP_IN = b"zzzz-quickstart.conf"


def read_unit(
    root: ImageRoot, unit: str, run_start_pre: bool = True, stack: Collection[str] = ()
) -> UnitStart:
    """How ``unit`` of the image starts. Without ``run_start_pre``, the result does not have the commands of
    ExecStartPre=. ``stack`` are the units that start early together with ``unit``, so ``unit`` may require them.

    Raises UnsupportedUnitError for everything that an early start could not repeat.
    """
    source = _source(root, unit)
    _refuse_last_word(root, unit)
    _refuse_hidden(root, unit)
    socket_units = _refuse_neighbours(root, unit, stack)
    refuse_slices(root, source)
    _refuse_confinement(root, source)
    kind = _type(root, source)
    # After the type: for a wrapper, that message names the instance that does its work.
    refuse_generators(root, unit)
    pid_file = source.names.expand(source.last("PIDFile"))
    _check_users(root, source)
    start = _commands(root, source, "ExecStart")
    start_pre = _commands(root, source, "ExecStartPre") if run_start_pre else ()
    conditions, start_post = (_commands(root, source, name) for name in ("ExecCondition", "ExecStartPost"))
    commands = (*start, *start_pre, *conditions, *start_post)
    refuse_dynamic(root, source, kind, commands)
    _refuse_other_than_one(unit, start)
    refuse_profiles(root, unit, [PurePosixPath(start[0].program)])
    journal = journal_sockets(root)
    sockets = sockets_of(root, source, socket_units)
    own = (*run_directories(root), *settings(source))
    bound = {name for each in stack for name in handing_sockets(root, each)}
    bound |= {*socket_units, *(each.unit for each in journal)}
    refuse_listeners(root, unit, bound)
    return UnitStart(
        unit=unit,
        type=kind,
        pid_file=(PurePosixPath("/run") / pid_file) if pid_file else None,
        start_pre=start_pre,
        start=start[0],
        conditions=conditions,
        start_post=start_post,
        group=group_path(source),
        timeout_ms=_timeout_ms(source),
        settings=(
            *_conditions(root, unit, (*socket_units, *(each.unit for each in journal))),
            *container_records(root, source, start[0]),
            *_notify(source, kind),
            *bus_records(source, kind),
            *_main_process(source, kind),
            *hidden_directories(root, unit, own, bound, commands),
            *late_guards(root, unit, own),
            *comment_records(root),
            *user_records(root, source),
            *resource_records(root, source),
            *own,
        ),
        late_binds=late_binds(source),
        sockets=sockets,
        journal_sockets=journal,
    )


def _refuse_other_than_one(unit: str, start: Sequence[UnitCommand]) -> None:
    if (count := len(start)) != 1:
        raise UnsupportedUnitError(f"{unit} has {count} ExecStart commands; exactly one can be started early")


def _conditions(root: ImageRoot, unit: str, socket_units: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The records for the conditions of the unit, of the generator that starts the unit, and of the socket units. A
    socket unit that occurs several times is read once.
    """
    yield from condition_records(unit, assignments(unit_texts(root, unit), "[Unit]"))
    yield from generating_conditions(unit)
    for name in dict.fromkeys(socket_units):
        yield from socket_conditions(root, name)


def _source(root: ImageRoot, unit: str) -> Source:
    """The settings of the unit's files and of system.conf. Raises UnsupportedUnitError if these files have a directive
    or an empty assignment that an early start could not repeat. Also raises this error if these files or the files of
    the unit's slices have a syntax fault.
    """
    texts, manager = unit_texts(root, unit), manager_texts(root)
    assigned, defaults = assignments(texts, "[Service]"), assignments(manager, "[Manager]")
    # Only who needs them pays for reading systemd's library.
    groups = call_groups(root) if any(name == "SystemCallFilter" for name, _ in assigned) else {}
    # The same check of blanks as for the unit's own settings.
    Source("system.conf", defaults, {})
    systemd = Systemd(groups, newer_directives(root, {name for name, _ in assigned}))
    source = Source(unit, assigned, {**limits_of_pid_one(root), **directives(defaults)}, systemd)
    refuse_unknown(source)
    refuse_fatal(unit, assigned)
    slices = (text for name in slice_names(source) for text in slice_texts(root, name))
    _refuse_faults(unit, (*texts, *manager, *slices))
    _refuse_emptied(unit, (*assigned, *defaults))
    refuse_manager(root, unit)
    return with_implied(root, source)


def _refuse_neighbours(root: ImageRoot, unit: str, stack: Collection[str]) -> tuple[str, ...]:
    """Raise UnsupportedUnitError when other units prevent an early start of ``unit``. Return the socket units
    that pass their sockets to ``unit``.
    """
    socket_units = handing_sockets(root, unit)
    for name in socket_units:
        _refuse_hidden(root, name)
        # systemd makes a socket in the socket unit's group, where the rules of the unit's slices apply to incoming
        # data.
        refuse_slices(root, Source(name, assignments(unit_texts(root, name), "[Socket]"), {}))
    for name in (*socket_units, unit):
        refuse_requirements(root, name, stack)
    refuse_shared_namespaces(root, unit)
    refuse_filters(root, unit)
    refuse_hooks(root, unit)
    refuse_networkd(root, unit)
    refuse_bootcmd(root, unit)
    refuse_policies(root, unit)
    refuse_local_clock(root, unit)
    refuse_mounts(root, unit)
    refuse_tmpfiles(root, unit)
    refuse_split_usr(root, unit)
    refuse_occasional(root, unit)
    return socket_units


def refuse_unknown(source: Source) -> None:
    """Raise UnsupportedUnitError when an early start does not accept a directive or its value, and for a line
    that is not UTF-8 text. The message names every directive that is not accepted.
    """
    for name, values in source.found.items():
        # systemd ignores a line that is not UTF-8, but whoever wrote the line meant something else.
        if any(_NO_TEXT.search(each) for each in (name, *values)):
            raise UnsupportedUnitError(
                f"{source.unit}: {name!r} has bytes that are no UTF-8 text: {values!r}"
            )
    # Not every empty assignment takes a value back.
    unknown = {name for name, value in source.assigned if value and name not in KNOWN}
    unknown |= {name for name, harmless in HARMLESS.items() if not _is_harmless(source, name, harmless)}
    unknown |= {"BusName"} if has_idle_name(source) else set()
    if unknown:
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: it has {', '.join(sorted(unknown))}",
            hint="these directives would be lost; see docs/internals/starter.md",
        )


def _refuse_faults(unit: str, texts: Iterable[str]) -> None:
    """Raise UnsupportedUnitError for a text that systemd does not read to its end. The unread part may have
    settings that an early start would miss.
    """
    for fault in filter(None, map(first_fault, texts)):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: its unit file, a drop-in, a slice or system.conf has {fault},"
            " and systemd stops reading there",
            hint="`systemd-analyze verify` names the file and the line",
        )


def _refuse_emptied(unit: str, assigned: tuple[tuple[str, str], ...]) -> None:
    """Raise UnsupportedUnitError for an empty assignment that systemd ignores although it looks like a reset.
    A process that starts early would lack a setting that the process has under systemd.
    """
    for name in emptied(assigned, KEPT_WHEN_EMPTY):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: it has an empty {name}= after a value, which takes nothing back",
            hint="give the value that is meant, or remove the empty line",
        )


def _refuse_last_word(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a drop-in that systemd reads after HAND_OFF_DROP_IN, by which the hand-off lets
    systemd adopt the running application. Such a drop-in could make systemd start the application a second time.
    """
    for name, path in drop_ins_of(root, unit).items():
        if os.fsencode(name) >= HAND_OFF_DROP_IN:
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {path} is read after what the hand-off says",
                hint=f"give it a name that sorts before {HAND_OFF_DROP_IN.decode()}",
            )


def _refuse_hidden(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a unit file that not every user may read. Its content would go into the
    initramfs, which every user may read.
    """
    for path in unit_files(root, unit):
        if (hidden := hidden_at(root, path)) is not None:
            way, mode = ("", "a+r") if hidden == path else (f" by way of {brief(str(hidden))}", "a+x")
            # The hint does not name the path, because the image's maker has chosen it, and it may also be a file of
            # the host.
            what = "file" if hidden == path else "directory"
            right = "setfacl -b" if root.has_acl(hidden) else f"chmod {mode}"
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {brief(str(path))} is not for all to read{way},"
                " and what it says would go into the archive",
                hint=f"use `{right}` on this {what} of the image, and put secrets into a file of EnvironmentFile=,"
                " which is read at each start",
            )


def _is_harmless(source: Source, name: str, harmless: str) -> bool:
    value = source.last(name, harmless)
    if harmless != "no":
        return value == harmless
    try:
        return not boolean(value)
    except BadValueError:
        return False


def _refuse_confinement(root: ImageRoot, source: Source) -> None:
    """Raise UnsupportedUnitError for AppArmorProfile=, because the profile is not loaded before systemd runs.
    A value that begins with `-` is accepted when the image has no program that loads profiles.
    """
    value = source.last("AppArmorProfile")
    loads = root.resolve(PARSER).canonical is not None
    if value and (loads or not value.startswith("-")):
        raise source.refusal("AppArmorProfile", value, BadValueError("is not loaded before the hand-off"))


def _type(root: ImageRoot, source: Source) -> str:
    kind = source.last("Type", default_type(source.found))
    if kind not in _TYPES:
        instances: tuple[str, ...] = ()
        if kind == "oneshot":
            instances = working_instances(root, source.unit) or instances_of(root, source.unit)
        hint = f"known: {', '.join(_TYPES)}"
        if instances:
            # A name that nobody should paste may be any text of the image's maker.
            plain = [each for name in instances[:_MOST_NAMED] if (each := command(name))]
            named = ", ".join((*plain, *(["…"] if len(instances) > len(plain) else [])))
            hint = f"the work is done by {named}: `unit` takes an instance, NAME@INSTANCE.service"
        raise UnsupportedUnitError(f"{source.unit} cannot be started early: Type={kind}", hint=hint)
    if kind == "notify-reload" and not knows_reload(root):
        raise UnsupportedUnitError(
            f"{source.unit} cannot be started early: Type={kind}, which the image's systemd does not know"
        )
    # A reload is systemd's.
    return "notify" if kind == "notify-reload" else kind


def _main_process(source: Source, kind: str) -> tuple[tuple[str, ...], ...]:
    """The record which says that any process of the unit may be the main process. The record is needed for Type=forking
    when systemd has no PID file and must not guess the main process (GuessMainPID=no). The result is empty for other
    units.
    """
    guesses = source.flag("GuessMainPID", otherwise=True)
    unknown = kind == "forking" and not guesses and "PIDFile" not in source.found
    return (("main-process", "any"),) if unknown else ()


def _notify(source: Source, kind: str) -> tuple[tuple[str, ...], ...]:
    """The record that says which processes of the unit may write to the notify socket. The result is empty when the
    unit does not need the socket.
    """
    watches = "WatchdogSec" in source.found and source.value("WatchdogSec", span_us) != 0
    needs = kind == "notify" or watches
    access = source.last("NotifyAccess", "none")
    if access not in _ACCESS:
        raise source.refusal("NotifyAccess", access, BadValueError(f"is none of {', '.join(_ACCESS)}"))
    if access == "none":
        return (("notify-access", "main"),) if needs else ()
    return (("notify-access", access),)


def _timeout_ms(source: Source) -> int:
    """The unit's start timeout in milliseconds. The result is 0 when there is no timeout."""
    # Both are names of one setting: the last assignment counts (systemd's config_parse_service_timeout).
    given = next((each for each in reversed(source.assigned) if each[0] in _TIMEOUTS and each[1]), None)
    default = source.manager.get("DefaultTimeoutStartSec", (_DEFAULT_TIMEOUT,))[-1]
    found = source.converted(*(given or ("DefaultTimeoutStartSec", default)), span_us)
    return -(-(found or 0) // 1000)


def _commands(root: ImageRoot, source: Source, name: str) -> tuple[UnitCommand, ...]:
    if len(source.all(name)) > _MAX_COMMANDS:
        raise UnsupportedUnitError(f"{source.unit} has more than {_MAX_COMMANDS} lines of {name}")
    found = [each for line in source.all(name) for each in parse_commands(source.unit, line, root)]
    kept = tuple(each for each in found if name == "ExecStart" or not is_needless_early(each))
    for each in kept:
        refuse_command(source.unit, name, each)
    if name == "ExecStart" or not source.flag("PermissionsStartOnly"):
        return kept
    # What `+` says of one command.
    return tuple(replace(each, flags="".join(sorted({*each.flags, "+"}))) for each in kept)


def _check_users(root: ImageRoot, source: Source) -> None:
    """Raise UnsupportedUnitError for a user or group that is not in /etc/passwd or /etc/group. The starter
    reads only these files.
    """
    for value in source.all("SupplementaryGroups"):
        # For systemd, quotes are part of such a name. No group has such a name, so the unit would not start.
        if set(value) & set("\"'\\"):
            raise source.refusal("SupplementaryGroups", value, BadValueError("has quotes"))
    # A user that systemd makes up need not exist in the image.
    user = "" if is_dynamic(source) else source.last("User")
    wanted = [("User", "/etc/passwd", user), ("Group", "/etc/group", source.last("Group"))]
    wanted += [("SupplementaryGroups", "/etc/group", word) for word in source.words("SupplementaryGroups")]
    if not is_dynamic(source):
        refuse_other_groups(root, source)
    known: dict[str, frozenset[str]] = {}
    for name, file, value in wanted:
        if not value:
            continue
        if file not in known:
            known[file] = _names_of(root, file)
        if source.names.expand(value) not in known[file]:
            raise source.refusal(name, value, BadValueError(f"is not in the image's {file}"))


def _names_of(root: ImageRoot, file: str) -> frozenset[str]:
    """The names and numeric IDs in a passwd(5) or group(5) file. The result is empty when the file does not exist."""
    path = root.resolve(PurePosixPath(file)).canonical
    rows = (line.split(":", 3) for line in root.read_text(path, MAX_TABLE_BYTES).splitlines()) if path else ()
    return frozenset(word for row in rows for word in (row[0], *row[2:3]))
