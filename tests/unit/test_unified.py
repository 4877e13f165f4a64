"""Unified kernel images on a stranger's disk."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from quickstart.errors import BadInputError
from quickstart.inspect.disk.own import KERNEL_ON_ESP, has_entry, menu_entry
from quickstart.inspect.disk.systemdboot import Menu, read_menu
from quickstart.inspect.disk.unified import (
    Section,
    append_archive,
    command_line,
    divide,
    release,
    sections,
)
from quickstart.model.disk import BootEntry, Content
from tests.unit.unifiedimage import RELEASE, SECTIONS, unified_image

PATH = "/EFI/Linux/Debian-6.1.efi"
IMAGE = unified_image(SECTIONS)


def menu(
    images: dict[str, bytes], more: tuple[str, ...] = (), entries: dict[str, bytes] | None = None
) -> Menu:
    files = {**images, **(entries or {})}
    return read_menu(files, {**dict.fromkeys(files, 1), **dict.fromkeys(more, 1)})


def test_the_sections_of_an_image() -> None:
    found = sections(IMAGE)
    assert list(found) == list(SECTIONS)
    for name, content in SECTIONS.items():
        assert found[name].of(IMAGE) == content
    assert found[".initrd"].of(IMAGE[:-512]) is None


def test_a_section_of_no_size_in_memory_has_its_size_in_the_file() -> None:
    """objcopy of old binutils leaves the first one out."""
    data = bytearray(IMAGE)
    at = data.index(b".linux\0\0") + 8
    data[at : at + 4] = bytes(4)
    assert sections(bytes(data))[".linux"].size == 512


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no program for EFI"),
        (b"MZ", "no program for EFI"),
        (b"ZM" + IMAGE[2:], "no program for EFI"),
        (IMAGE[:0x90], "its header is not at its beginning"),
        (b"MZ" + bytes(58) + b"\xff\xff\xff\xff" + IMAGE[64:], "its header is not at its beginning"),
        (unified_image(SECTIONS, machine=0xAA64), "no program for x86-64"),
        (IMAGE.replace(b"PE\0\0", b"NE\0\0"), "no program for x86-64"),
        (IMAGE[:0x190], "its table of sections is not at its beginning"),
        (unified_image({f"{number}": b"" for number in range(97)}), "its table of sections"),
    ],
)
def test_what_is_no_image(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sections(data)


@pytest.mark.parametrize("archive_bytes", [1, 511, 512, 5000])
def test_an_archive_is_appended_to_the_initramfs(tmp_path: Path, archive_bytes: int) -> None:
    """The other sections, and the flags of all, stay as they are."""
    (tmp_path / "image").write_bytes(IMAGE)
    archive = bytes(range(1, 101)) * (archive_bytes // 100) + b"x" * (archive_bytes % 100)
    append_archive(tmp_path / "image", archive, tmp_path / "longer")
    longer = (tmp_path / "longer").read_bytes()
    initramfs = SECTIONS[".initrd"].ljust(512, b"\0") + archive
    expected = unified_image({**SECTIONS, ".initrd": initramfs})
    # The size in memory is rounded up to a page, as the firmware needs it.
    assert longer[:0x80] + longer[0x80 + 24 + 60 :] == expected[:0x80] + expected[0x80 + 24 + 60 :]
    (memory_bytes,) = struct.unpack_from("<I", longer, 0x80 + 24 + 56)
    assert memory_bytes == 0x20000 + 4096 * (len(SECTIONS) - 1) + -(-len(initramfs) // 4096) * 4096


def test_a_table_of_symbols_behind_the_initramfs_is_left_out(tmp_path: Path) -> None:
    with_symbols = bytearray(IMAGE + b"symbols")
    struct.pack_into("<II", with_symbols, 0x80 + 12, len(IMAGE), 7)
    (tmp_path / "image").write_bytes(with_symbols)
    append_archive(tmp_path / "image", b"x", tmp_path / "longer")
    (tmp_path / "image").write_bytes(IMAGE)
    append_archive(tmp_path / "image", b"x", tmp_path / "expected")
    assert (tmp_path / "longer").read_bytes() == (tmp_path / "expected").read_bytes()


def changed(at: int, value: int) -> bytes:
    """IMAGE with another number behind the beginning of its PE header."""
    data = bytearray(IMAGE)
    struct.pack_into("<I", data, 0x80 + at, value)
    return bytes(data)


_OPTIONAL_AT = 24
_INITRD_AT = _OPTIONAL_AT + 240 + 40 * list(SECTIONS).index(".initrd")


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (changed(_OPTIONAL_AT + 148, 512), "it is signed"),
        (IMAGE + bytes(512), "its initramfs is not its last section"),
        # Without a symbol, it is something else.
        (changed(12, len(IMAGE)) + bytes(512), "its initramfs is not its last section"),
        (unified_image({**SECTIONS, ".last": b"x"}), "its initramfs is not its last section"),
        (
            unified_image({name: SECTIONS[name] for name in SECTIONS if name != ".initrd"}),
            "it has 0 sections",
        ),
        (changed(_OPTIONAL_AT + 32, 0), "its optional header is not that of PE32"),
        (changed(_OPTIONAL_AT + 36, 1 << 30), "its optional header is not that of PE32"),
        (changed(_OPTIONAL_AT, 0x10B), "its optional header is not that of PE32"),
        (changed(_INITRD_AT + 8, 0), "the size of its initramfs in memory is not that in the file"),
        (changed(_INITRD_AT + 8, 1 << 31), "the size of its initramfs in memory is not that in the file"),
    ],
)
def test_an_initramfs_that_cannot_grow(tmp_path: Path, image: bytes, why: str) -> None:
    (tmp_path / "image").write_bytes(image)
    with pytest.raises(BadInputError, match=why) as caught:
        append_archive(tmp_path / "image", b"archive", tmp_path / "longer")
    assert caught.value.hint
    assert not (tmp_path / "longer").exists()


def test_the_fields_of_os_release() -> None:
    said = b"#ID=no\n ID=debian\nNAME='a b'\nVERSION=\"\nEMPTY=\nnothing\nID=ubuntu\0ID=hidden"
    assert release(said) == {"ID": "ubuntu", "NAME": "a b", "VERSION": '"', "EMPTY": ""}


def test_the_command_line() -> None:
    assert command_line(b" a  b\tc\n\0d") == "a b c"


def test_the_entry_of_an_image() -> None:
    entry = menu({PATH: IMAGE}).default
    assert entry is not None
    assert (entry.title, entry.sort_key) == ("Debian GNU/Linux 12 (bookworm)", "debian")
    assert (entry.version, entry.name) == ("12 (bookworm)", "debian-6.1.efi")
    assert (entry.kernel, entry.initramfs, entry.is_unified) == (PATH, (PATH,), True)
    assert entry.command_line == "root=UUID=1 ro console=ttyS0"


def test_the_newest_image_comes_first_and_a_file_s_entry_by_its_sort_key() -> None:
    newer, older = "/EFI/Linux/debian-6.10.efi", "/EFI/Linux/debian-6.9.efi"
    assert menu({older: IMAGE, newer: IMAGE}).default == menu({newer: IMAGE}).default
    text = b"sort-key arch\nlinux /vmlinuz\n"
    default = menu({newer: IMAGE}, ("/vmlinuz",), {"/loader/entries/arch.conf": text}).default
    assert default is not None
    assert (default.name, default.is_unified) == ("arch.conf", False)


@pytest.mark.parametrize(
    "name", ["/EFI/Linux/.x.efi", "/EFI/Linux/auto-x.efi", "/EFI/Linux/d/x.efi", "/EFI/Linux/x"]
)
def test_what_systemd_boot_leaves_out(name: str) -> None:
    assert menu({name: b"?"}) == Menu(None, ())
    without = unified_image({name: data for name, data in SECTIONS.items() if name != ".osrel"})
    assert menu({PATH: without}) == Menu(None, ())
    assert menu({PATH: unified_image({**SECTIONS, ".osrel": b"X=1\n"})}) == Menu(None, ())


@pytest.mark.parametrize(
    ("path", "data", "more", "why"),
    [
        (PATH, b"?", (), "the unified kernel image debian-6.1.efi cannot be read: it is no program for EFI"),
        (PATH, IMAGE[:1024], (), "its os-release or its command line is not at its beginning"),
        ("/EFI/Linux/debian+3.efi", IMAGE, (), "the entry debian+3.efi of systemd-boot counts its boots"),
        (
            PATH,
            unified_image({**SECTIONS, ".osrel": b"ID=0\n"}),
            (),
            "the entry debian-6.1.efi has the sort-key 0",
        ),
        (
            PATH,
            # To compare two of 480 000 characters took 10 s.
            unified_image({**SECTIONS, ".osrel": b"ID=a\nVERSION=" + b"-" * 5000}),
            (),
            "its os-release has a very long line",
        ),
        (
            PATH,
            unified_image({**SECTIONS, ".dtb": b"?"}),
            (),
            "starts a program that is no kernel, or has a devicetree",
        ),
        (PATH, unified_image({**SECTIONS, ".profile": b"?"}), (), "starts a program that is no kernel"),
        (
            PATH,
            IMAGE,
            ("/EFI/linux/debian-6.1.efi.extra.d/a.addon.efi",),
            "takes more from /efi/linux/debian-6.1",
        ),
        (PATH, IMAGE, ("/loader/credentials/a.cred",), "takes more from /loader/credentials/a.cred"),
        (PATH, IMAGE, ("/loader/addons/a.addon.efi",), "takes more from /loader/addons/a.addon.efi"),
    ],
)
def test_what_is_refused(path: str, data: bytes, more: tuple[str, ...], why: str) -> None:
    found = menu({path: data}, more)
    assert found.default is None
    assert why in found.refusals[0]


def test_the_kernel_and_the_initramfs_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(IMAGE)
    divide(tmp_path / "image", tmp_path / "kernel", tmp_path / "initrd")
    assert (tmp_path / "kernel").read_bytes() == b"kernel"
    assert (tmp_path / "initrd").read_bytes() == b"initramfs"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"?", "cannot be read: it is no program for EFI"),
        (unified_image({**SECTIONS, ".initrd": b"x" * 1000})[:-600], "has no whole section .initrd"),
        (unified_image({".osrel": RELEASE, ".linux": b"x"}), "has no whole section .initrd"),
    ],
)
def test_an_image_that_is_not_whole(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(BadInputError, match=why):
        divide(tmp_path / "image", tmp_path / "kernel", tmp_path / "initrd")


def test_our_entry_starts_a_copy_of_the_kernel() -> None:
    """systemd-boot would give a unified kernel image its own initramfs."""
    entry = BootEntry(
        title="",
        config=PATH,
        partition=15,
        kernel=PATH,
        initramfs=(PATH,),
        command_line="ro",
        is_unified=True,
    )
    assert f"linux      {KERNEL_ON_ESP}\n" in menu_entry(entry, "ro")
    files = {"/loader/entries/quickstart+1.conf": b""}
    assert has_entry(Content(size_bytes=1, free_bytes=1, files=files), entry)
    assert not has_entry(Content(size_bytes=1, free_bytes=1), entry)


def test_a_section_that_is_not_there_is_empty() -> None:
    assert Section(0, 0).of(b"") == b""
