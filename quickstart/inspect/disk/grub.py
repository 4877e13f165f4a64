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
_HEADER = re.compile(r"^\s*(?:menuentry|submenu)\s")
_TITLE = re.compile(r"""^\s*(?:menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)"|(\S+))""")
_ID = re.compile(r"""\s(?:\$\{?menuentry_id_option\}?|--id)\s+(?:'([^']*)'|"([^"]*)"|([^\s{]+))""")
_FUNCTION = "function"
_KERNEL = ("linux", "linux16", "linuxefi")
_INITRD = ("initrd", "initrd16", "initrdefi")
# Commands that may add entries to the menu, which are not in the configuration, or that start a system.
_ADDING = frozenset(
    (
        *("menuentry", "submenu", "boot", "source", ".", "configfile", "for", "while", "until"),
        *("eval", "normal", "blscfg"),
        *("extract_entries_source", "extract_entries_configfile", "legacy_source", "legacy_configfile"),
        *("extract_legacy_entries_source", "extract_legacy_entries_configfile"),
        *("syslinux_source", "syslinux_configfile"),
        *("extract_syslinux_entries_source", "extract_syslinux_entries_configfile"),
    )
)
_VALUE = re.compile(r"\$\{[^}]*\}")
_END_OF_COMMAND = re.compile(r"[;|&{}]")
_BEFORE_COMMAND = frozenset((";", "if", "then", "elif", "else", "while", "until", "do", "!"))
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PUT_TOGETHER = frozenset("\"'\\$")
_SAVED = ("${saved_entry}", "$saved_entry")
# Where image/targets/disk/42_quickstart has written to the configuration, this is not the system's own default.
_OF_QUICKSTART = "quickstart"


@dataclass(frozen=True, kw_only=True)
class GrubEntry:
    """An entry of GRUB's menu that starts a kernel. ``kernel`` and ``initramfs`` are paths as GRUB sees them. Both
    paths are relative to the root of the file system that has GRUB's configuration. ``is_guarded`` says that a
    condition decides whether the entry is in the menu, or which of its kernel lines counts. It also says that a command
    before the entry may add other entries.
    """

    title: str
    identifier: str
    kernel: str
    initramfs: tuple[str, ...]
    command_line: str
    is_guarded: bool = False


_NO_ENTRY = GrubEntry(title="", identifier="", kernel="", initramfs=(), command_line="")


def default_entry(config: str, environment: bytes) -> GrubEntry | None:
    """The entry that GRUB starts when nobody presses a key. ``environment`` is the content of GRUB's environment
    block. When the configuration's default is ``saved_entry``, the environment block names the entry.

    The result is None when this module does not understand the menu. This is the case when the configuration's default
    is an expression, when the configuration has several defaults, or when the default is not an entry of the menu's
    first level. It is also the case when a condition decides whether the default entry, or an entry before a default
    that is given as a number, is in the menu, or which kernel line of the entry counts. It is the case when a command
    before the default entry may add entries, for example from another file. Finally, it is the case when an entry is
    written in another form than by grub-mkconfig, or when the configuration has more lines or longer
    lines than grub-mkconfig writes.
    """
    lines = config.splitlines()
    if len(lines) > _MOST_LINES or any(len(line) > _MOST_CHARACTERS for line in lines):
        return None
    if any(_HEADER.match(line) and not _BLOCK.match(line) for line in lines):
        return None
    entries = list(_entries(lines))
    defaults = _defaults(lines)
    if len(defaults) > 1:
        return None
    wanted = next(iter(defaults), "0")
    if wanted in _SAVED:
        wanted = _saved(environment) or "0"
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 3:
        number = int(wanted)
        before = entries[: number + 1]
        return (
            before[number] if number < len(before) and not any(each.is_guarded for each in before) else None
        )
    if wanted[:1].isdecimal():
        # GRUB takes such a name for the number at its beginning.
        return None
    entry = next((each for each in entries if wanted in (each.identifier, each.title)), None)
    return entry if entry and not entry.is_guarded else None


def _defaults(lines: Sequence[str]) -> frozenset[str]:
    """The literal values that the configuration gives to the variable `default`. Lines with `next_entry` do not count,
    because `next_entry` is the default of only one boot. A line that makes QuickStart's own entry the default does not
    count either, because QuickStart's script in GRUB's configuration chooses this entry anew in each boot.
    """
    found = (_first(match) for match in map(_DEFAULT.match, lines) if match)
    return frozenset(each for each in found if "next_entry" not in each and each != _OF_QUICKSTART)


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
    entry, conditions, is_added = _NO_ENTRY, 0, False
    for line in lines:
        words = line.split()
        if not blocks and words[:1] == ["if"] and words[-1:] == ["then"]:
            conditions += 1
        elif not blocks and words == ["fi"]:
            conditions -= 1
        match = _BLOCK.match(line)
        if set(blocks) <= {_FUNCTION} and not line.lstrip().startswith("#"):
            # Whoever calls the function adds the entries that it has.
            is_added |= bool(match and blocks and match[1] != _FUNCTION)
            is_added |= not match and _adds(line)
        if match:
            if not blocks:
                title, identifier = _first(_TITLE.match(line)), _first(_ID.search(line))
                entry = replace(
                    _NO_ENTRY, title=title, identifier=identifier, is_guarded=conditions != 0 or is_added
                )
            blocks.append(match[1])
        elif line.strip() == "}" and blocks:
            kind = blocks.pop()
            if not blocks and kind != _FUNCTION:
                yield entry
        elif blocks == ["menuentry"]:
            entry = _with_line(entry, line)


def _adds(line: str) -> bool:
    """Whether a line outside of entries has a command that may add entries, or one that starts a system. The name of a
    command may also be put together of parts. `42_quickstart` has the same rules.
    """
    words = _END_OF_COMMAND.sub(" ; ", _VALUE.sub("$v", line)).split()
    is_command, is_said = True, False
    for word in words:
        is_said = word != ";" and (is_said or (is_command and word == "echo"))
        if is_said:
            continue
        is_put_together = not _PUT_TOGETHER.isdisjoint(word) and not _ASSIGNED.match(word)
        if word in _ADDING or (is_command and is_put_together):
            return True
        is_command = word in _BEFORE_COMMAND
    return False


def _with_line(entry: GrubEntry, line: str) -> GrubEntry:
    # Not a regular expression: around a text with blanks, it would look for the text's end at each of them.
    word, kernel, *rest = (*line.split(None, 2), "", "")
    if word in _KERNEL and kernel:
        # With two lines, GRUB's variables decide which of them counts.
        is_second = entry.is_guarded or bool(entry.kernel)
        return replace(entry, kernel=kernel, command_line=rest[0].rstrip(), is_guarded=is_second)
    if word in _INITRD:
        return replace(entry, initramfs=tuple(line.split()[1:]))
    return entry


def _first(match: re.Match[str] | None) -> str:
    return next(filter(None, match.groups()), "") if match else ""
