"""debugfs(8) reads the root disks that mkfs.ext4 writes (as root, because owners and modes are kept)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import time
import uuid
from pathlib import Path, PurePosixPath

import pytest

from quickstart.errors import ArtefactError, BadInputError
from quickstart.host import door
from quickstart.image import ext4
from quickstart.image.ext4 import used_inodes, write_disk
from quickstart.image.extents import file_extents
from quickstart.image.superblock import read_superblock
from quickstart.inspect.foreign.members import DeviceNode
from quickstart.model import IMAGE_TIME_S, MIB
from quickstart.model.rootdisk import RootDisk
from tests.contract.ordinary import is_host_root

UUID = str(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"))


def debugfs(disk: Path, command: str) -> str:
    tool = shutil.which("debugfs", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        pytest.fail("debugfs is not installed: apt-get install e2fsprogs")
    done = subprocess.run(
        [tool, "-R", command, disk],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PAGER": "cat"},
    )
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they write files of other owners")
    tree = tmp_path / "tree"
    (tree / "dir").mkdir(parents=True)
    for name, mode, owner in (("plain", 0o644, 0), ("dir/odd", 0o4711, 1234), ("dir/secret", 0o600, 65534)):
        (tree / name).write_text(name)
        os.chown(tree / name, owner, owner + 1)
        (tree / name).chmod(mode)
    (tree / "dir").chmod(0o1777)
    (tree / "link").symlink_to("/dir/odd")
    return tree


def written(tree: Path, path: Path) -> RootDisk:
    return write_disk(tree, path, 16, UUID, "root")


@pytest.mark.parametrize(
    ("name", "mode", "owner", "group"),
    [
        ("/plain", 0o644, 0, 1),
        ("/dir/odd", 0o4711, 1234, 1235),
        ("/dir/secret", 0o600, 65534, 65535),
        ("/dir", 0o1777, 0, 0),
    ],
)
def test_modes_and_owners(tree: Path, tmp_path: Path, name: str, mode: int, owner: int, group: int) -> None:
    shown = debugfs(written(tree, tmp_path / "disk").path, f"stat {name}").split()
    assert int(shown[shown.index("Mode:") + 1], 8) == mode
    assert shown[shown.index("User:") + 1] == str(owner)
    assert shown[shown.index("Group:") + 1] == str(group)


def test_contents_and_links(tree: Path, tmp_path: Path) -> None:
    disk = written(tree, tmp_path / "disk").path
    assert debugfs(disk, "cat /dir/odd") == "dir/odd"
    assert 'Fast link dest: "/dir/odd"' in debugfs(disk, "stat /link")


def test_the_superblock(tree: Path, tmp_path: Path) -> None:
    disk = written(tree, tmp_path / "disk")
    assert disk.size_bytes == disk.path.stat().st_size == 16 * MIB
    assert (disk.superblock.uuid, disk.superblock.mount_count) == (UUID, 0)
    assert disk.superblock.clean
    assert not disk.superblock.has_errors
    assert not disk.superblock.needs_recovery


def test_the_same_tree_has_the_same_superblock(tree: Path, tmp_path: Path) -> None:
    assert written(tree, tmp_path / "a").superblock == written(tree, tmp_path / "b").superblock


def test_a_later_write_shows(tree: Path, tmp_path: Path) -> None:
    """What "never used" rests on: any tool that writes the file system leaves another superblock."""
    disk = written(tree, tmp_path / "disk")
    tool = shutil.which("debugfs", path="/usr/sbin:/sbin") or "debugfs"
    subprocess.run([tool, "-w", "-R", "rm /plain", disk.path], capture_output=True, timeout=60, check=True)
    assert read_superblock(disk.path) != disk.superblock


def test_a_tree_that_does_not_fit(tree: Path, tmp_path: Path) -> None:
    (tree / "large").write_bytes(os.urandom(20 * MIB))
    with pytest.raises(BadInputError, match="does not fit on a disk of 16 MiB"):
        written(tree, tmp_path / "disk")
    assert not (tmp_path / "disk").exists()


def test_a_tree_of_more_files_than_the_disk_has_inodes(tree: Path, tmp_path: Path) -> None:
    for number in range(5000):
        (tree / str(number)).touch()
    with pytest.raises(BadInputError, match="does not fit on a disk of 16 MiB"):
        written(tree, tmp_path / "disk")


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of 100 files with names of 16 bytes, which is as much as is allowed."""
    monkeypatch.setattr(ext4, "_MOST_ENTRIES", 101)
    (full := tmp_path / "tree/usr/full").mkdir(parents=True)
    for number in range(100):
        (full / f"{number:016}").touch()
    return full


