"""Volumes that mkfs.xfs and mkfs.btrfs have made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quickstart.errors import ArtefactError
from quickstart.image.superblock import read_superblock
from quickstart.model import MIB
from quickstart.model.words import FileSystem
from tests.contract.firstbox import said

UUID = "5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0a01"
PARTITION_BYTES = 3 * MIB


def made_btrfs(path: Path, *options: str) -> Path:
    with path.open("xb") as file:
        file.truncate(256 * MIB)
    try:
        subprocess.run(["mkfs.btrfs", "-q", "-U", UUID, *options, path], check=True, timeout=60)
    except FileNotFoundError:
        pytest.fail("mkfs.btrfs is missing: apt-get install btrfs-progs")
    return path


def test_btrfs(tmp_path: Path) -> None:
    """A new label is a new superblock."""
    disk = made_btrfs(tmp_path / "disk")
    before = read_superblock(disk)
    assert (before.file_system, before.uuid) == (FileSystem.BTRFS, UUID)
    subprocess.run(["btrfs", "filesystem", "label", disk, "other"], check=True, timeout=60)
    assert read_superblock(disk).state != before.state


def made(path: Path, *options: str) -> Path:
    with path.open("xb") as file:
        file.truncate(320 * MIB)
    argv: list[str | Path] = ["mkfs.xfs", "-q", "-m", f"uuid={UUID}", *options, path]
    try:
        subprocess.run(argv, check=True, timeout=60)
    except FileNotFoundError:
        pytest.fail("mkfs.xfs is missing: apt-get install xfsprogs")
    return path


@pytest.mark.parametrize("options", [(), ("-b", "size=1024"), ("-d", "agcount=3"), ("-s", "size=4096")])
def test_the_superblock(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = read_superblock(made(tmp_path / "disk", *options))
    assert (found.file_system, found.uuid) == (FileSystem.XFS, UUID)


def test_what_changes_the_log(tmp_path: Path) -> None:
    """xfs_db's `logformat` writes the log anew, and nothing else."""
    disk = made(tmp_path / "disk")
    before = read_superblock(disk)
    subprocess.run(
        ["xfs_db", "-x", "-c", "logformat -c 5", disk], check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    after = read_superblock(disk)
    assert before.state != after.state
    assert before.uuid == after.uuid


def test_in_a_partition(tmp_path: Path) -> None:
    """The size of the file is not that of the file system."""
    volume = made(tmp_path / "volume")
    with (tmp_path / "disk").open("xb") as file:
        file.seek(PARTITION_BYTES)
        file.write(volume.read_bytes())
    assert read_superblock(tmp_path / "disk", PARTITION_BYTES) == read_superblock(volume)


def test_version_4(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="version 4"):
        read_superblock(made(tmp_path / "disk", "-m", "crc=0"))


@pytest.mark.parametrize(("kind", "make"), [("xfs", made), ("btrfs", made_btrfs)])
def test_init_finds_the_volume(tmp_path: Path, kind: str, make: Callable[[Path], Path]) -> None:
    make(tmp_path / "disk")
    found = 'read_superblock /disk && echo "$SB_UUID $SB_CREATED"; needs_check; echo "$unwanted"'
    script = f"ROOT_FSTYPE={kind} BUILD_WTIME=0 unwanted=; {found}"
    assert said(tmp_path, script) == f"{UUID} 0"


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize(
    "what", [b"", b"XFSB", os.urandom(1 << 17), b"xfsb" + bytes(4096), bytes(65600) + b"_BHRfS_"]
)
def test_init_takes_nothing_else_for_it(tmp_path: Path, kind: str, what: bytes) -> None:
    (tmp_path / "disk").write_bytes(what)
    assert said(tmp_path, f"ROOT_FSTYPE={kind}; read_superblock /disk || echo none") == "none"


OTHERS = [
    *(
        bytes(4086) + name
        for name in (b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND")
    ),
    bytes(4086) + b"LINHIB0001",
    bytes(1080) + b"\x53\xef",
    bytes(32769) + b"CD001",
    b"XFSB",
    b"\xeb\x52\x90NTFS    ",
    bytes(54) + b"FAT16   ",
    bytes(82) + b"FAT32   ",
    b"\xeb\x76\x90EXFAT   ",
    b"LUKS\xba\xbe",
    b"hsqs",
    bytes(1024) + b"\x10\x20\xf5\xf2",
]


@pytest.mark.parametrize("begin", [b"", *OTHERS], ids=lambda begin: begin.strip(b"\0 ").decode("latin-1"))
def test_what_users_write_elsewhere_is_no_btrfs(tmp_path: Path, begin: bytes) -> None:
    """A page of a swap area, and a block of a file, may lie where btrfs has its superblock."""
    with made_btrfs(tmp_path / "disk").open("r+b") as file:
        file.write(begin)
    script = "ROOT_FSTYPE=btrfs; read_superblock /disk && echo btrfs"
    assert said(tmp_path, f"{script} || echo none") == ("none" if begin else "btrfs")


def test_one_of_two_devices_is_no_root(tmp_path: Path) -> None:
    """A stock boot would look for the other one first."""
    disk = made_btrfs(tmp_path / "disk")
    with disk.open("r+b") as file:
        file.seek(65536 + 136)
        file.write(b"\2")
    assert said(tmp_path, "ROOT_FSTYPE=btrfs; read_superblock /disk || echo none") == "none"
    with pytest.raises(ArtefactError, match="one of 2 devices"):
        read_superblock(disk)


def test_another_checksum(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="another checksum than crc32c"):
        read_superblock(made_btrfs(tmp_path / "disk", "--checksum", "xxhash"))


SEED, CLOCK = "var/lib/systemd/random-seed", "var/lib/systemd/timesync/clock"
START_SET = ".quickstart-start-set"


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize("file", [SEED, CLOCK, START_SET, "other"])
@pytest.mark.parametrize(
    ("ahead_s", "why"),
    [
        (0, ""),
        (-86400, ""),
        (-3 * 86400, "the clock is more than two days behind the root volume"),
        (6 * 31557600, "the clock is years ahead of the root volume"),
    ],
)
def test_the_clock_is_compared_with_the_last_use(
    tmp_path: Path, kind: str, file: str, ahead_s: int, why: str
) -> None:
    """XFS and btrfs do not say when they were used, but files do. The kernel sets the time of an inode's change."""
    path = tmp_path / "newroot" / file
    path.parent.mkdir(parents=True)
    path.touch()
    now_s = int(path.stat().st_ctime) + ahead_s
    given = (
        f"ROOT_FSTYPE={kind} SERVED=memory ROOT_CREATED=0 SB_CREATED=0 BUILD_WTIME=0 SB_WTIME=0 SB_STATE=0001"
    )
    checked = "SB_MOST_MOUNTS=0 SB_CHECKED=0 SB_INTERVAL=0 SB_MOUNTS=none"
    stubs = f"find_root() {{ :; }}; mount() {{ :; }}; unset EPOCHSECONDS; EPOCHSECONDS={now_s}"
    script = f'unwanted=; {given} {checked}; {stubs}; mount_root; echo "$unwanted"'
    assert said(tmp_path, script) == ("" if file == "other" else why)


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        ("ext4", "", ["-t ext4 -o rw,discard,x=1 /dev/x /newroot"]),
        ("xfs", "", ["-t xfs -o ro /dev/x /newroot", "-t xfs -o remount,rw,discard,x=1 /dev/x /newroot"]),
        (
            "btrfs",
            ",subvol=@rootfs",
            [
                "-t btrfs -o ro,subvol=@rootfs /dev/x /newroot",
                "-t btrfs -o remount,rw,discard,x=1 /dev/x /newroot",
            ],
        ),
    ],
)
def test_it_is_mounted_as_in_a_stock_boot(tmp_path: Path, kind: str, flags: str, expected: list[str]) -> None:
    """In two steps: fstab's options have no effect on what the first one decides, such as the subvolume."""
    given = f"ROOT_FSTYPE={kind} ROOT_OPTIONS=discard,x=1 ROOT_FLAGS={flags} DEVICE=/dev/x READ_ALONE="
    script = f'{given}; mount() {{ echo "$*"; }}; mount_volume'
    assert said(tmp_path, script).splitlines() == expected


