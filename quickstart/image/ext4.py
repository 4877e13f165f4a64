"""Make an ext4 root disk from a directory tree without mounting it (mke2fs(8), option -d), and read its superblock."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quickstart.errors import ArtefactError, BadInputError, CommandError, CpuLimitError, MissingToolError
from quickstart.host import door
from quickstart.host.walk import walk
from quickstart.image.ext4layout import SUPERBLOCK_AT, SUPERBLOCK_BYTES, damaged, read_layout
from quickstart.inspect.foreign.members import PATH_BYTES, DeviceNode
from quickstart.model import IMAGE_TIME_S, MIB
from quickstart.model.rootdisk import RootDisk
from quickstart.model.superblock import Superblock
from quickstart.parse.printable import brief
from quickstart.store.store import source_digest

# Every program that writes to an image gets this variable. Otherwise, the superblock's time of writing
# would differ.
FIXED_TIME = {"E2FSPROGS_FAKE_TIME": str(IMAGE_TIME_S)}
# libext2fs' words for a volume without a free block, inode, or room in a directory.
_FULL = ("Could not allocate block", "Could not allocate inode", "No free space")
_MAGIC = 0xEF53
# Documentation/filesystems/ext4/super.rst: s_state bits and s_feature_incompat bits.
_STATE_CLEAN = 0x1
_STATE_ERRORS = 0x2
_INCOMPAT_RECOVER = 0x4
# group_descr.rst: bg_flags.
_INODE_UNINIT = 0x1
_BLOCK_UNINIT = 0x2
# The limit for a root volume. Debian with a desktop has a third of this.
MAX_USED_INODES = 1 << 20
# The limit for one directory, with names of 16 bytes. mke2fs takes about 20 s for it. Debian's largest
# directory, /var/lib/dpkg/info, has some thousand entries.
_MOST_ENTRIES, _NAME_BYTES = 25_000, 16
# debugfs looks up a device this often: to make the device, and to set each of its fields.
_DEVICE_LOOKUPS = 9
# ext4_dir_entry_2 (directory.rst): inode, length of the entry, length of the name, kind.
_ENTRY_HEAD_BYTES = 8
# CPU time for mke2fs, and for debugfs, so that unforeseen trees are limited, too. Ordinary are 5 s for a
# GiB of data, and 3 s for 100 000 files.
_CPU_S, _CPU_S_PER_GIB, _FILES_PER_CPU_S, _EMPTY_GIB_PER_CPU_S = 30, 30, 3000, 8
# stat(2): the unit of st_blocks, whatever the file system.
_STAT_BLOCK_BYTES = 512
# The limit for files with several names. mke2fs takes about 10 s for it. Debian's packages have fewer than
# ten such files.
_MOST_HARD_LINKS = 200_000
_NOT_ZERO = re.compile(rb"[^\0]")
_ROOT_INODE = 2
# mke2fs.conf(5): the features and sizes of each kind of file system.
_SETTINGS = Path("/etc/mke2fs.conf")
_FIRST_INODE = 11
# debugfs(8) reads a longer line as two lines (BUFSIZ, 8192 with glibc), and a line that begins with an
# exclamation mark runs a shell.
_COMMAND_BYTES = 4096
_BREAK = re.compile(r"[\r\n]")
# Hexadecimal digits of a hash, as seconds. 28 bits lead from 2014 to 2022.
_CREATED_DIGITS = 7


@cache
def disk_recipe() -> Mapping[str, str]:
    """The facts, apart from the tree, on which the bytes of a disk depend. These facts are our code, and the version
    and settings of mke2fs. The facts are part of the keys by which the store finds disks.

    When mke2fs is not installed, the version is empty.
    """
    version = ""
    with suppress(MissingToolError):
        version = door.run(["mke2fs", "-V"], timeout_s=30).stderr.decode(errors="replace").strip()
    settings = _SETTINGS.read_bytes() if _SETTINGS.is_file() else b""
    return {
        "recipe": source_digest("quickstart.image"),
        "mke2fs": version,
        "mke2fs.conf": hashlib.sha256(settings).hexdigest(),
    }


def write_disk(
    tree: Path,
    path: Path,
    size_mib: int,
    volume_uuid: str,
    label: str,
    devices: tuple[DeviceNode, ...] = (),
    *,
    created_s: int = IMAGE_TIME_S,
) -> RootDisk:
    """Write ``tree`` to ``path`` as a sparse raw ext4 file system of ``size_mib`` MiB. The function needs root, so that
    files keep their owners and modes.

    ``devices`` are device nodes. The function makes these nodes only in the image, in directories that come from the
    tree. It never makes device nodes on the host. The same tree always gives the same bytes, for two reasons. First,
    mke2fs adds files in the order of their names, and with modification times in whole seconds. Second, all other times
    have the value of the constant IMAGE_TIME_S, except the file system's own time of creation, which is ``created_s``
    (see `created_of`).

    Raises BadInputError when the tree does not fit into the disk or has a path that is too long for mke2fs, and when
    mke2fs or debugfs needs too much CPU time.
    """
    door.need_root("keeping owners and modes in a root disk")
    cpu_s = _checked(tree, devices) + size_mib // 1024 // _EMPTY_GIB_PER_CPU_S
    options = ("-q", "-F", "-L", label, "-U", volume_uuid, "-E", f"hash_seed={volume_uuid}")
    try:
        _run(["mkfs.ext4", *options, "-d", tree, path, f"{size_mib}M"], cpu_s)
    except (CommandError, BadInputError) as error:
        path.unlink(missing_ok=True)
        if isinstance(error, CommandError) and any(words in error.tail for words in _FULL):
            raise BadInputError(
                f"the image does not fit on a disk of {size_mib} MiB",
                hint="raise disk.size_mib in the profile",
            ) from error
        raise
    # The disk contains /etc/shadow, so other users must not read it.
    path.chmod(0o600)
    if devices:
        _make_nodes(tree, path, devices, cpu_s)
    _fix_times(tree, path, created_s, cpu_s)
    return RootDisk(path=path, size_bytes=size_mib * MIB, superblock=_superblock(path))


def _superblock(path: Path) -> Superblock:
    with path.open("rb") as file:
        file.seek(SUPERBLOCK_AT)
        return parse_superblock(file.read(SUPERBLOCK_BYTES), str(path))


def created_of(image_hash: str) -> int:
    """A time of creation for the disk of the image with this hash. Disks of different images get different times, even
    if their UUID is the same. The UUID is in the image's fstab, so it cannot depend on the image's content. Init takes
    only the disk of its own build for unchanged.
    """
    return IMAGE_TIME_S + int(image_hash[:_CREATED_DIGITS], 16)


def _run(argv: Sequence[str | Path], cpu_s: int, stdin: bytes | None = None) -> door.Completed:
    try:
        return door.run(argv, timeout_s=1800, env=FIXED_TIME, stdin=stdin, cpu_s=cpu_s)
    except CpuLimitError as error:
        raise BadInputError(
            f"making the disk takes {argv[0]} more than {cpu_s} s of CPU time",
            hint="look for directories with very many files, and for very many hard links",
        ) from error


def _checked(tree: Path, devices: tuple[DeviceNode, ...]) -> int:
    """The limit of the CPU time, in seconds, that mke2fs may take for ``tree``. The limit is several times the CPU time
    that mke2fs takes for an ordinary tree with as many files and bytes.

    Raises BadInputError for a path of more than PATH_BYTES bytes. With some longer paths, mke2fs writes beyond the end
    of a buffer (see inspect/foreign/members.py). mke2fs runs as root, so this function checks every tree, even a tree
    that comes from a trusted user. Also raises BadInputError when mke2fs would take too long, because directories have
    too many entries or files have too many hard links.
    """
    top = os.fsencode(tree)
    directories: defaultdict[bytes, _Directory] = defaultdict(_Directory)
    linked = Counter[int]()
    blocks = 0
    for path, is_directory in walk(top, tree.stat().st_dev):
        holder, _, name = path.rpartition(b"/")
        directories[holder].add(name, 1)
        if len(path) - len(top) - 1 > PATH_BYTES:
            raise BadInputError(
                f"the image has a path of more than {PATH_BYTES} bytes: {brief(os.fsdecode(path[len(top) :]))}",
                hint="move it up, or remove it",
            )
        status = os.lstat(path)
        blocks += status.st_blocks
        if status.st_nlink > 1 and not is_directory:
            linked[status.st_ino] += 1
    for node in devices:
        holder, _, name = b"/".join((top, os.fsencode(node.path))).rpartition(b"/")
        directories[holder].add(name, _DEVICE_LOOKUPS)
    # For every name of such a file, mke2fs looks through a list of all such files.
    if len(linked) * linked.total() > _MOST_HARD_LINKS**2:
        raise BadInputError(
            f"the image has too many hard links: {len(linked)} files have {linked.total()} names",
            hint="making the disk would take too long; replace most of them by symbolic links or copies",
        )
    _check_directories(directories, top)
    files = sum(directory.names for directory in directories.values())
    return _CPU_S + files // _FILES_PER_CPU_S + blocks * _STAT_BLOCK_BYTES * _CPU_S_PER_GIB // (1024 * MIB)


@dataclass
class _Directory:
    """A directory of a tree, with the number of its names, the number of lookups of these names, and its size on the
    disk.
    """

    names: int = 0
    lookups: int = 0
    size_bytes: int = 0

    def add(self, name: bytes, lookups: int) -> None:
        """Count the entry ``name``, which mke2fs or debugfs looks up ``lookups`` times."""
        self.names += 1
        self.lookups += lookups
        self.size_bytes += _entry_bytes(len(name))

    @property
    def work(self) -> int:
        """The number of bytes that mke2fs and debugfs read in this directory. For each lookup of a name, mke2fs and
        debugfs read the whole directory.
        """
        return self.lookups * self.size_bytes


def _entry_bytes(name_bytes: int) -> int:
    return _ENTRY_HEAD_BYTES + (name_bytes + 3) // 4 * 4


def _check_directories(directories: Mapping[bytes, _Directory], top: bytes) -> None:
    if sum(each.work for each in directories.values()) <= _MOST_ENTRIES**2 * _entry_bytes(_NAME_BYTES):
        return
    path, largest = max(directories.items(), key=lambda each: each[1].work)
    raise BadInputError(
        f"the image has too many files in one directory: {brief(os.fsdecode(path[len(top) :]) or '/')} "
        f"has {largest.names}, with {largest.size_bytes} bytes of names",
        hint=f"making the disk would take too long; {_MOST_ENTRIES} with names of {_NAME_BYTES} bytes are the limit, "
        "for the largest directories together, and fewer with longer names",
    )


def _fix_times(tree: Path, path: Path, created_s: int, cpu_s: int) -> None:
    """Set the times that mke2fs takes from the host (ctime, atime), and the file system's time of creation. Also set the
    root directory's metadata, which mke2fs does not copy from ``tree``.
    """
    root = tree.lstat()
    commands = [
        f"set_inode_field <{inode}> {field} @{IMAGE_TIME_S}\n"
        for inode in used_inodes(path)
        for field in ("ctime", "atime")
    ]
    own = {"mode": f"0{root.st_mode:o}", "uid": root.st_uid, "gid": root.st_gid, "mtime": f"@{IMAGE_TIME_S}"}
    commands += [f"set_inode_field <{_ROOT_INODE}> {field} {value}\n" for field, value in own.items()]
    commands.append(f"set_super_value mkfs_time @{created_s}\n")
    _change(path, commands, cpu_s)


def _make_nodes(tree: Path, path: Path, devices: tuple[DeviceNode, ...], cpu_s: int) -> None:
    """Make device nodes in the image of ``tree``. The directories that contain the nodes keep their times."""
    commands = []
    for node in devices:
        holder, _, name = node.path.rpartition("/")
        kind = "b" if stat.S_ISBLK(node.mode) else "c"
        # debugfs' mknod knows minors of 16 bits only.
        commands += [f"cd {_quoted('/' + holder)}\n", f"mknod {_quoted(name)} {kind} 0 0\n"]
        fields: dict[str, str | int] = {"mode": f"0{node.mode:o}", "uid": node.uid, "gid": node.gid}
        fields |= {"mtime": f"@{node.mtime_s}", **_device_number(node.major, node.minor)}
        place = _quoted("/" + node.path)
        commands += [f"set_inode_field {place} {field} {value}\n" for field, value in fields.items()]
        mtime_s = int((tree / holder).lstat().st_mtime)
        commands.append(f"set_inode_field {_quoted('/' + holder)} mtime @{mtime_s}\n")
    _change(path, commands, cpu_s)


def _device_number(major: int, minor: int) -> dict[str, int]:
    """The fields of an inode that have the number of a device. The kernel knows two formats of this number
    (include/linux/kdev_t.h).
    """
    if major < 256 and minor < 256:
        return {"block[0]": major << 8 | minor}
    return {"block[1]": minor & 0xFF | major << 8 | (minor & ~0xFF) << 12}


def _quoted(word: str) -> str:
    """``word`` in quotes, in the form that libss, a library of debugfs, reads. Each quote in ``word`` is doubled."""
    return '"' + word.replace('"', '""') + '"'


def _change(path: Path, commands: list[str], cpu_s: int) -> None:
    """Run debugfs(8) on the image. Raises BadInputError for a name that debugfs cannot read as one word."""
    for each in commands:
        if _BREAK.search(each[:-1]) or len(each.encode(errors="surrogateescape")) > _COMMAND_BYTES:
            raise BadInputError(
                f"the image has a name that debugfs cannot be told: {each[:200]!a}",
                hint="rename it, or move it up",
            )
    argv: list[str | Path] = ["debugfs", "-w", "-f", "-", path]
    done = _run(argv, cpu_s, "".join(commands).encode(errors="surrogateescape"))
    # debugfs' exit status does not show a failure. Apart from its version, debugfs prints something only
    # when a command fails.
    faults = [line for line in done.stderr.decode(errors="replace").splitlines()[1:] if line.strip()]
    if faults:
        raise CommandError(done.argv, done.returncode, "\n".join(faults[:5]))


@dataclass(frozen=True, kw_only=True)
class BlockGroup:
    """A block group. ``uninitialised`` says that the group's block bitmap has not been written, because only
    metadata use blocks of the group.
    """

    number: int
    first_block: int
    blocks: int
    free_blocks: int
    uninitialised: bool


def block_groups(path: Path) -> tuple[BlockGroup, ...]:
    """The block groups of a raw image, in order. Raises ArtefactError for a damaged image, and for an image with the
    feature meta_bg.
    """
    with path.open("rb") as file:
        layout = read_layout(file, str(path))
    found = []
    for number in range(layout.groups):
        at = number * layout.descriptor_bytes
        free, flags = (struct.unpack_from("<H", layout.descriptors, at + offset)[0] for offset in (0xC, 0x12))
        if layout.wide:
            free |= struct.unpack_from("<H", layout.descriptors, at + 0x2C)[0] << 16
        first = layout.first_block + number * layout.blocks_per_group
        blocks = min(layout.blocks_per_group, layout.blocks - first)
        found.append(
            BlockGroup(
                number=number,
                first_block=first,
                blocks=blocks,
                free_blocks=free,
                uninitialised=bool(flags & _BLOCK_UNINIT),
            )
        )
    return tuple(found)


def used_inodes(path: Path) -> tuple[int, ...]:
    """The numbers of the inodes in use in a raw image, according to the inode bitmaps. Of the reserved inodes, only the
    inode of the root directory is included.

    Raises ArtefactError for a damaged image, and for an image with the feature meta_bg.
    """
    found: list[int] = []
    with path.open("rb") as file:
        layout = read_layout(file, str(path))
        for group in range(layout.groups):
            offset = group * layout.descriptor_bytes
            if struct.unpack_from("<H", layout.descriptors, offset + 0x12)[0] & _INODE_UNINIT:
                continue
            bitmap_at = struct.unpack_from("<I", layout.descriptors, offset + 0x4)[0]
            if layout.wide:
                bitmap_at |= struct.unpack_from("<I", layout.descriptors, offset + 0x24)[0] << 32
            if bitmap_at >= layout.blocks:
                raise damaged(str(path), f"the inode bitmap of group {group} lies at block {bitmap_at}")
            file.seek(bitmap_at * layout.block_bytes)
            bitmap = file.read(layout.inodes_per_group // 8)
            found += _set_bits(bitmap, group * layout.inodes_per_group + 1)
            # Bitmaps that lie on each other may claim any number.
            if len(found) > MAX_USED_INODES:
                raise damaged(str(path), f"more than {MAX_USED_INODES} inodes are said to be in use")
    return tuple(inode for inode in found if inode == _ROOT_INODE or inode >= _FIRST_INODE)


def _set_bits(bitmap: bytes, first: int) -> Iterator[int]:
    """The numbers of the set bits in ``bitmap``, counted from ``first``. In each byte, the lowest bit comes first."""
    for match in _NOT_ZERO.finditer(bitmap):
        byte, at = match[0][0], first + 8 * match.start()
        yield from (at + bit for bit in range(8) if byte >> bit & 1)


def is_superblock(block: bytes) -> bool:
    """Whether ``block`` begins with the whole superblock of an ext4 file system."""
    return len(block) >= SUPERBLOCK_BYTES and struct.unpack_from("<H", block, 0x38)[0] == _MAGIC


def parse_superblock(block: bytes, source: str) -> Superblock:
    """The facts in the 1024 bytes of an ext4 superblock (kernel: Documentation/filesystems/ext4/super.rst)."""
    if not is_superblock(block):
        raise ArtefactError(f"{source} has no ext4 superblock", hint="is the image truncated?")
    (write_time_s,) = struct.unpack_from("<I", block, 0x30)
    (mount_count,) = struct.unpack_from("<H", block, 0x34)
    (state,) = struct.unpack_from("<H", block, 0x3A)
    (incompat,) = struct.unpack_from("<I", block, 0x60)
    (created_s,) = struct.unpack_from("<I", block, 0x108)
    return Superblock(
        uuid=str(uuid.UUID(bytes=block[0x68:0x78])),
        mount_count=mount_count,
        write_time_s=write_time_s,
        clean=bool(state & _STATE_CLEAN),
        needs_recovery=bool(incompat & _INCOMPAT_RECOVER),
        has_errors=bool(state & _STATE_ERRORS),
        created_s=created_s,
    )