@pytest.mark.parametrize("more", [["one", "two", "three"], ["x" * 255]])
def test_a_directory_of_more_files_than_mke2fs_takes_in_time(
    full: Path, tmp_path: Path, more: list[str]
) -> None:
    """40 000 empty files, of an archive of 65 KB, took a minute of CPU time; so did 13 000 with names of 255 bytes."""
    write_disk(tmp_path / "tree", tmp_path / "disk", 16, UUID, "root")
    for name in more:
        (full / name).touch()
    with pytest.raises(
        BadInputError, match=f"too many files in one directory: /usr/full has {100 + len(more)},"
    ):
        write_disk(tmp_path / "tree", tmp_path / "other", 16, UUID, "root")
    assert not (tmp_path / "other").exists()


def test_a_directory_of_more_devices_than_debugfs_takes_in_time(full: Path, tmp_path: Path) -> None:
    """It looks each of them up for each of its fields."""
    node = DeviceNode(path="usr/full/null", mode=0o20666, uid=0, gid=0, major=1, minor=3, mtime_s=0)
    with pytest.raises(BadInputError, match="too many files in one directory: /usr/full has 101,"):
        write_disk(tmp_path / "tree", tmp_path / "disk", 16, UUID, "root", (node,))


def test_what_takes_mke2fs_too_much_time_is_ended_by_name(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For what no bound knows. The time in proportion to the tree is taken from it."""
    (tree / "large").write_bytes(bytes(15 * MIB))
    assert ext4._checked(tree, ()) == ext4._CPU_S
    monkeypatch.setattr(ext4, "_CPU_S_PER_GIB", 1024)
    assert 15 <= ext4._checked(tree, ()) - ext4._CPU_S <= 16
    monkeypatch.setattr(ext4, "_checked", lambda *_: 1)
    monkeypatch.setattr(door, "_cpu_words", lambda _: ("sh", "-c", "kill -XCPU $$"))
    with pytest.raises(BadInputError, match=r"making the disk takes mkfs\.ext4 more than 1 s of CPU time"):
        written(tree, tmp_path / "disk")
    assert not (tmp_path / "disk").exists()


def test_more_hard_links_than_mke2fs_can_look_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the product of the files and of their names is what it looks at."""
    monkeypatch.setattr(ext4, "_MOST_HARD_LINKS", 10)
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(7):
        (tree / f"file{number}").touch()
        (tree / f"link{number}").hardlink_to(tree / f"file{number}")
        (tree / f"alone{number}").touch()
    write_disk(tree, tmp_path / "disk", 16, UUID, "root")
    (tree / "again").hardlink_to(tree / "file0")
    with pytest.raises(BadInputError, match="too many hard links: 7 files have 15 names"):
        write_disk(tree, tmp_path / "other", 16, UUID, "root")
    assert not (tmp_path / "other").exists()


def test_a_path_for_which_mke2fs_would_write_behind_its_buffer(tmp_path: Path) -> None:
    """create_inode.c, path_append: the longest one that it is given, and one byte more."""
    tree = tmp_path / "tree"
    deepest = tree.joinpath(*["d" * 199] * 4, "e" * 198)
    deepest.mkdir(parents=True)
    (deepest / "f").touch()
    write_disk(tree, tmp_path / "disk", 16, UUID, "root")
    (deepest / "g\n").touch()
    with pytest.raises(BadInputError, match="the image has a path of more than 1000 bytes: /ddd") as caught:
        write_disk(tree, tmp_path / "other", 16, UUID, "root")
    assert len(caught.value.message) < 300


def make_node(path: Path) -> None:
    """A device node, where we are the host's root; else a socket, which has no content either and is not copied."""
    if is_host_root():
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        return
    way = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{way}/{path.name}")
    finally:
        os.close(way)


def odd_tree(base: Path, names: list[str], when_s: int) -> Path:
    """A tree with something of every kind, made in the order of ``names`` and last read at ``when_s``."""
    tree = base / "tree"
    tree.mkdir(parents=True)
    for name in names:
        if name.endswith("/"):
            (tree / name).mkdir()
            continue
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(name * 500)
        os.chown(tree / name, len(name), 7)
    (tree / "link").symlink_to("b/1")
    (tree / "hard").hardlink_to(tree / "a")
    make_node(tree / "node")
    os.mkfifo(tree / "fifo", 0o640)
    with (tree / "sparse").open("wb") as file:
        file.truncate(3 * MIB)
    os.setxattr(tree / "a", "user.note", b"kept")
    os.setxattr(tree / "b/1", "security.capability", CAPABILITY)
    os.setxattr(tree / "c", "system.posix_acl_access", ACL)
    tree.chmod(0o751)
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (when_s, 1_600_000_000), follow_symlinks=False)
    return tree