def test_what_cannot_be_mounted_for_writing_is_left(tmp_path: Path) -> None:
    given = "ROOT_FSTYPE=xfs ROOT_OPTIONS=bad ROOT_FLAGS= DEVICE=/dev/x READ_ALONE="
    mount = 'mount() { case $* in *remount*) false ;; esac; }; umount() { echo "umount $*"; }'
    assert said(tmp_path, f"{given}; {mount}; mount_volume || echo failed") == "umount /newroot\nfailed"


def mounted(root: Path, script: str) -> list[str]:
    """The options of what is mounted on /newroot after init's functions, in a mount namespace of their own."""
    (root / "newroot/fast").mkdir(parents=True)
    for name in ("proc", "bin"):
        (root / name).mkdir()
    for name in ("mkdir", "mount", "sleep", "umount", "usleep"):
        (root / "bin" / name).symlink_to("/busybox")
    given = "ROOT_FLAGS= DEVICE=none READ_ALONE= ROOT_FSTYPE=tmpfs Q=/q; mount -t proc none /proc"
    return (
        said(
            root,
            f"{given}; {script}; grep ' /newroot ' /proc/mounts",
            ("unshare", "--mount", "--propagation=private"),
        )
        .split()[3]
        .split(",")
    )


@pytest.mark.parametrize(("options", "expected"), [("defaults", "rw"), ("ro", "ro"), ("ro,noatime", "ro")])
def test_a_root_that_fstab_makes_read_only(tmp_path: Path, options: str, expected: str) -> None:
    """tmpfs is in each host's kernel, and is mounted in the two steps as well."""
    assert mounted(tmp_path, f"ROOT_OPTIONS={options}; mount_volume")[0] == expected


