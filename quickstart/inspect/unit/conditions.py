"""Convert the Condition…= and Assert…= directives of [Unit] (systemd.unit(5)) into records for the starter, the program
that starts the unit before systemd runs. When the machine starts, the starter checks these conditions on the root
volume.

The conditions were true in the reference boot, but the volume or the machine may have changed. Init must not start a
unit early that systemd would not start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.unit.words import Names
from quickstart.parse.bounded import PATH_MAX
from quickstart.parse.printable import brief

Record = tuple[str, ...]

# A pattern that stands for more is refused. A path has at most 4096 bytes, and a pattern with braces is not much
# longer.
_MOST_ALTERNATIVES = 64
_MOST_CHARACTERS = 2 * PATH_MAX
_INNERMOST = re.compile(r"\{([^{}]*)\}")

# Conditions on paths, which the starter checks (starter/conditions.c).
_OF_PATHS = frozenset(
    {
        *("PathExists", "PathExistsGlob", "PathIsDirectory", "PathIsSymbolicLink", "PathIsReadWrite"),
        *("DirectoryNotEmpty", "FileNotEmpty", "FileIsExecutable"),
    }
)
# These conditions were true in the reference boot, and so are on every machine that has this image and its kernel, for the
# system's own manager. Of several triggering ones, any may have been false.
_ALWAYS = frozenset({"Architecture", "Capability", "KernelVersion"})
_ALWAYS_WITH = {
    "Architecture": ("x86-64", "native"),
    "Virtualization": ("!container",),
    # Init boots the stock way where SELinux or SMACK is on (docs/internals/guest.md).
    "Security": ("!selinux", "!smack"),
    "User": ("root", "0", "@system"),
    "Group": ("root", "0"),
}
_LATE = ("/run/", "/var/run/", "/dev/", "/sys/")
_FIRMWARE = "/sys/firmware/"
_HINT = "what it asks for is known only when systemd runs; see docs/internals/starter.md"


@dataclass(frozen=True)
class _Condition:
    kind: str
    word: str
    negated: bool
    triggers: bool


def condition_records(unit: str, assigned: tuple[tuple[str, str], ...]) -> tuple[Record, ...]:
    """A record `unit-condition LIST KIND NEGATED TRIGGERS PATH [PATTERN…]` for each condition on a path in
    ``assigned``, the assignments of [Unit]. The starter, which starts the unit early, reads these records. LIST is
    `Condition` or `Assert`, and KIND is the rest of the directive's name, such as `PathExists`. NEGATED and TRIGGERS
    are `yes` or `no`. TRIGGERS is `yes` when the value begins with `|`. If a list has conditions with TRIGGERS `yes`,
    at least one of these conditions must be true. After a PATH with braces come the patterns that the PATH stands for.
    A condition that is true on every machine gives no record.

    Raises UnsupportedUnitError with the name of a condition that cannot be checked before systemd runs.
    """
    found: list[Record] = []
    for what in ("Condition", "Assert"):
        conditions = _of_list(what, assigned)
        is_triggered = any(each.triggers and _holds_always(each) for each in conditions)
        for each in conditions:
            if not _holds_always(each) and not (each.triggers and is_triggered):
                found.append(_record(unit, what, each))
    return tuple(found)


def _of_list(what: str, assigned: tuple[tuple[str, str], ...]) -> list[_Condition]:
    """The conditions of one list (``what`` is Condition or Assert), in order. An empty assignment to any
    condition clears the whole list.
    """
    found: list[_Condition] = []
    for name, value in assigned:
        if not name.startswith(what):
            continue
        if not value:
            found.clear()
            continue
        word = value.removeprefix("|")
        plain = word.removeprefix("!")
        # systemd takes a blank as a character of the path, also behind `|` and `!`.
        found.append(_Condition(name.removeprefix(what), plain, plain != word, value.startswith("|")))
    return found


def _holds_always(condition: _Condition) -> bool:
    value = f"{'!' if condition.negated else ''}{condition.word}"
    if condition.kind in _ALWAYS and not condition.triggers:
        return True
    return value in _ALWAYS_WITH.get(condition.kind, ())


def _record(unit: str, what: str, condition: _Condition) -> Record:
    sign = "!" if condition.negated else ""
    said = f"{what}{condition.kind}={sign}{brief(condition.word)}"
    refusal = UnsupportedUnitError(f"{unit} cannot be started early: it has {said}", hint=_HINT)
    if condition.kind not in _OF_PATHS:
        raise refusal
    path = Names(unit).expand(condition.word)
    alternatives = braces_expanded(path) if condition.kind == "PathExistsGlob" else (path,)
    # The files of systemd, of devices and of drivers do not exist yet, whether they have to or must not.
    is_late = any(each.startswith(_LATE) and not each.startswith(_FIRMWARE) for each in alternatives)
    # systemd leaves out a condition on a path with `..`.
    is_plain = all(each.startswith("/") and ".." not in each.split("/") for each in alternatives)
    # glob(3) of init's C library finds `.` and `..` by such a pattern, and systemd does not.
    has_dots = condition.kind == "PathExistsGlob" and any(
        re.search(r"/\.[^/]*[*?\[]", each) for each in alternatives
    )
    if is_late or not alternatives or not is_plain or has_dots:
        raise refusal
    return (
        "unit-condition", what, condition.kind, "yes" if condition.negated else "no",
        "yes" if condition.triggers else "no", path, *(alternatives if alternatives != (path,) else ()),
    )  # fmt: skip


def braces_expanded(pattern: str) -> tuple[str, ...]:
    """The patterns without braces that ``pattern`` stands for. The braces are expanded as by glob(3) with GLOB_BRACE.
    systemd uses this flag, but init's C library lacks it.

    The result is empty when ``pattern`` is too long or stands for too many patterns. The result is also empty when
    ``pattern`` has braces together with a backslash, a brace without its counterpart, or an empty pair of braces.
    glob(3) does not define the meaning of such a pattern.
    """
    if not {"{", "}"} & set(pattern):
        return (pattern,)
    if "\\" in pattern or "{}" in pattern or len(pattern) > _MOST_CHARACTERS:
        return ()
    left, expanded = [pattern], []
    while left:
        present = left.pop()
        group = _INNERMOST.search(present)
        if group is None:
            expanded.append(present)
        else:
            before, after = present[: group.start()], present[group.end() :]
            left += [f"{before}{each}{after}" for each in reversed(group[1].split(","))]
        if len(left) + len(expanded) > _MOST_ALTERNATIVES or {"{", "}"} & set("".join(expanded)):
            return ()
    return tuple(dict.fromkeys(expanded))
