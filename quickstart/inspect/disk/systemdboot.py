"""Find the default entry of systemd-boot's menu (systemd-boot(7), loader.conf(5), Boot Loader Specification).

The functions read the files as systemd-boot 252 does (src/boot/efi/boot.c). They refuse a menu when the default entry may
depend on something that is not in these files.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quickstart.inspect.disk.unified import INITRAMFS, KERNEL, Section, command_line, release, sections
from quickstart.parse.printable import brief

LOADER_CONF = "/loader/loader.conf"
ENTRIES = "/loader/entries/"
UNIFIED = "/EFI/Linux/"
# QuickStart's own entry is the first one, and so the default one, as long as it has tries left.
OWN_ENTRY = "quickstart"
OWN_SORT_KEY = "0-quickstart"
_ARCHITECTURE = "x64"
_BLANKS = " \t"
_SUFFIX, _EFI = ".conf", ".efi"
# Sections of a unified kernel image, and those by which it starts something else on some machines.
_RELEASE, _COMMAND_LINE = ".osrel", ".cmdline"
_OTHER_SYSTEMS = frozenset((".dtb", ".profile", ".efifw"))
_NOTHING = Section(0, 0)
# What systemd-stub(7) gives to the system in addition. An entry of ours would not.
_MORE_OF_STUB = (".extra.d/", "/loader/addons/", "/loader/credentials/")
_COUNTER = re.compile(r"\+[0-9]+(?:-[0-9]+)?$")
_MOST_CHARACTERS = 4096
# What strverscmp_improved() leaves out.
_STRANGE = re.compile(r"^[^0-9A-Za-z~^.-]+")
_DIGITS = tuple(string.digits)


@dataclass(frozen=True, kw_only=True)
class MenuEntry:
    """An entry of systemd-boot's menu that starts a kernel. ``name`` is the name of the entry's file. ``kernel`` and
    ``initramfs`` are paths in the file system that has the entry. ``is_plain`` is false when the entry starts another
    program than a kernel, or when it has a devicetree. If ``is_unified`` is true, the file is a unified kernel image,
    and ``kernel`` and ``initramfs`` are its path.
    """

    name: str
    title: str
    sort_key: str | None
    version: str
    machine_id: str
    kernel: str
    initramfs: tuple[str, ...]
    command_line: str
    is_plain: bool
    is_unified: bool = False


@dataclass(frozen=True)
class Menu:
    """What the files of systemd-boot say. ``default`` is the entry that systemd-boot starts when nobody presses a key.
    ``default`` is None when the menu has no entry, or when there are ``refusals``.
    """

    default: MenuEntry | None
    refusals: tuple[str, ...]


def read_menu(files: Mapping[str, bytes], sizes: Mapping[str, int]) -> Menu:
    """The menu on a partition. ``files`` are the small files on the partition with their contents, and ``sizes`` are the
    sizes of all files in its directories of boot loaders. The paths begin with ``/``. FAT ignores the case of names,
    and so does this function. QuickStart's own entry does not count.
    """
    folded = {path.lower(): content for path, content in files.items()}
    spelled = {path.lower(): path for path in sizes}
    present = set(spelled)
    entries, refusals = [], list(_of_loader_conf(folded.get(LOADER_CONF, b"")))
    for path in sorted(path for path in present if _is_unified(path)):
        name = path.removeprefix(UNIFIED.lower())
        try:
            image = _unified_entry(spelled[path], name, folded.get(path, b""))
        except ValueError as error:
            refusals.append(f"the unified kernel image {brief(name)} cannot be read: {error}")
            continue
        if image is not None:
            more = (
                each for each in present if each.startswith((f"{path}{_MORE_OF_STUB[0]}", *_MORE_OF_STUB[1:]))
            )
            refusals += [
                f"the unified kernel image {brief(name)} takes more from {brief(each)}"
                for each in sorted(more)[:1]
            ]
            refusals += _of_entry(image, is_counted=_COUNTER.search(name.removesuffix(_EFI)) is not None)
            entries.append(image)
    for path in sorted(path for path in present if _is_entry(path)):
        name = path.removeprefix(ENTRIES)
        if path not in folded:
            refusals.append(f"the entry {brief(name)} of systemd-boot cannot be read")
            continue
        identifier, is_counted = _identifier(name)
        if identifier == OWN_ENTRY:
            continue
        text = folded[path].decode(errors="replace")
        if any(len(line) > _MOST_CHARACTERS for line in text.splitlines()):
            refusals.append(f"the entry {brief(name)} of systemd-boot has a very long line")
            continue
        fields = dict[str, list[str]]()
        for key, value in _pairs(text):
            fields.setdefault(key, []).append(value)
        entry = _entry(name, fields, present)
        if entry is not None:
            refusals += _of_entry(entry, is_counted=is_counted)
            entries.append(entry)
    default = min(entries, key=_order, default=None)
    if default is not None and not default.is_plain:
        refusals.append(
            f"the default entry {brief(default.name)} starts a program that is no kernel, or has a devicetree"
        )
    return Menu(None if refusals else default, tuple(refusals))


def _of_entry(entry: MenuEntry, *, is_counted: bool) -> Iterator[str]:
    """The reasons to refuse a menu with this entry."""
    if is_counted:
        yield f"the entry {brief(entry.name)} of systemd-boot counts its boots"
    if entry.sort_key is not None and entry.sort_key <= OWN_SORT_KEY:
        yield f"the entry {brief(entry.name)} has the sort-key {brief(entry.sort_key)}"


def _is_unified(path: str) -> bool:
    name = path.removeprefix(UNIFIED.lower())
    return (
        path.startswith(UNIFIED.lower())
        and "/" not in name
        and name.endswith(_EFI)
        and not name.startswith((".", "auto-"))
    )


def _unified_entry(path: str, name: str, head: bytes) -> MenuEntry | None:
    """The entry for a unified kernel image, of which ``head`` is the beginning. The result is None when systemd-boot
    leaves the image out. Raises ValueError when the entry cannot be told from ``head``.
    """
    found = sections(head)
    if not found.get(_RELEASE, _NOTHING).size:
        return None
    release_text = found[_RELEASE].of(head)
    line = found.get(_COMMAND_LINE, _NOTHING).of(head)
    if release_text is None or line is None:
        raise ValueError("its os-release or its command line is not at its beginning")
    fields = release(release_text)
    # The time to compare two versions grows with the square of their lengths.
    if any(len(value) > _MOST_CHARACTERS for value in fields.values()):
        raise ValueError("its os-release has a very long line")

    def first(*keys: str) -> str | None:
        return next((fields[key] for key in keys if key in fields), None)

    title, sort_key = first("PRETTY_NAME", "IMAGE_ID", "NAME", "ID"), first("IMAGE_ID", "ID")
    if title is None:
        return None
    return MenuEntry(
        name=name,
        title=title,
        sort_key=sort_key,
        version=first("IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID") or "",
        machine_id="",
        kernel=path,
        initramfs=(path,) if INITRAMFS in found else (),
        command_line=command_line(line),
        is_plain=KERNEL in found and not _OTHER_SYSTEMS & found.keys(),
        is_unified=True,
    )


def _is_entry(path: str) -> bool:
    name = path.removeprefix(ENTRIES)
    return (
        path.startswith(ENTRIES)
        and "/" not in name
        and name.endswith(_SUFFIX)
        and not name.startswith((".", "auto-"))
    )


def _identifier(name: str) -> tuple[str, bool]:
    """The name of an entry without its counter of boots, and whether the entry has such a counter."""
    stem = name.removesuffix(_SUFFIX)
    plain = _COUNTER.sub("", stem)
    return plain, plain != stem


def _of_loader_conf(content: bytes) -> Iterator[str]:
    """The reasons to refuse loader.conf. With a word ``default``, our entry would never be the default one, or it would
    still be the default one after it has failed.
    """
    for key, value in _pairs(content.decode(errors="replace")):
        if key == "default":
            yield f"loader.conf chooses the default entry ({brief(value)}): remove this line"


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values of a file, as line_get_key_value() finds them."""
    for raw in re.split(r"[\n\r]", text.partition("\0")[0]):
        line = raw.strip(_BLANKS)
        parts = re.split(r"[ \t]+", line, maxsplit=1)
        if line.startswith("#") or len(parts) < 2:
            continue
        key, value = parts
        if len(value) >= 2 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        yield key, value