# cap_net_bind_service+ep as setcap(8) writes it: struct vfs_ns_cap_data's predecessor, revision 2 (linux/capability.h).
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
# POSIX ACL user::rw-,user:1000:r--,group::r--,mask::r--,other::--- as the kernel keeps it (linux/posix_acl_xattr.h).
ACL = bytes.fromhex(
    "0200000001000600ffffffff02000400e803000004000400ffffffff10000400ffffffff20000000ffffffff"
)
NAMES = ["a", "b/", "b/1", "b/2", "c", "d/", "d/e/", "d/e/long-name"]


def test_equal_trees_give_equal_bytes(tree: Path, tmp_path: Path) -> None:
    """Two directories, filled in another order, a second apart, read at other times."""
    first = written(odd_tree(tmp_path / "x", NAMES, 1_700_000_000), tmp_path / "1").path
    time.sleep(1.1)
    again = ["d/", "d/e/", "d/e/long-name", "c", "b/", "b/2", "b/1", "a"]
    second = written(odd_tree(tmp_path / "y", again, 1_710_000_000), tmp_path / "2").path
    assert first.read_bytes() == second.read_bytes()
    other = odd_tree(tmp_path / "z", NAMES, 1_700_000_000)
    os.utime(other / "c", (0, 1_600_000_001))
    assert written(other, tmp_path / "3").path.read_bytes() != first.read_bytes()


