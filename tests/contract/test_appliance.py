"""The appliance's scripts on file systems that somebody has made to mislead them, with the BusyBox of the appliance.

They run in the root that the appliance has for this. A directory stands for the mounted file system.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from quickstart.host import door
from quickstart.host.namespaces import own_namespaces
from quickstart.initramfs.newc import write_archive
from quickstart.inspect.disk.records import parse_records
from quickstart.launch.appliance.archive import cell

LIMIT_S = 60.0
NETWORK = "etc/systemd/network"
# As in the appliance, beside the root in which the scripts run, and for the links that would lead out of it.
IN_CELL = 'cd "$1" && exec cell/bin/busybox chroot cell /bin/sh /bin/look contents 1 "$2"'


def disk_in(place: Path) -> Path:
    """The directory for the file system, in the root for the scripts below ``place``."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    with (place / "archive").open("wb") as stream:
        write_archive(stream, cell(door.tool_path("busybox")))
    with (place / "archive").open("rb") as stream:
        words = [str(door.tool_path("busybox")), "cpio", "-i"]
        subprocess.run(words, cwd=place, stdin=stream, check=True, capture_output=True, timeout=LIMIT_S)
    return place / "cell/disk"


def contents(place: Path, kind: str = "ext4") -> Mapping[str, bytes]:
    """What `look` says about the file system: the content of each record by its name, and by its path for a file."""
    words = [*own_namespaces(network=True), "sh", "-c", IN_CELL, "sh", str(place), kind]
    done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=True)
    assert done.stderr == b""
    return {each.path or each.name: each.content for each in parse_records(done.stdout + b"end 1\n\n\n")}


def put(disk: Path, name: str, text: str = "") -> Path:
    path = disk / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_an_ordinary_file_system(tmp_path: Path) -> None:
    disk = disk_in(tmp_path)
    put(disk, "etc/fstab", "a line\n")
    put(disk, "etc/netplan/a b.yaml", "x")
    put(disk, "etc/netplan/no", "x")
    put(disk, "boot/vmlinuz-1", "kernel")
    put(disk, "boot/grub/grub.cfg", "y" * (1 << 20) + "z")
    put(disk, "boot/grub/x/module.mod")
    put(disk, "usr/lib/systemd/systemd")
    (disk / "lib").symlink_to("usr/lib")
    (disk / "usr/sbin").mkdir()
    (disk / "sbin").symlink_to("usr/sbin")
    (disk / "usr/sbin/init").symlink_to("../lib/systemd/systemd")
    wants = disk / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "a.service").symlink_to("/usr/lib/systemd/system/a.service")
    found = contents(tmp_path)
    assert len(found["space"].split()) == 4
    assert set(found["top"].split()) == {b"./boot", b"./etc", b"./lib", b"./sbin", b"./usr"}
    assert found["boot"] == b"6 ./boot/vmlinuz-1\n"
    assert found["links"] == b"".join(
        b"./%ssbin/init ../lib/systemd/systemd\n" % each for each in (b"", b"usr/")
    )
    assert found["present"] == b"./usr/lib/systemd/systemd\n./lib/systemd/systemd\n"
    assert found["enabled"] == b"./etc/systemd/system/multi-user.target.wants/a.service\n"
    assert {name for name in found if name.startswith("./")} == {
        "./etc/fstab",
        "./etc/netplan/a b.yaml",
        "./boot/grub/grub.cfg",
    }
    assert found["./boot/grub/grub.cfg"] == b"y" * (1 << 20)


@pytest.mark.parametrize("name", ["@rootfs", "@"])
def test_a_system_in_a_subvolume(tmp_path: Path, name: str) -> None:
    disk = disk_in(tmp_path)
    put(disk, f"{name}/etc/fstab", "a line\n")
    put(disk, f"{name}/usr/lib/systemd/systemd")
    found = contents(tmp_path, "btrfs")
    assert found["subvolume"] == f"{name}\n".encode()
    assert found["./etc/fstab"] == b"a line\n"
    assert found["present"] == b"./usr/lib/systemd/systemd\n"
    # Only btrfs has subvolumes.
    found = contents(tmp_path)
    assert "subvolume" not in found
    assert found["present"] == b""


