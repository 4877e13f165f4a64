"""Parse the Exec…= lines of a unit into prefixes, program and words (systemd.service(5), "Command Lines")."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitCommand
from quickstart.inspect.unit.words import SEPARATOR, Names, split_words
from quickstart.parse.printable import brief

_PREFIXES = "@-:+!|"
# Where systemd looks for a program without a path (ExecSearchPath=).
_SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# These commands only change the environment block of systemd, which does not run yet, so they are not needed.
_FORGETS = re.compile(r"(?:\S*/)?systemctl\s+unset-environment(?:\s+\w+)+\s*;?")
# Before the hand-off no unit has failed. Without the prefix `-`, the command fails for a unit that is not loaded.
_RESETS = re.compile(r"(?:\S*/)?systemctl\s+reset-failed(?:\s+[\w@.:-]+)*")
# Each command has a process of its own. No unit has a tenth of this number.
_MAX_COMMANDS = 256
_MENTIONS = re.compile(r"(?<![\w-])systemctl(?![\w-])")
_STARTS_CONTAINERS = "starts containers, whose limits come from systemd"
# Before the hand-off, these commands work, but in another way. A container's runtime looks for systemd as PID 1, a
# profile of AppArmor attaches to a program's ordinary path, and udev has not seen any device.
_ELSEWHERE = {
    re.compile(r"(?<![\w-])(?:podman|nerdctl)(?![\w-])"): _STARTS_CONTAINERS,
    # The word counts as a program or a command of a script, and not as the name of a group or directory.
    # containers.py has the rule for dockerd.
    re.compile(
        r"/s?bin/docker(?:-compose)?(?=$|\s)|(?:^|[;&|({]\s{0,8}|\b(?:exec|env)\s{1,8})docker(?:-compose)?\s"
    ): _STARTS_CONTAINERS,
    re.compile(r"(?<![\w-])(?:apparmor_parser|aa-exec)(?![\w-])"): "confines programs by their ordinary path",
    re.compile(r"(?<![\w-])udevadm(?![\w-])"): "asks udev, which comes with systemd",
}


def parse_commands(unit: str, line: str, root: ImageRoot | None = None) -> tuple[UnitCommand, ...]:
    """The commands in the value of an Exec…= line. A `;` that is a word by itself separates two commands.

    The function looks up a program without a path in the image ``root``. Raises UnsupportedUnitError for an invalid
    command, and for a command that only systemd can run.
    """
    found: list[UnitCommand] = []
    words: list[str] = []
    for word in [*split_words(unit, line), f"{SEPARATOR}\0"]:
        if word != f"{SEPARATOR}\0":
            words.append(word)
        elif words:
            if len(found) >= _MAX_COMMANDS:
                raise UnsupportedUnitError(f"{unit}: `{brief(line)}` has more than {_MAX_COMMANDS} commands")
            found.append(_command(unit, line, words, root))
            words = []
    return tuple(found)


def _command(unit: str, line: str, words: list[str], root: ImageRoot | None) -> UnitCommand:
    first = words[0].lstrip(_PREFIXES)
    prefixes = words[0][: len(words[0]) - len(first)]
    if (
        {"+", "!"} <= set(prefixes)
        or "|" in prefixes
        or "!!" in prefixes
        or any(prefixes.count(each) > 1 for each in _PREFIXES)
    ):
        raise UnsupportedUnitError(
            f"{unit}: the prefix of `{brief(line)}` cannot be repeated without systemd"
        )
    names = Names(unit)
    expanded = [names.expand(word) for word in (first, *words[1:])]
    if any("\0" in word for word in expanded):
        raise UnsupportedUnitError(f"{unit}: `{brief(line)}` has a NUL")
    program = _program(unit, line, expanded[0], root)
    argv = expanded[1:] if "@" in prefixes else expanded
    if not argv:
        raise UnsupportedUnitError(f"{unit}: `{brief(line)}` has the prefix @ but no name")
    return UnitCommand(program, tuple(argv), "".join(sorted(set(prefixes) - {"@"})))


def _program(unit: str, line: str, name: str, root: ImageRoot | None) -> str:
    if name.startswith("/"):
        return name
    for directory in _SEARCHED if root is not None and name and "/" not in name else ():
        path = PurePosixPath(directory) / name
        if root is not None and root.resolve(path).canonical is not None:
            return str(path)
    raise UnsupportedUnitError(f"{unit}: `{brief(line)}` does not begin with an absolute path")


def is_needless_early(command: UnitCommand) -> bool:
    """Whether an early start can leave out the command, because the command has no effect before the hand-off to
    systemd. There are two such commands. `systemctl unset-environment` removes variables from systemd's environment
    block. `systemctl reset-failed` with the prefix ``-`` makes systemd forget failed starts.
    """
    words = command.words
    if "-" in command.flags and _RESETS.fullmatch(" ".join(words)):
        return True
    if PurePosixPath(words[0]).name in ("sh", "bash", "dash") and len(words) == 3 and words[1] == "-c":
        return _FORGETS.fullmatch(words[2].strip()) is not None
    return _FORGETS.fullmatch(" ".join(words)) is not None


def refuse_command(unit: str, name: str, command: UnitCommand) -> None:
    """Raise UnsupportedUnitError for a command that needs another process than its own. For example, systemctl needs
    systemd, which does not run before the hand-off. The function also refuses programs such as container runtimes and
    AppArmor tools, which would do something else in an early start than under systemd. The table ``_ELSEWHERE`` lists
    these programs.
    """
    if any(_MENTIONS.search(word) for word in (command.program, *command.words)):
        raise UnsupportedUnitError(
            f"{unit}: {name} calls systemctl, which has no systemd to speak to before the hand-off",
            hint=_hint(name),
        )
    if why := next(filter(None, map(why_elsewhere, (command.program, *command.words))), ""):
        raise UnsupportedUnitError(f"{unit} cannot be started early: {name} {why}", hint=_hint(name))


def why_elsewhere(word: str) -> str:
    """The reason for an error message, if ``word`` mentions a program that would do something else before the hand-off
    to systemd than under systemd. Otherwise the result is empty.
    """
    return next((why for pattern, why in _ELSEWHERE.items() if pattern.search(word)), "")


def _hint(name: str) -> str:
    if name == "ExecStartPre":
        return "`pre = false` in the profile's [start] leaves ExecStartPre out"
    if name == "ExecStart":
        return "name the unit of another service in the profile; this one starts as in a stock boot"
    return f"take this command out of {name} in a drop-in of the image, or name another unit in the profile"
