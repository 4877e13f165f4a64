"""Find AppArmor profiles that attach to programs by their paths (apparmor.d(5)).

A service of the distribution loads the profiles during the boot. A process that starts earlier stays unconfined.
Moreover, a program that is started from /fast (the directory of packed files in memory) has a path that the program's
profile does not name. So the build refuses the early start of a program to which a profile attaches.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS
from quickstart.inspect.unit.pulled import is_started
from quickstart.parse.printable import brief, command

PARSER = PurePosixPath("/usr/sbin/apparmor_parser")
_PROFILES = PurePosixPath("/etc/apparmor.d")
_DISABLED = _PROFILES / "disable"
# Directories with parts that profiles share. Packages put no profiles there, and every upgrade of a package may
# change these parts.
_FRAGMENTS = ("abstractions", "abi", "local", "tunables")
# Of these directories, the ones in which the administrator sets variables.
_MEANING = ("local", "tunables")
_SERVICE = "apparmor.service"
# Endings of file names that the parser ignores in a directory (rc.apparmor.functions, skip_profile).
_SKIPPED = (".rpmnew", ".rpmsave", ".orig", ".rej", "~", ".pacsave", ".pacnew")
# The parser splits a profile's head into words. The head may have several lines, with comments at their ends.
_TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[()]|[^\s"()]+')
# An include, with or without a number sign. A file that a comment only seems to include is read as well, and changes
# nothing.
_INCLUDE = re.compile(r'#?include[ \t]+(?:if[ \t]+exists[ \t]+)?(?:<([^<>\n]+)>|"([^"\n]+)"|(/\S+))')
_VARIABLE = re.compile(r"@\{([A-Za-z0-9_]+)\}")
_SET = re.compile(r"^[ \t]*@\{([A-Za-z0-9_]+)\}[ \t]*\+?=(.*)$", re.MULTILINE)
_INNERMOST = re.compile(r"\{([^{}]*)\}")
_WILD = re.compile(r"[]*?\[{}\\]")
# A variable that is not set here, or that stands for too many values, means any path.
_ANYTHING = "**"
_MOST_MEANT = 64
_MAX_PATTERN_CHARACTERS = 4096
# The limit for all patterns to which one attachment is expanded, with the intermediate ones.
_MOST_MEANT_CHARACTERS = 64 << 10
# The limit for the patterns of all attachments that init gets.
_MAX_PACKED_CHARACTERS = 1 << 20
# Ubuntu's largest set of profiles has some hundred profiles and attachments.
_MAX_PROFILES, _MAX_TEXT_CHARACTERS, _MAX_ATTACHMENTS = 4096, 1 << 22, 4096


def profile_places(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The directories, existing or not, whose entries decide which programs AppArmor confines. The result is empty when
    the image lacks the AppArmor parser, which is the program that loads profiles. If the parser is installed later, it
    loads no profiles until AppArmor's service is enabled.
    """
    if root.resolve(PARSER).canonical is not None:
        yield from (_PROFILES, _DISABLED)
        profiles = _with_included(root, _Reader(root))
        parents = {file.parent for file, _ in profiles.values()}
        yield from sorted(
            parent for parent in parents if parent.relative_to("/").parts[:2] != _PROFILES.parts[1:]
        )
        below = (parent for parent in parents if parent != _PROFILES and _PROFILES in parent.parents)
        # These files set the variables. With another value, a profile may attach to another program.
        meaning = tuple(_variables_places(root, profiles))
        fragments = set(_FRAGMENTS) - {place.relative_to(_PROFILES).parts[0] for place in meaning}
        yield from meaning
        yield from sorted(
            parent
            for parent in below
            if parent.relative_to(_PROFILES).parts[0] not in fragments and parent not in meaning
        )


def _variables_places(
    root: ImageRoot, profiles: Mapping[str, tuple[PurePosixPath, str]]
) -> Iterator[PurePosixPath]:
    """The directories whose files define the variables in the profiles' attachments. An attachment is the pattern of
    the paths of the programs that a profile confines. The result is empty when no attachment has a variable. The result
    has the directories ``local`` and ``tunables`` even if they do not exist.
    """
    if any("@{" in each for _, text in profiles.values() for each in attachments(text)):
        yield from (_PROFILES / name for name in _MEANING)
        yield from root.glob(_PROFILES / "tunables/*.d")


