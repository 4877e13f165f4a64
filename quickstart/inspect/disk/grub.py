"""Find the default entry in a configuration of GRUB that grub-mkconfig has written (GRUB manual, "Simple
configuration").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_MOST_LINES = 20_000
# The kernel takes 2 KiB of a command line (COMMAND_LINE_SIZE of x86), and grub-mkconfig writes no longer lines.
_MOST_CHARACTERS = 4096
_DEFAULT = re.compile(r"""^\s*set\s+default=(?:"([^"]*)"|'([^']*)'|(\S*))\s*$""")
_BLOCK = re.compile(r"^\s*(menuentry|submenu|function)\s.*\{\s*$")
_TITLE = re.compile(r"""^\s*(?:menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)"|(\S+))""")
_ID = re.compile(r"""\s(?:\$\{?menuentry_id_option\}?|--id)\s+(?:'([^']*)'|"([^"]*)"|([^\s{]+))""")
_KERNEL = ("linux", "linux16", "linuxefi")
_INITRD = ("initrd", "initrd16", "initrdefi")
_SAVED = ("${saved_entry}", "$saved_entry")
# Where image/targets/disk/42_quickstart has written to the configuration, this is not the system's own default.
_OF_QUICKSTART = "quickstart"


@dataclass(frozen=True, kw_only=True)
class GrubEntry:
    """An entry of GRUB's menu that starts a kernel. ``kernel`` and ``initramfs`` are paths as GRUB sees them. Both
    paths are relative to the root of the file system that has GRUB's configuration.
    """

    title: str
    identifier: str
    kernel: str
    initramfs: tuple[str, ...]
    command_line: str


_NO_ENTRY = GrubEntry(title="", identifier="", kernel="", initramfs=(), command_line="")


def default_entry(config: str, environment: bytes) -> GrubEntry | None:
    """The entry that GRUB starts when nobody presses a key. ``environment`` is the content of GRUB's environment
    block. When the configuration's default is ``saved_entry``, the environment block names the entry.

    The result is None when this module does not understand the menu. This is the case when the configuration's default
    is an expression, or is not an entry of the menu's first level. It is also the case when the configuration has more
    lines or longer lines than grub-mkconfig writes.
    """
    lines = config.splitlines()
    if len(lines) > _MOST_LINES or any(len(line) > _MOST_CHARACTERS for line in lines):
        return None
    entries = list(_entries(lines))
    wanted = _default(lines)
    if wanted in _SAVED:
        wanted = _saved(environment) or "0"
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 3:
        number = int(wanted)
        return entries[number] if number < len(entries) else None
    return next((each for each in entries if wanted in (each.identifier, each.title)), None)


def _default(lines: Sequence[str]) -> str:
    """The last literal value that the configuration gives to the variable `default`. Lines with `next_entry` do not
    count, because `next_entry` is the default of only one boot. A line that makes QuickStart's own entry the default
    does not count either, because QuickStart's script in GRUB's configuration chooses this entry anew in each boot.
    """
    found = [_first(match) for match in map(_DEFAULT.match, lines) if match]
    plain = [each for each in found if "next_entry" not in each and each != _OF_QUICKSTART]
    return plain[-1] if plain else "0"


def _saved(environment: bytes) -> str:
    for line in environment.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key == "saved_entry":
            return value
    return ""


def _entries(lines: Sequence[str]) -> Iterator[GrubEntry]:
    """The entries of the menu's first level, in the order of the file. A submenu counts as an entry, because GRUB also
    counts submenus as entries. In the result, a submenu is an entry without a kernel.
    """
    blocks: list[str] = []
    entry = _NO_ENTRY
    for line in lines:
        match = _BLOCK.match(line)
        if match:
            if not blocks:
                entry = replace(
                    _NO_ENTRY, title=_first(_TITLE.match(line)), identifier=_first(_ID.search(line))
                )
            blocks.append(match[1])
        elif line.strip() == "}" and blocks:
            kind = blocks.pop()
            if not blocks and kind != "function":
                yield entry
        elif blocks == ["menuentry"]:
            entry = _with_line(entry, line)


def _with_line(entry: GrubEntry, line: str) -> GrubEntry:
    # Not a regular expression: around a text with blanks, it would look for the text's end at each of them.
    word, kernel, *rest = (*line.split(None, 2), "", "")
    if word in _KERNEL and kernel:
        return replace(entry, kernel=kernel, command_line=rest[0].rstrip())
    if word in _INITRD:
        return replace(entry, initramfs=tuple(line.split()[1:]))
    return entry


def _first(match: re.Match[str] | None) -> str:
    return next(filter(None, match.groups()), "") if match else ""
