"""What `quickstart inspect` makes of the appliance's records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from quickstart.errors import GuestError
from quickstart.host.cpulimit import TooSlowError
from quickstart.inspect.disk import verdict
from quickstart.inspect.disk.grub import default_entry
from quickstart.inspect.disk.records import parse_records
from quickstart.inspect.disk.verdict import examined
from quickstart.model.disk import InitramfsMaker, Inspected, Loader, NetworkManager, Table
from tests.unit.diskrecords import BOOT_SECTOR, GRUB_CFG, ONE_FILE_SYSTEM, RECORDS, ROOT_PART, changed, said
from tests.unit.hostile import bounded


def of(records: Mapping[str, bytes]) -> Inspected:
    return examined(said(records))


def test_a_cloud_image() -> None:
    found = of(RECORDS)
    assert (found.root, found.boot, found.esp) == (1, None, 15)
    assert found.root_name == f"PARTUUID={ROOT_PART}"
    assert found.system == "Debian GNU/Linux 12 (bookworm)"
    assert found.loaders == (Loader.GRUB_BIOS, Loader.GRUB_UEFI)
    assert found.network == (NetworkManager.IFUPDOWN,)
    assert found.initramfs_maker is InitramfsMaker.INITRAMFS_TOOLS
    assert (found.has_cloud_init, found.grows_root) == (True, True)
    assert found.entry is not None
    assert found.entry.kernel == "/boot/vmlinuz-6.1.0-1"
    assert found.entry.initramfs == ("/boot/initrd.img-6.1.0-1",)
    assert found.entry.command_line == f"root=PARTUUID={ROOT_PART} ro console=ttyS0"
    assert found.refusals == ()


def test_its_partitions() -> None:
    facts = of(RECORDS).facts
    assert (facts.table, facts.size_bytes) == (Table.GPT, 4458496 * 512)
    places = [(each.number, each.begin_bytes, each.size_bytes) for each in facts.partitions]
    assert places == [
        (1, 134217728, 2147483648),
        (14, 1 << 20, 3 << 20),
        (15, 4 << 20, 124 << 20),
    ]
    root = facts.partitions[0]
    assert root.content is not None
    assert root.content.free_bytes == 4096 * 299049


FSTAB = "file 1 ./etc/fstab"
REFUSED = {
    "overlap": ({"partition 14": b"2048 6145\n"}, "the partitions 14 and 15 overlap"),
    "beyond": ({"sectors": b"4456000\n"}, "partition 1 goes beyond the end of the disk"),
    "luks": (
        {"blkid 14": b"TYPE=crypto_LUKS\nUSAGE=crypto\n"},
        "partition 14 is encrypted (LUKS)",
    ),
    "lvm": ({"blkid 14": b"TYPE=LVM2_member\nUSAGE=raid\n"}, "partition 14 is a physical volume of LVM"),
    "sectors": ({"sector-bytes": b"4096\n"}, "the disk has sectors of 4096 bytes"),
    "no root": (
        {"present 1": b""},
        "no partition has a system with systemd, so the root volume is not known",
    ),
    "another root": (
        {FSTAB: b"UUID=5A1F-3A60 / vfat defaults 0 1\n"},
        "fstab's line for / (UUID=5A1F-3A60) is not partition 1, which has the system",
    ),
    "no line": ({FSTAB: b""}, "the root file system's fstab has no line for /"),
    "boot elsewhere": (
        {FSTAB: f"PARTUUID={ROOT_PART} / ext4 rw 0 1\n/dev/sdb1 /boot ext4 rw 0 1\n".encode()},
        "fstab's line for /boot is no partition of this disk",
    ),
    "boot by its path": (
        {FSTAB: f"PARTUUID={ROOT_PART} / ext4 rw 0 1\n/dev/sda15 /boot/ vfat rw 0 1\n".encode()},
        "fstab's line for /boot names the device /dev/sda15: name it by UUID=, LABEL= or PARTUUID=",
    ),
    "boot by hand": (
        {FSTAB: f"PARTUUID={ROOT_PART} / ext4 rw 0 1\nLABEL=ESP /boot vfat defaults,noauto 0 1\n".encode()},
        "fstab's line for /boot has noauto, so a boot cannot tell GRUB that it is complete",
    ),
    "full": ({"space 1": b"4096 498138 100 100\n"}, "/boot has 0 MiB free, and 96 MiB are needed"),
    "not unmounted": (
        {"unclean 1": b"mount: Read-only file system\n"},
        "partition 1 was not unmounted, and its last changes are only in its journal: "
        "start its system once, and shut it down",
    ),
    "no loader": (
        {"boot-sector": bytes(512), "boot 15": b""},
        "the disk has no boot loader that is known (GRUB, systemd-boot, a unified kernel image)",
    ),
    "menu": (
        {"file 1 ./boot/grub/grub.cfg": b"set default=7\n"},
        "the default entry of GRUB's menu is not understood",
    ),
    "NetworkManager": (
        {"enabled 1": b"./etc/systemd/system/multi-user.target.wants/NetworkManager.service\n"},
        "NetworkManager sets up the network",
    ),
    "crypttab": ({"file 1 ./etc/crypttab": b"# none\nswap /dev/vda2\n"}, "crypttab has encrypted volumes"),
    "init": ({"links 1": b"./sbin/init /bin/busybox\n"}, "/sbin/init is /bin/busybox and not systemd"),
    "btrfs only": (
        {"blkid 1": RECORDS["blkid 1"].replace(b"TYPE=ext4", b"TYPE=f2fs")},
        "the root file system is f2fs, and only ext4, xfs, btrfs are known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    changes, reason = REFUSED[name]
    assert of({**RECORDS, **changes}).refusals == (reason,)


@pytest.mark.parametrize(
    "head",
    [
        *("partition 1 p0", "partition  x", "partition", "space 1 x", "blkid 01"),
        *("sectors 1", "sectors  x", "file 1", "file  ./x"),
    ],
)
def test_a_record_has_one_form(head: str) -> None:
    """A record that came again in another form would be one more partition, with lists of its own in memory."""
    with pytest.raises(ValueError, match="no number of a partition, or a path"):
        parse_records(said({**RECORDS, head: b"1 2"}))


def test_a_file_system_that_cannot_be_mounted() -> None:
    broken = {
        name: content
        for name, content in RECORDS.items()
        if not name.endswith(" 15") or name.startswith(("blkid", "part"))
    }
    broken.pop("file 15 ./EFI/BOOT/grub.cfg")
    found = of({**broken, "unmounted 15": b"mount: bad superblock\n"})
    assert found.refusals == ("partition 15 (vfat) cannot be mounted: mount: bad superblock",)
    assert found.loaders == (Loader.GRUB_BIOS,)


def test_a_disk_without_a_table() -> None:
    """It is one file system, as `build` makes it."""
    records = {
        name.replace(" 1", " 0", 1): content
        for name, content in RECORDS.items()
        if not name.endswith((" 14", " 15")) and " 15 " not in name and name not in ("blkid 0", "partition 1")
    }
    found = of(
        {
            **records,
            "boot-sector": bytes(512),
            FSTAB.replace("1", "0"): b"UUID=5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0a01 / ext4 rw 0 1\n",
        }
    )
    assert (found.root, found.facts.table) == (0, Table.NONE)
    assert "the disk has no partition table, so no firmware starts it" in found.refusals


def test_a_disk_of_one_file_system_that_was_not_unmounted() -> None:
    found = of({**ONE_FILE_SYSTEM, "unclean 0": b""})
    assert any(reason.startswith("the file system was not unmounted") for reason in found.refusals)


def test_a_separate_boot() -> None:
    """By its label; GRUB's paths are then of its own file system."""
    found = of(
        {
            **RECORDS,
            FSTAB: f"PARTUUID={ROOT_PART} / ext4 rw 0 1\nLABEL=BOOT /boot ext4 rw 0 2\n".encode(),
            "blkid 14": b"TYPE=ext4\nUSAGE=filesystem\nLABEL=BOOT\nPART_ENTRY_TYPE=21686148-6449-6e6f-744e-656564454649\n",
            "space 14": b"4096 498138 329359 299049\n",
            "file 14 ./grub/grub.cfg": GRUB_CFG.replace("/boot/", "/").encode(),
        }
    )
    assert (found.root, found.boot) == (1, 14)
    assert found.entry is not None
    assert (found.entry.partition, found.entry.kernel) == (14, "/vmlinuz-6.1.0-1")
    assert found.refusals == ()