def refuse_profiles(root: ImageRoot, unit: str, programs: Iterable[PurePosixPath]) -> None:
    """Raise UnsupportedUnitError when the image loads a profile that attaches to one of ``programs``."""
    if root.resolve(PARSER).canonical is None or not _is_enabled(root):
        return
    wanted = sorted({each for path in programs for each in (path, root.resolve(path).canonical or path)})
    for name, attachment, values in _attachments(root, unit):
        meant = [_WILD.split(re.sub("//+", "/", each)) for each in _meant(attachment, values)]
        found = next((path for path in wanted if any(_may_be(each, str(path)) for each in meant)), None)
        if found is not None:
            without = command("ln", "-s", str(_PROFILES / name), f"{_DISABLED}/")
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: AppArmor's profile {brief(str(_PROFILES / name))} confines {found},"
                " and is loaded later",
                hint=f"`{without}` in the image goes without it" if without else None,
            )


def confined_paths(root: ImageRoot) -> bytes:
    """The patterns of the paths to which the image's profiles attach, one pattern per line, sorted. A pattern is either
    a path, or the beginning and the end of a path with one star between them. The result is empty when the image loads
    no profiles.

    ``refuse_profiles`` checks only the programs that ran in the reference boot. With another configuration, the
    application may start other programs. So at each hand-off to systemd, init compares the paths of the programs that
    run at that time with the patterns that this function returns (initramfs/caretaker/confined.c). Raises
    UnsupportedUnitError for more than 1 MiB of patterns.
    """
    if root.resolve(PARSER).canonical is None or not _is_enabled(root):
        return b""
    found: set[str] = set()
    left = _MAX_PACKED_CHARACTERS
    for _, attachment, values in _attachments(root, _SERVICE):
        for each in _meant(attachment, values):
            plain = _WILD.split(re.sub("//+", "/", each))
            pattern = plain[0] if len(plain) == 1 else f"{plain[0]}*{plain[-1]}"
            if pattern not in found:
                found.add(pattern)
                left -= len(pattern) + 1
            if left < 0:
                raise UnsupportedUnitError(
                    f"{_PROFILES} confines more paths than {_MAX_PACKED_CHARACTERS} characters, the last is {brief(each)}"
                )
    return b"".join(os.fsencode(f"{each}\n") for each in sorted(found))


Values = Mapping[str, Sequence[str]]


def _attachments(root: ImageRoot, unit: str) -> Iterator[tuple[str, str, Values]]:
    """Each attachment in the image's profiles, as (file name, attachment, variables that are defined for this file). An
    attachment is the pattern of the paths of the programs that a profile confines.
    """
    count = 0
    shared: dict[str, list[str]] = {}
    reader = _Reader(root)
    profiles = _with_included(root, reader)
    for _, file in (row for each in ("tunables/*", "tunables/*.d/*") for row in _plain(root, each)):
        _add_variables(shared, {}, reader.text(file))
    for name, (_, text) in profiles.items():
        # Only the variables that the file itself sets are copied, because there may be thousands of variables and of
        # files.
        own: dict[str, list[str]] = {}
        _add_variables(own, shared, text)
        values = ChainMap(own, shared)
        for attachment in attachments(text):
            count += 1
            if count > _MAX_ATTACHMENTS:
                raise UnsupportedUnitError(f"{unit}: {_PROFILES} has more than {_MAX_ATTACHMENTS} profiles")
            yield name, attachment, values


def attachments(text: str) -> tuple[str, ...]:
    """The paths, with wildcards and variables, to which the profiles in ``text`` attach."""
    found: list[str] = []
    # The last words, the very last one at the end.
    first = before = last = ""
    inside = False
    for word in _TOKEN.findall(text):
        kind = word[0]
        if kind == "(":
            inside = True
            # What it is a list of: flags=, xattrs =.
            if last == "=":
                last = first
            elif last.endswith("="):
                before, last = first, before
        elif kind == ")":
            inside = False
        elif kind in "{}":
            if kind == "{" and _attaches(before, last):
                found.append(last.strip('"'))
            inside = False
            rest = word.lstrip("{}")
            first, before, last = "", "", rest if rest[:1] in ("/", "@") else word
        elif kind != "#" and not inside:
            first, before, last = before, last, word
    return tuple(found)


def _attaches(before: str, last: str) -> bool:
    """Whether ``last``, the last word before an opening brace, is a path to which a profile attaches. Otherwise, the
    word may be the variable of a condition. ``before`` is the word before ``last``.
    """
    is_condition = last.startswith("@{") and before in ("if", "defined", "not")
    return last.lstrip('"')[:1] in ("/", "@", "{", "*") and last not in ("{", "{}") and not is_condition


def _is_enabled(root: ImageRoot) -> bool:
    own = PurePosixPath(UNIT_PATHS[1])
    if root.link_target(own / _SERVICE) == "/dev/null":
        return False
    links = (root.glob(PurePosixPath(place) / f"*.wants/{_SERVICE}") for place in UNIT_PATHS)
    return any(True for found in links for _ in found) or is_started(root, _SERVICE)


