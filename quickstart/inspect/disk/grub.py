"""Find the default entry in a configuration that grub-mkconfig has written (GRUB manual, "Simple configuration")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_MOST_LINES = 20_000
_DEFAULT = re.compile(r"""^\s*set\s+default=(?:"([^"]*)"|'([^']*)'|(\S*))\s*$""")
_BLOCK = re.compile(r"^\s*(menuentry|submenu|function)\s.*\{\s*$")
_TITLE = re.compile(r"""^\s*(?:menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)"|(\S+))""")
_ID = re.compile(r"""\s(?:\$\{?menuentry_id_option\}?|--id)\s+(?:'([^']*)'|"([^"]*)"|([^\s{]+))""")
_KERNEL = re.compile(r"^\s*linux(?:16|efi)?\s+(\S+)\s*(.*?)\s*$")
_INITRD = re.compile(r"^\s*initrd(?:16|efi)?\s+(.*?)\s*$")
_SAVED = ("${saved_entry}", "$saved_entry")


@dataclass(frozen=True, kw_only=True)
class GrubEntry:
    """An entry that starts a kernel. ``kernel`` and ``initramfs`` are paths as GRUB sees them, relative to the file
    system of its configuration.
    """

    title: str
    identifier: str
    kernel: str
    initramfs: tuple[str, ...]
    command_line: str


_NO_ENTRY = GrubEntry(title="", identifier="", kernel="", initramfs=(), command_line="")


def default_entry(config: str, environment: bytes) -> GrubEntry | None:
    """The entry that GRUB starts when nobody presses a key. ``environment`` is the environment block, which names the
    entry when the configuration says ``saved``.

    None when the default is an expression, or names no entry of the first level, because this module does not
    understand such a menu.
    """
    entries = list(_entries(config))
    wanted = _default(config)
    if wanted in _SAVED:
        wanted = _saved(environment) or "0"
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 3:
        number = int(wanted)
        return entries[number] if number < len(entries) else None
    return next((each for each in entries if wanted in (each.identifier, each.title)), None)


def _default(config: str) -> str:
    """The last literal value of `default`: grub-mkconfig sets the variable to `next_entry` before, for one boot."""
    found = [_first(match) for match in map(_DEFAULT.match, config.splitlines()) if match]
    plain = [each for each in found if "next_entry" not in each]
    return plain[-1] if plain else "0"


def _saved(environment: bytes) -> str:
    for line in environment.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key == "saved_entry":
            return value
    return ""


def _entries(config: str) -> Iterator[GrubEntry]:
    """The entries of the first level, in the order of the file. GRUB counts a submenu, too; it is an entry without
    a kernel here.
    """
    blocks: list[str] = []
    entry = _NO_ENTRY
    for count, line in enumerate(config.splitlines()):
        if count == _MOST_LINES:
            return
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
    if match := _KERNEL.match(line):
        return replace(entry, kernel=match[1], command_line=match[2])
    if match := _INITRD.match(line):
        return replace(entry, initramfs=tuple(match[1].split()))
    return entry


def _first(match: re.Match[str] | None) -> str:
    return next(filter(None, match.groups()), "") if match else ""