def test_a_partition_without_a_role_may_be_unclean() -> None:
    found = of({**RECORDS, "unclean 15": b"mount: Read-only file system\n"})
    assert [each.is_clean for each in found.facts.partitions] == [True, True, False]
    assert found.refusals == ()


def test_a_boot_that_was_not_unmounted() -> None:
    found = of(
        {
            **RECORDS,
            FSTAB: f"PARTUUID={ROOT_PART} / ext4 rw 0 1\nLABEL=BOOT /boot ext4 rw 0 2\n".encode(),
            "blkid 14": b"TYPE=ext4\nUSAGE=filesystem\nLABEL=BOOT\nPART_ENTRY_TYPE=21686148-6449-6e6f-744e-656564454649\n",
            "space 14": b"4096 498138 329359 299049\n",
            "unclean 14": b"",
            "file 14 ./grub/grub.cfg": GRUB_CFG.replace("/boot/", "/").encode(),
        }
    )
    (refusal,) = found.refusals
    assert refusal.startswith("partition 14 was not unmounted")


def test_systemd_boot_and_a_unified_kernel() -> None:
    by_boot = of(
        {**RECORDS, "boot-sector": bytes(512), "boot 15": b"200000 ./EFI/systemd/systemd-bootx64.efi\n"}
    )
    assert by_boot.loaders == (Loader.SYSTEMD_BOOT,)
    alone = of({**RECORDS, "boot-sector": bytes(512), "boot 15": b"30000000 ./EFI/BOOT/BOOTX64.EFI\n"})
    assert alone.loaders == (Loader.UKI,)