def _profiles(root: ImageRoot) -> Iterator[tuple[str, PurePosixPath]]:
    disabled = root.resolve(_DISABLED).canonical
    off = set(root.names(disabled)) if disabled is not None else set()
    for name, file in _plain(root, "*"):
        if name not in off and not name.endswith(_SKIPPED):
            yield name, file


@dataclass
class _Reader:
    """Reads files of profiles. Raises UnsupportedUnitError when the files together have more text than the limit
    allows. There is a limit because many names may be links to one long file.
    """

    root: ImageRoot
    left: int = _MAX_TEXT_CHARACTERS

    def text(self, file: PurePosixPath) -> str:
        text = self.root.read_text(file)
        self.left -= len(text)
        if self.left < 0:
            raise UnsupportedUnitError(
                f"{_PROFILES} has more than {_MAX_TEXT_CHARACTERS} characters, the last file read is {file}"
            )
        return text


def _with_included(root: ImageRoot, reader: _Reader) -> Mapping[str, tuple[PurePosixPath, str]]:
    """The AppArmor profiles and all files that they include, each with its text. The key is the name relative
    to /etc/apparmor.d. An included file may contain complete profiles.
    """
    found: dict[str, tuple[PurePosixPath, str]] = {}
    included: set[str] = set()
    left = list(_profiles(root))
    while left and len(found) <= _MAX_PROFILES:
        name, file = left.pop()
        if name in found:
            continue
        found[name] = file, reader.text(file)
        # Most profiles include the same files.
        targets = set(map("".join, _INCLUDE.findall(found[name][1]))) - included
        included |= targets
        if len(included) > _MAX_PROFILES:
            raise UnsupportedUnitError(f"{_PROFILES} includes more than {_MAX_PROFILES} files by their names")
        for target in sorted(targets):
            path = _PROFILES / target
            place = root.resolve(path).canonical
            if place is not None and root.host(place).is_dir():
                left += [(f"{target}/{below}", inside) for below, inside in _plain(root, f"{target}/*")]
            elif place is not None and root.host(place).is_file():
                left.append((target, place))
    return found


def _plain(root: ImageRoot, pattern: str) -> Iterator[tuple[str, PurePosixPath]]:
    """The regular files below /etc/apparmor.d that match ``pattern``, as (name, canonical path)."""
    for path in root.glob(_PROFILES / pattern)[:_MAX_PROFILES]:
        file = root.resolve(path).canonical
        if file is not None and root.host(file).is_file():
            yield path.name, file


def _add_variables(values: dict[str, list[str]], shared: Values, text: str) -> None:
    """Add to ``values`` the variables that the text ``text`` of a profile sets. If ``values`` does not have a variable
    yet, the variable begins with its words in ``shared``. If a variable has too many words, the function keeps only one
    word more than the limit. If a word is too long, the function keeps only one character more than the limit. So a
    later step still sees that the limit is exceeded.
    """
    for name, words in _SET.findall(text.replace("\\\n", " ")):
        known = values.get(name)
        if known is None:
            known = values[name] = [*shared.get(name, ())]
        if len(known) <= _MOST_MEANT:
            more = words.partition("#")[0].split(maxsplit=_MOST_MEANT + 1)[: _MOST_MEANT + 1]
            known += [word.strip('"')[: _MAX_PATTERN_CHARACTERS + 1] for word in more]


def _meant(attachment: str, values: Values) -> list[str]:
    """The patterns that ``attachment`` stands for, with variables and alternatives expanded. A variable that no
    file defines stands for any path. When there are too many patterns, the result is one pattern that matches
    any path.
    """
    done: list[str] = []
    left, left_characters = [attachment], _MOST_MEANT_CHARACTERS
    for _ in range(_MOST_MEANT):
        if not left:
            return done
        each = left.pop()
        if len(each) > _MAX_PATTERN_CHARACTERS:
            break
        if variable := _VARIABLE.search(each):
            found, words = variable, values.get(variable[1]) or (_ANYTHING,)
        elif alternatives := _INNERMOST.search(each):
            found, words = alternatives, alternatives[1].split(",")
        else:
            done.append(each)
            continue
        left_characters -= sum(map(len, words)) + len(words) * len(each)
        if len(words) > _MOST_MEANT or left_characters < 0:
            break
        left += [f"{each[: found.start()]}{word}{each[found.end() :]}" for word in words]
    return [_ANYTHING]


def _may_be(plain: Sequence[str], path: str) -> bool:
    """Whether a pattern may match ``path``. ``plain`` has the texts before, between and after the pattern's wildcards.
    The function only checks that ``path`` begins with the first text and ends with the last text. So the result may be
    true for a path that does not match.
    """
    return path == plain[0] if len(plain) == 1 else path.startswith(plain[0]) and path.endswith(plain[-1])