def _entry(name: str, fields: Mapping[str, list[str]], present: set[str]) -> MenuEntry | None:
    """The entry with these fields. The result is None when systemd-boot leaves the entry out."""

    def last(key: str) -> str:
        return fields.get(key, [""])[-1]

    if any(value.lower() != _ARCHITECTURE for value in fields.get("architecture", [])):
        return None
    program = "efi" if "efi" in fields else "linux"
    kernel = _path(last(program))
    if kernel.lower() not in present:
        return None
    return MenuEntry(
        name=name,
        title=last("title"),
        sort_key=last("sort-key") if "sort-key" in fields else None,
        version=last("version"),
        machine_id=last("machine-id"),
        kernel=kernel,
        initramfs=tuple(map(_path, fields.get("initrd", []))),
        command_line=" ".join(fields.get("options", [])),
        is_plain=program == "linux" and "devicetree" not in fields,
    )


def _path(value: str) -> str:
    """A path as xstr8_to_path() reads it: it may have backslashes, and needs no slash at its beginning."""
    return "/" + re.sub(r"/+", "/", value.replace("\\", "/")).lstrip("/")


def _order(entry: MenuEntry) -> tuple[object, ...]:
    """The key by which config_entry_compare() sorts entries that have no counter."""
    newest = _Newest(entry.name)
    if entry.sort_key is None:
        return (1, newest)
    return (0, entry.sort_key, entry.machine_id, _Newest(entry.version), newest)