@pytest.mark.parametrize("missing", ["sectors", "blkid 0", "blkid 14", "boot-sector"])
def test_a_record_that_is_missing(missing: str) -> None:
    with pytest.raises(GuestError, match="did not say the record"):
        of(changed(**{missing.replace(" ", "_"): None}))


@pytest.mark.parametrize("content", [b"", b"x\n", b"1\n", b"-1 5\n", b"1 2 3\n", b"9" * 40 + b" 1\n"])
def test_numbers_that_are_none(content: bytes) -> None:
    with pytest.raises(GuestError, match="has no 2 numbers"):
        of({**RECORDS, "partition 1": content})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"blkid 0\n",
        b"blkid 0 5\nab\n",
        b"blkid 0 -1\n\n",
        b"x" * 5000,
        b"a 1 99999999999999999999\n",
        b"a x 1\n1\n",
        b"a 1 1\n12",
        b"a 256 1\n1\nend 0\n\n",
        b"a 01 1\n1\nend 0\n\n",
        b"a 1 1\n1\na 1 1\n1\nend 0\n\n",
        b"a 1048577\n" + bytes(1048577) + b"\nend 0\n\n",
    ],
)
def test_what_no_appliance_says(data: bytes) -> None:
    with pytest.raises(ValueError, match="record"):
        parse_records(data)


def test_a_path_has_its_blanks_and_bytes() -> None:
    (record,) = parse_records(b"file 1 ./etc/a b\xff 3\nxyz\nend 0\n\n")
    assert (record.path, record.number, record.content) == ("./etc/a b\udcff", 1, b"xyz")


def test_blkid_escapes() -> None:
    found = of({**RECORDS, "blkid 14": rb"LABEL=a\ b\x41\"" + b"\n"})
    assert found.facts.partitions[1].label == 'a bA"'


# ---------------------------------------------------------------- an appliance that a disk has taken over


def repeated(count: int, more: Mapping[str, bytes]) -> bytes:
    """RECORDS and ``more``, and the first partition ``count`` times once more."""
    data = said({**RECORDS, **more})
    return data.replace(b"end 1\n", b"partition 1 14\n262144 4194304\n" * count + b"end 1\n")


def test_a_partition_that_is_said_again_and_again() -> None:
    """Once, each of them stood for all records of the partition: 10 000 for 50 GiB of memory."""
    names = b"".join(b"1 ./boot/%x\n" % number for number in range(60_000))
    with bounded(seconds=2, mib=512), pytest.raises(GuestError, match="was said before"):
        examined(repeated(10_000, {"boot 1": names}))


@pytest.mark.parametrize(("name", "most"), [("boot 1", 4096), ("enabled 1", 512), ("top 1", 512)])
def test_a_list_that_is_too_long(name: str, most: int) -> None:
    lines = [b"5 ./%d\x0b\r" % number for number in range(most + 1)]
    of({**RECORDS, name: b"\n".join(lines[:-1]) + b"\n"})
    with pytest.raises(GuestError, match=f"`{name}` has {most + 1} lines"):
        of({**RECORDS, name: b"\n".join(lines) + b"\n"})


def test_as_much_as_an_appliance_can_say() -> None:
    """64 MiB, of 255 partitions with long lists."""
    many: dict[str, bytes] = {}
    for number in range(1, 256):
        many |= {
            name.replace(" 1", f" {number}", 1): content
            for name, content in RECORDS.items()
            if " 1" in name and " 14" not in name and " 15" not in name
        }
        many[f"boot {number}"] = b"".join(b"1 ./boot/%050d\n" % each for each in range(4096))
        many[f"partition {number}"] = b"%d 1\n" % number
    with bounded(seconds=10, mib=512):
        found = of({**RECORDS, **many})
    assert len(found.facts.partitions) == 255
    assert "255 partitions have a system, so the root volume is not known" in found.refusals