@pytest.mark.parametrize("what", ["system beside it", "link", "no system", "link to etc"])
def test_what_is_no_subvolume(tmp_path: Path, what: str) -> None:
    disk = disk_in(tmp_path)
    if what == "link":
        put(disk, "other/etc/fstab", "a line\n")
        (disk / "@rootfs").symlink_to("other")
    elif what == "no system":
        put(disk, "@rootfs/usr/x")
    else:
        put(disk, "@rootfs/etc/fstab", "a line\n")
    if what == "system beside it":
        put(disk, "etc/fstab", "the first\n")
    elif what == "link to etc":
        (disk / "etc").symlink_to("@rootfs/etc")
    assert "subvolume" not in contents(tmp_path, "btrfs")


def test_a_name_with_a_line_break(tmp_path: Path) -> None:
    """It is one name, of which no part is read as another one: the FIFO ./y would be waited for."""
    disk = disk_in(tmp_path)
    put(disk, f"{NETWORK}/a\ny")
    put(disk, f"{NETWORK}/b", "b")
    put(disk, "boot/c\n9999999 .")
    put(disk, "d\ne")
    os.mkfifo(disk / "y")
    (disk / "sbin").mkdir()
    (disk / "sbin/init").symlink_to("x\n./vmlinuz y")
    found = contents(tmp_path)
    assert [name for name in found if name.startswith("./")] == [f"./{NETWORK}/b"]
    assert (found["boot"], found["links"]) == (b"", b"")
    assert set(found["top"].split(b"\n")) == {b"./boot", b"./etc", b"./sbin", b"./y", b""}


@pytest.mark.parametrize("target", ["/proc", "../../../../proc", "../..", "/bin", "../../../run"])
def test_a_link_in_a_path(tmp_path: Path, target: str) -> None:
    disk = disk_in(tmp_path)
    (tmp_path / "cell/proc").mkdir()
    (tmp_path / "cell/proc/kmsg").write_text("the appliance's")
    put(disk, "etc/hostname", "x")
    (disk / "etc/systemd").mkdir()
    (disk / NETWORK).symlink_to(target)
    found = contents(tmp_path)
    assert [name for name in found if name.startswith("./")] == []


def test_what_is_no_file(tmp_path: Path) -> None:
    disk = disk_in(tmp_path)
    (disk / NETWORK).mkdir(parents=True)
    os.mkfifo(disk / NETWORK / "fifo")
    (disk / NETWORK / "directory").mkdir()
    (disk / NETWORK / "link").symlink_to("file")
    (disk / NETWORK / "loop").symlink_to("loop")
    put(disk, f"{NETWORK}/file", "x")
    assert [name for name in contents(tmp_path) if name.startswith("./")] == [f"./{NETWORK}/file"]


def test_more_files_than_anybody_has(tmp_path: Path) -> None:
    disk = disk_in(tmp_path)
    for number in range(600):
        put(disk, f"{NETWORK}/{number}")
    assert len([name for name in contents(tmp_path) if name.startswith("./")]) == 512


def test_a_record_of_what_never_ends(tmp_path: Path) -> None:
    """For a second in place of 30. Nobody writes to the FIFO."""
    disk = disk_in(tmp_path)
    os.mkfifo(disk / "fifo")
    look = tmp_path / "cell/bin/look"
    text = look.read_text().replace("limit_s=30", "limit_s=1")
    before, mark, _ = text.partition('if [ "${1-}" = contents ]')
    assert mark
    look.write_text(f'{before}cd /disk\nrecord "file 1 ./fifo" ./fifo\n')
    assert contents(tmp_path) == {"./fifo": b""}