@dataclass(frozen=True)
class _Newest:
    """A version. A newer version sorts before an older one."""

    text: str

    def __lt__(self, other: _Newest) -> bool:
        return compare_versions(self.text, other.text) > 0


def compare_versions(one: str, other: str) -> int:
    """Compare two versions as strverscmp_improved() of systemd does (Version Format Specification of the UAPI group). The
    result is less than 0 when ``one`` is the older version, 0 when both are equal, and else more than 0.
    """
    while True:
        one, other = _STRANGE.sub("", one), _STRANGE.sub("", other)
        if one.startswith("~") != other.startswith("~"):
            return other.startswith("~") - one.startswith("~")
        if one.startswith("~"):
            one, other = one[1:], other[1:]
        if not one or not other:
            return bool(one) - bool(other)
        for mark in "-^.":
            if one.startswith(mark) != other.startswith(mark):
                return other.startswith(mark) - one.startswith(mark)
            if one.startswith(mark):
                one, other = one[1:], other[1:]
        is_numeric = one.startswith(_DIGITS) or other.startswith(_DIGITS)
        characters = string.digits if is_numeric else string.ascii_letters
        rest, rest_of_other = one.lstrip(characters), other.lstrip(characters)
        head, head_of_other = one.removesuffix(rest), other.removesuffix(rest_of_other)
        if difference := _compare_segments(head, head_of_other, is_numeric):
            return difference
        one, other = rest, rest_of_other


def _compare_segments(one: str, other: str, is_numeric: bool) -> int:
    if is_numeric:
        if bool(one) != bool(other):
            return bool(one) - bool(other)
        one, other = one.lstrip("0"), other.lstrip("0")
        if len(one) != len(other):
            return len(one) - len(other)
    return (one > other) - (one < other)
