"""systemd-boot's menu on a stranger's disk, and the entry that QuickStart writes for it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import BadInputError
from quickstart.inspect.disk.own import check_image_disk, esp_place, has_entry, kernel_path, menu_entry
from quickstart.inspect.disk.systemdboot import Menu, compare_versions, read_menu
from quickstart.inspect.disk.verdict import examined
from quickstart.model.disk import Content, Inspected, Loader
from tests.unit.diskrecords import RECORDS, said

DISK = Path("/images/debian.raw")
LINE = "root=UUID=1 ro console=ttyS0"
# As kernel-install of bookworm writes it.
ENTRY = f"""\
title      Debian GNU/Linux 12 (bookworm)
version    6.1.0-28-cloud-amd64
sort-key   debian
options    {LINE}
linux      /debian/6.1.0-28-cloud-amd64/linux
initrd     /debian/6.1.0-28-cloud-amd64/initrd.img-6.1.0-28-cloud-amd64
"""
KERNEL = "/debian/6.1.0-28-cloud-amd64/linux"
OLDER = ENTRY.replace("6.1.0-28", "6.1.0-9")
SIZES = {KERNEL: 1, "/debian/6.1.0-9-cloud-amd64/linux": 1, "/EFI/tool.efi": 1}


def menu(entries: dict[str, str], loader: str = "timeout 3\n", more: tuple[str, ...] = ()) -> Menu:
    files = {f"/loader/entries/{name}": text.encode() for name, text in entries.items()}
    sizes = {**SIZES, **dict.fromkeys(files, 1), **dict.fromkeys(more, 1)}
    return read_menu({**files, "/loader/loader.conf": loader.encode()}, sizes)


def default_of(entries: dict[str, str]) -> str:
    found = menu(entries)
    assert found.refusals == ()
    return found.default.name if found.default else ""


def test_an_entry_of_kernel_install() -> None:
    entry = menu({"debian-6.1.0-28-cloud-amd64.conf": ENTRY}).default
    assert entry is not None
    assert (entry.title, entry.kernel) == ("Debian GNU/Linux 12 (bookworm)", KERNEL)
    assert entry.initramfs == ("/debian/6.1.0-28-cloud-amd64/initrd.img-6.1.0-28-cloud-amd64",)
    assert entry.command_line == LINE


# The names of the default entry and of the menu's entries, as systemd-boot 252 would order them.
ORDERS = {
    "the newest version": ("new.conf", {"old.conf": OLDER, "new.conf": ENTRY}),
    "a sort-key before none": ("b.conf", {"z.conf": ENTRY.replace("sort-key", "#"), "b.conf": OLDER}),
    "by the name, downwards": (
        "debian-10.conf",
        {name: ENTRY.replace("sort-key", "#") for name in ("debian-9.conf", "debian-10.conf")},
    ),
    "by the sort-key": ("b.conf", {"a.conf": ENTRY.replace("debian\n", "ubuntu\n"), "b.conf": OLDER}),
    "by the machine": ("b.conf", {"a.conf": f"{ENTRY}machine-id 2\n", "b.conf": f"{OLDER}machine-id 1\n"}),
    "no kernel": ("b.conf", {"a.conf": ENTRY.replace("28", "29"), "b.conf": OLDER}),
    "another machine": ("b.conf", {"a.conf": f"{ENTRY}architecture aa64\n", "b.conf": OLDER}),
    "hidden": ("b.conf", {".a.conf": ENTRY, "auto-a.conf": ENTRY, "a.txt": ENTRY, "b.conf": OLDER}),
    "ours": ("b.conf", {"quickstart+0-1.conf": ENTRY.replace("debian\n", "0-quickstart\n"), "b.conf": OLDER}),
    "a tool behind": ("b.conf", {"z.conf": "title x\nsort-key z\nefi /EFI/tool.efi\n", "b.conf": OLDER}),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_default_entry(name: str) -> None:
    wanted, entries = ORDERS[name]
    assert default_of(entries) == wanted
    assert default_of(dict(reversed(entries.items()))) == wanted


def test_the_forms_of_a_line() -> None:
    text = '\t title  "A  b" \r#linux /no\n\n  linux\t\\debian\\6.1.0-28-cloud-amd64\\linux\noptions a  b\noptions "c d"\nalone\n'
    entry = menu({"A.CONF": text}).default
    assert entry is not None
    assert (entry.title, entry.kernel, entry.command_line) == ("A  b", KERNEL, "a  b c d")
    assert entry.sort_key is None


REFUSED = {
    "default": (
        {"a.conf": ENTRY},
        "default debian-*\n",
        (),
        "loader.conf chooses the default entry (debian-*)",
    ),
    "unified": (
        {"a.conf": ENTRY},
        "",
        ("/efi/linux/x.EFI",),
        "the unified kernel image x.efi cannot be read: it is no program for EFI",
    ),
    "counted": ({"a+3.conf": ENTRY}, "", (), "the entry a+3.conf of systemd-boot counts its boots"),
    "before ours": (
        {"a.conf": ENTRY.replace("debian\n", "0\n")},
        "",
        (),
        "the entry a.conf has the sort-key 0",
    ),
    "a tool": (
        {"a.conf": "efi /EFI/tool.efi\n"},
        "",
        (),
        "the default entry a.conf starts a program that is no kernel",
    ),
    "devicetree": ({"a.conf": f"{ENTRY}devicetree /x\n"}, "", (), "or has a devicetree"),
    "long": ({"a.conf": "#" * 5000}, "", (), "has a very long line"),
    "unread": ({}, "", ("/loader/entries/a.conf",), "the entry a.conf of systemd-boot cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_menu_that_is_refused(name: str) -> None:
    entries, loader, more, reason = REFUSED[name]
    found = menu(entries, loader, more)
    assert found.default is None
    assert any(reason in each for each in found.refusals), found.refusals


# Of the comment at strverscmp_improved(): from the oldest to the newest.
VERSIONS = (
    *("122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1"),
    *("123.a-1", "123.1-1", "123a-1", "124-1"),
)


def test_versions() -> None:
    for at, one in enumerate(VERSIONS):
        for place, other in enumerate(VERSIONS):
            difference = compare_versions(one, other)
            assert (difference > 0, difference < 0) == (at > place, at < place), (one, other)
    assert compare_versions("1_2", "1+2") == 0
    assert compare_versions("001", "1") == 0


FSTAB = RECORDS["file 1 ./etc/fstab"].replace(b"vfat defaults", b"vfat umask=0077")


def found(**changes: bytes) -> Inspected:
    """A disk with systemd-boot on its EFI system partition. ``changes`` are to the records of this partition."""
    records = {name: content for name, content in RECORDS.items() if "grub" not in name and name != "boot 15"}
    own = {
        "space 15": b"2048 250000 200000 200000\n",
        "boot 15": b"97000 ./EFI/systemd/systemd-bootx64.efi\n97000 ./EFI/BOOT/BOOTX64.EFI\n300 ./loader/entries/a.conf\n"
        b"8000000 ./debian/6.1.0-28-cloud-amd64/linux\n",
        "file 15 ./loader/loader.conf": b"timeout 3\n",
        "file 15 ./loader/entries/a.conf": ENTRY.encode(),
        "boot-sector": bytes(512),
        "file 1 ./etc/fstab": FSTAB,
    }
    return examined(said({**records, **own, **changes}))


def test_a_disk_with_systemd_boot_is_taken() -> None:
    disk = found()
    assert (disk.loaders, disk.refusals, disk.esp_place) == ((Loader.SYSTEMD_BOOT,), (), "/boot/efi")
    check_image_disk(DISK, disk)
    assert kernel_path(disk) == PurePosixPath(f"/boot/efi{KERNEL}")
    assert esp_place(disk) == {"esp": b"/boot/efi\n"}


DISKS = {
    "no menu": ({"file 15 ./loader/entries/a.conf": b"title x\n"}, "has no entry that starts a kernel"),
    "not mounted": (
        {"file 1 ./etc/fstab": FSTAB.replace(b"UUID=5A1F-3A60", b"#")},
        "fstab does not name the EFI system partition",
    ),
    "by hand": (
        {"file 1 ./etc/fstab": FSTAB.replace(b"umask=0077", b"noauto,umask=0077")},
        "fstab's line for /boot/efi has noauto, so a boot cannot tell systemd-boot",
    ),
    "open to all": (
        {"file 1 ./etc/fstab": FSTAB.replace(b"umask=0077", b"defaults")},
        "fstab's line for /boot/efi lacks umask=0077",
    ),
    "full": (
        {"space 15": b"2048 62500 40000 40000\n"},
        "the EFI system partition has 78 MiB free, and 96 MiB",
    ),
    "two initramfs": (
        {"file 15 ./loader/entries/a.conf": f"{ENTRY}initrd /x\n".encode()},
        "the default entry has 2 initramfs files",
    ),
    "another menu": (
        {
            "blkid 14": RECORDS["blkid 14"].replace(
                b"21686148-6449-6e6f-744e-656564454649", b"bc13c2ff-59e6-4262-a352-b275fd6f7172"
            )
        },
        "XBOOTLDR",
    ),
}


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_is_refused(name: str) -> None:
    changes, reason = DISKS[name]
    with pytest.raises(BadInputError) as caught:
        check_image_disk(DISK, found(**changes))
    assert any(reason in line for line in caught.value.details), caught.value.details


def test_the_entry_of_quickstart() -> None:
    entry = found().entry
    assert entry is not None
    text = menu_entry(entry, f"{LINE} panic=10")
    assert text.splitlines() == [
        "title      QuickStart",
        "sort-key   0-quickstart",
        f"linux      {KERNEL}",
        "initrd     /quickstart/initramfs.img",
        f"options    {LINE} panic=10 quickstart.entry",
    ]
    content = Content(size_bytes=0, free_bytes=0, files={"/loader/entries/quickstart+1.conf": text.encode()})
    assert has_entry(content, entry)
    assert not has_entry(Content(size_bytes=0, free_bytes=0), entry)