def test_a_disk_is_clean_and_holds_every_kind(tree: Path, tmp_path: Path) -> None:
    disk = written(odd_tree(tmp_path / "x", NAMES, 1_700_000_000), tmp_path / "disk").path
    checked = subprocess.run(["/usr/sbin/e2fsck", "-fn", disk], capture_output=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "Links: 2 " in debugfs(disk, "stat /a")
    assert debugfs(disk, "stat /a").splitlines()[0] == debugfs(disk, "stat /hard").splitlines()[0]
    kind = "Device major/minor number: 01:03" if is_host_root() else "Type: socket"
    assert kind in debugfs(disk, "stat /node")
    assert "Type: FIFO" in debugfs(disk, "stat /fifo")
    assert "Blockcount: 0" in debugfs(disk, "stat /sparse")
    assert 'user.note (4) = "kept"' in debugfs(disk, "ea_list /a")
    assert "security.capability" in debugfs(disk, "ea_list /b/1")
    assert "system.posix_acl_access" in debugfs(disk, "ea_list /c")
    assert "Mode:  0751" in debugfs(disk, "stat /")


def test_times_on_a_disk(tree: Path, tmp_path: Path) -> None:
    """All inodes, those behind the first group too: mtime as in the tree, the rest IMAGE_TIME_S."""
    many = odd_tree(tmp_path / "x", [*NAMES, *(f"b/{n}" for n in range(10, 2500))], 1_700_000_000)
    disk = write_disk(many, tmp_path / "disk", 12, UUID, "root").path
    inodes = used_inodes(disk)
    assert len(inodes) == 2 + sum(1 for path in many.rglob("*")) - 1
    fixed = f"0x{IMAGE_TIME_S:08x}:00000000"
    for name in ("a", "link", "d", "d/e/long-name", "node", "b/10", "b/2499"):
        shown = debugfs(disk, f"stat /{name}")
        assert {line.strip().split(" -- ")[0] for line in shown.splitlines() if "time: " in line} == {
            f"ctime: {fixed}",
            f"atime: {fixed}",
            f"mtime: 0x{1_600_000_000:08x}:00000000",
            f"crtime: {fixed}",
        }, name


# By name: where it lies, what kind, its numbers, owner; the kernel keeps numbers beyond 255 another way.
NODES = (
    DeviceNode(path="d/null", mode=0o20666, uid=0, gid=0, major=1, minor=3, mtime_s=1_500_000_000),
    DeviceNode(
        path='d/e/with "quotes" \udcff', mode=0o60640, uid=70_000, gid=6, major=8, minor=17, mtime_s=1
    ),
    DeviceNode(
        path="<2>", mode=0o21600, uid=65_534, gid=100_000, major=259, minor=70_000, mtime_s=1_600_000_000
    ),
)


def test_device_nodes_on_a_disk(tree: Path, tmp_path: Path) -> None:
    """No node is made on the host: the tree has none, and neither the directories' times nor anything else tells of it."""
    disks = []
    for name in ("x", "y"):
        given = odd_tree(tmp_path / name, NAMES, 1_700_000_000)
        (given / "node").unlink()
        os.utime(given, (1_700_000_000, 1_600_000_000))
        disks.append(write_disk(given, tmp_path / f"{name}.raw", 16, UUID, "root", NODES).path)
        time.sleep(1.1)
    assert disks[0].read_bytes() == disks[1].read_bytes()
    checked = subprocess.run(
        ["/usr/sbin/e2fsck", "-fn", disks[0]], capture_output=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout
    shown = debugfs(disks[0], "stat /d/null")
    assert "Type: character special" in shown and "Mode:  0666" in shown
    assert "Device major/minor number: 01:03" in shown
    times = {line.strip().split(" -- ")[0] for line in shown.splitlines() if "time: " in line}
    fixed = f"0x{IMAGE_TIME_S:08x}:00000000"
    assert times == {f"{name}: {fixed}" for name in ("ctime", "atime", "crtime")} | {
        f"mtime: 0x{1_500_000_000:08x}:00000000"
    }
    shown = debugfs(disks[0], 'stat "/d/e/with ""quotes"" \udcff"')
    assert "Type: block special" in shown and "Mode:  0640" in shown
    assert re.search(r"User: +70000 +Group: +6 ", shown)
    assert "Device major/minor number: 08:17" in shown
    shown = debugfs(disks[0], "stat /<2>")
    assert "Mode:  01600" in shown and re.search(r"User: +65534 +Group: +100000 ", shown)
    assert "(New-style) Device major/minor number: 259:70000" in shown
    assert f"mtime: 0x{1_600_000_000:08x}" in debugfs(disks[0], "stat /d")


@pytest.mark.parametrize(
    "path",
    # Of the last debugfs' line is longer than it reads at once; what is beyond begins with the exclamation mark.
    ["d\n!false/n", "d\rd/n", "/".join([*(['"' * 255] * 15), '"' * 254 + "!"])],
)
def test_a_name_is_never_a_command_of_debugfs(tree: Path, tmp_path: Path, path: str) -> None:
    """`!` runs a shell on this host."""
    (tree / path).parent.mkdir(parents=True)
    node = DeviceNode(path=path, mode=0o20666, uid=0, gid=0, major=1, minor=3, mtime_s=1)
    with pytest.raises(BadInputError, match=r"debugfs cannot be told|a path of more than 1000 bytes"):
        write_disk(tree, tmp_path / "disk", 16, UUID, "root", (node,))


def test_a_files_extents_hold_its_bytes(tree: Path, tmp_path: Path) -> None:
    # Named so that debugfs needs quotes, and with a hole, which lies nowhere.
    odd = tree / "dir/a kernel"
    data = os.urandom(300_000)
    with odd.open("wb") as file:
        file.write(data)
        file.seek(1 << 20)
        file.write(data)
    disk = written(tree, tmp_path / "disk")
    found = file_extents(disk.path, PurePosixPath("/dir/a kernel"))
    with disk.path.open("rb") as file:
        blocks = []
        for offset, length in found:
            file.seek(offset)
            blocks.append(file.read(length))
    content = b"".join(blocks)
    padding = bytes(-len(data) % 1024)
    assert content.count(data + padding) == 2
    assert len(content) < 2 * len(data) + 2 * 4096


def test_a_file_that_is_not_there_has_no_extents(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no file /nowhere"):
        file_extents(written(tree, tmp_path / "disk").path, PurePosixPath("/nowhere"))