# A root volume with an option of the build, and a stock boot that goes as far as its mount.
_FALLS_BACK = """\
for name in give_back_network usual_waits read_ahead_again say note all_loaded; do eval "$name() { :; }"; done
wants_own_initramfs() { grep ' /newroot ' /proc/mounts; exit; }
mount -t tmpfs -o nosuid none /newroot
mkdir /newroot/fast
MOUNTED=yes stock_mode=ro
{}
boot_stock why
"""


def falls_back(root: Path, meanwhile: str) -> list[str]:
    return mounted(root, _FALLS_BACK.replace("{}\n", f"{meanwhile}\n"))


@pytest.mark.parametrize(
    ("user", "keeps"),
    [
        (":", False),
        ("cd /newroot", False),
        ("sleep 0.3 <newroot/fast &", False),
        ("exec 3</newroot/fast", True),
    ],
)
def test_a_stock_boot_has_no_options_of_the_build(tmp_path: Path, user: str, keeps: bool) -> None:
    """While a program uses the root volume, it cannot be mounted again. Init waits for a second."""
    found = falls_back(tmp_path, user)
    assert found[0] == "ro"
    assert ("nosuid" in found) is keeps


def test_a_stock_boot_waits_for_what_unpacks_part_b(tmp_path: Path) -> None:
    """It reads its file from the root volume, until it is told to end."""
    reads = "trap 'usleep 1500000; exit 1' TERM; exec 3</newroot/fast; while :; do usleep 10000; done"
    assert "nosuid" not in falls_back(tmp_path, f"({reads}) & CHECKER=$!; usleep 200000")
