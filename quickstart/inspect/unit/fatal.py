"""Refuse the assignments at which systemd stops reading a unit file or a drop-in.

systemd leaves out most lines that it does not understand. But some parsers report a fault, and then config_parse() stops:
a drop-in counts only up to this line, and a unit file does not count at all (systemd's src/core/load-fragment.c and
load-dropin.c). Every assignment matters, also one that a later assignment overrides.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.lines import UNSAFE
from quickstart.inspect.unit.values import BadValueError, boolean
from quickstart.inspect.unit.words import SEPARATOR, split_words
from quickstart.parse.printable import brief

_COMMANDS = frozenset(
    (
        *("ExecStart", "ExecStartPre", "ExecStartPost", "ExecCondition"),
        *("ExecReload", "ExecStop", "ExecStopPost", "ExecStopPre"),
    )
)
_NAMES = ("User", "Group", "SupplementaryGroups", "SocketUser", "SocketGroup")
_PLACES = ("WorkingDirectory", "RootDirectory", "RootImage", "RootVerity")
_TEXTS = ("AppArmorProfile", "SELinuxContext", "SmackProcessLabel")
# systemd.unit(5), "Specifiers", of 252. Any other letter or digit behind a % is a fault.
_SPECIFIERS = frozenset("aAbBCdEfgGhHijIJlLmMnNopPqsStTuUvVwW%")
_SPECIFIER = re.compile(r"%([0-9A-Za-z])")
# Names that each version of systemd takes (valid_user_group_name in src/basic/user-util.c).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?", re.ASCII)
_PREFIXES = "-@:+!"


def refuse_fatal(unit: str, assigned: tuple[tuple[str, str], ...]) -> None:
    """Raise UnsupportedUnitError for an assignment at which systemd stops reading, or may stop."""
    for name, value in assigned:
        why = _fault(unit, name, value)
        if why:
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: systemd may stop reading at {name}={brief(value)}, which {why}",
                hint="`systemd-analyze verify` names the file and the line",
            )


def _fault(unit: str, name: str, value: str) -> str:
    check: Callable[[str], str] | None = None
    if name in _COMMANDS:
        return _of_command(unit, value) if value else ""
    if name == "DynamicUser":
        return _of_boolean(value)
    if name in _NAMES:
        check = _of_name
    elif name in _PLACES:
        check = _of_place
    elif name == "PIDFile":
        check = _of_pid_file
    elif name in _TEXTS:
        check = _of_specifiers
    if check is None or not value:
        return ""
    words = value.split() if name == "SupplementaryGroups" else [value]
    return next(filter(None, map(check, words)), "")


def _of_specifiers(text: str) -> str:
    strange = next(
        (match[1] for match in _SPECIFIER.finditer(text.replace("%%", "")) if match[1] not in _SPECIFIERS), ""
    )
    return f"has the unknown specifier %{strange}" if strange else ""


def _of_command(unit: str, value: str) -> str:
    """The fault of a command line, of each of its commands (config_parse_exec)."""
    try:
        words = split_words(unit, value)
    except UnsupportedUnitError:
        return "cannot be split into words"
    is_first = True
    for word in words:
        if word == f"{SEPARATOR}\0":
            is_first = True
            continue
        if why := _of_specifiers(word):
            return why
        if is_first:
            program = word.lstrip(_PREFIXES)
            is_path = program.startswith("/") and not program.endswith("/")
            if not (is_path or ("/" not in program and program)) or UNSAFE.search(program):
                return "does not begin with a program"
        is_first = False
    return ""


def _of_boolean(value: str) -> str:
    try:
        boolean(value)
    except BadValueError:
        return "is no truth value"
    return ""


def _of_name(value: str) -> str:
    return _of_specifiers(value) or (
        "" if "%" in value or _NAME.fullmatch(value) else "is no name of a user or group"
    )


def _of_place(value: str) -> str:
    path = value.removeprefix("-")
    is_known = path.startswith(("/", "%")) or path == "~"
    return _of_specifiers(value) or ("" if is_known and ".." not in path.split("/") else "is no path")


def _of_pid_file(value: str) -> str:
    return _of_specifiers(value) or ("is no path" if ".." in value.split("/") else "")