# ---------------------------------------------------------------- GRUB's menu


def entry_of(config: str, environment: bytes = b"") -> str | None:
    found = default_entry(config, environment)
    return None if found is None else found.title


def test_the_default_entry() -> None:
    assert entry_of(GRUB_CFG) == "Debian GNU/Linux"
    assert entry_of(GRUB_CFG.replace('set default="0"', 'set default="2"')) == "UEFI Firmware Settings"
    assert entry_of(GRUB_CFG.replace('set default="0"', 'set default="3"')) is None
    assert (
        entry_of(GRUB_CFG.replace('set default="0"', 'set default="uefi-firmware"'))
        == "UEFI Firmware Settings"
    )
    assert (
        entry_of(GRUB_CFG.replace('set default="0"', 'set default="Debian GNU/Linux"')) == "Debian GNU/Linux"
    )


def test_the_saved_entry() -> None:
    saved = GRUB_CFG.replace('set default="0"', 'set default="${saved_entry}"')
    assert entry_of(saved) == "Debian GNU/Linux"
    assert (
        entry_of(saved, b"# GRUB Environment Block\nsaved_entry=gnulinux-simple-1\n###") == "Debian GNU/Linux"
    )
    # An entry of a submenu is not understood.
    assert entry_of(saved, b"saved_entry=gnulinux-advanced-1>gnulinux-recovery-1\n") is None


def test_a_submenu_has_a_number_and_no_kernel() -> None:
    found = default_entry(GRUB_CFG.replace('set default="0"', "set default=1"), b"")
    assert found is not None
    assert (found.title, found.kernel) == ("Advanced options for Debian GNU/Linux", "")


def test_the_lines_of_an_entry() -> None:
    found = default_entry(
        "menuentry a {\n linuxefi\t/k  ro  quiet \n initrdefi /i  /j \n linux\n linux2 /x\n}\n", b""
    )
    assert found is not None
    assert (found.kernel, found.command_line, found.initramfs) == ("/k", "ro  quiet", ("/i", "/j"))


BLANKS = " " * (1 << 19)
LONG = {
    "kernel": f"menuentry a {{\nlinux /a b{BLANKS}c\n}}\n",
    "initramfs": f"menuentry a {{\ninitrd a{BLANKS}c\n}}\n",
    "block": f"menuentry {{{BLANKS}c\n",
    "title": f"menuentry{BLANKS}{{\n}}\n",
    "identifier": f"menuentry a --id{BLANKS}{{\n}}\n",
    "identifiers": "menuentry a" + " --id '" * (1 << 17) + " {\n}\n",
    "default": f"set default=x{BLANKS}y\n",
    "quoted": 'set default="' + "x" * (1 << 20) + "\n",
    "lines": "\n" * (1 << 20),
}


@pytest.mark.parametrize("name", LONG)
def test_a_menu_that_grub_mkconfig_has_not_written(name: str) -> None:
    with bounded(seconds=2):
        assert default_entry(f"{GRUB_CFG}{LONG[name]}", b"") is None
        # As long as a line may be, and as many lines.
        for line in LONG[name].splitlines()[:9]:
            entry_of(f"menuentry x {{\n{f'{line[:4000]}{line[-9:]}' + chr(10)}}}\n" * 250)


def test_a_long_line_through_the_whole_look() -> None:
    """The time of the verbs is limited, whatever the menu is."""
    found = of({**RECORDS, "file 1 ./boot/grub/grub.cfg": LONG["kernel"].encode()})
    assert found.refusals == ("the default entry of GRUB's menu is not understood",)


def test_reading_what_was_said_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(facts: object) -> Inspected:
        while True:
            pass

    monkeypatch.setattr(verdict, "inspected", slow)
    monkeypatch.setattr(verdict, "LIMIT_S", 0.02)
    with bounded(), pytest.raises(TooSlowError, match="reading what the appliance said about the disk takes"):
        examined(said(RECORDS))


def test_a_boot_sector_alone_is_no_grub() -> None:
    """With a GPT, GRUB's core image needs a partition."""
    assert b"GRUB" in BOOT_SECTOR
    records = {**RECORDS, "blkid 14": b"PART_ENTRY_TYPE=0fc63daf-8483-4772-8e79-3d69d8477de4\n"}
    assert of(records).loaders == (Loader.GRUB_UEFI,)


def test_the_nouns_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        of(RECORDS).root = 2  # type: ignore[misc]
