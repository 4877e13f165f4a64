"""Copy the present root file system of a machine from the machine's disk while the machine is off. The copy is the
reference image of a rebuild.

The machine's root user may have written any bytes to the disk. So an unprivileged process reads the disk. QuickStart's
own process gets the files from this process, refuses bad file names, and writes the copy (see the package
inspect/foreign). Device nodes, FIFOs and sockets are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quickstart.artefact.directory import USED_DISK
from quickstart.errors import BadInputError
from quickstart.host.beneath import opened_regular
from quickstart.host.files import remove_tree
from quickstart.host.unchanged import Seen, digest_of_data, seen, unchanged
from quickstart.image.superblock import read_superblock
from quickstart.inspect.foreign.attributes import permissions
from quickstart.inspect.foreign.home import Limits, Members, bring_home, foreign_members
from quickstart.inspect.foreign.members import Kind
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import ReferenceImage, StartSet
from quickstart.model.superblock import Superblock
from quickstart.parse.printable import brief
from quickstart.reference import entry
from quickstart.store.context import Context
from quickstart.store.store import source_digest

# mke2fs(8): an inode is made for 1 KiB at least.
_LEAST_INODE_BYTES = 1024
# The largest file of ext4, without its last block, and the times that it can store (inodes.rst, "Inode Timestamps").
_LARGEST_FILE_BYTES = (16 << 40) - 4096
_FIRST_TIME_S, _LAST_TIME_S = -(2**31), -(2**31) + 2**34 - 1
# An entry of an ACL takes up to 8 bytes of an ext4 block, and 8 characters of text or more. A file has up to two ACLs.
_ACL_CHARACTERS = 1024
# A file or directory of btrfs that is to be compressed has btrfs.compression, which other file systems refuse.
_OF_USERS = ("user.", "btrfs.")
_MOST_LEFT_OUT = 16384
# stat(2): the unit of st_blocks, whatever the file system.
_STAT_BLOCK_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class UsedDisk:
    """A raw root disk whose machine is off. ``digest`` is a hash of the disk's bytes (see digest_of_data in
    host/unchanged.py, which computes this hash). ``superblock`` is the superblock of the disk. ``archive`` is a tar
    archive of the disk's files, or None for ext4, which QuickStart reads itself.

    ``seen`` is the state of the disk's file, which shows later whether the file has changed (see Seen in
    host/unchanged.py). The file did not change between the reading of the superblock and the end of the hashing.
    """

    path: Path
    digest: str
    superblock: Superblock
    seen: Seen
    archive: Path | None = None

    @contextmanager
    def members(self, *, with_data: bool) -> Iterator[Members]:
        """The files on the disk. Raises BadInputError when the disk changes meanwhile."""
        source, form = (self.path, "ext4") if self.archive is None else (self.archive, "tar")
        with (
            unchanged(self.path, self.seen),
            foreign_members(source, form if with_data else f"{form}-list") as found,
        ):
            yield _storable(found) if self.archive is not None and with_data else found


def _storable(members: Members) -> Members:
    """The files of XFS or btrfs as ext4 can store them, on which the copy may lie. Every user of the machine can give a
    file a time, a size or attributes that only the machine's file system can store. No packed file needs them. A file
    with a large ACL keeps a short one, because a file with an ACL is never packed. Raises BadInputError when more than
    16 384 files are too large.
    """
    too_large = set[str]()
    for member, data in members:
        if member.size_bytes > _LARGEST_FILE_BYTES:
            too_large.add(member.path)
            if len(too_large) > _MOST_LEFT_OUT:
                raise BadInputError(
                    f"the disk has more than {_MOST_LEFT_OUT} files of more than 16 TiB, the last one {brief(member.path)}",
                    hint="remove such files in the machine",
                )
            continue
        # In each link to a file, GNU tar names the first of the file's names.
        if member.kind is Kind.HARD and member.target in too_large:
            continue
        time_ns = min(max(member.mtime_ns, _FIRST_TIME_S * 10**9), _LAST_TIME_S * 10**9)
        attributes = {name: value for name, value in member.xattrs.items() if not name.startswith(_OF_USERS)}
        acls = {
            which: text if len(text) <= _ACL_CHARACTERS else _short_acl(member.mode)
            for which, text in member.acls.items()
        }
        yield replace(member, mtime_ns=time_ns, xattrs=attributes, acls=acls), data


def _short_acl(mode: int) -> str:
    """An ACL with which a file has this mode (acl(5), "CORRESPONDENCE BETWEEN ACL ENTRIES AND FILE PERMISSION BITS")."""
    owner, mask, others = (permissions(mode >> shift) for shift in (6, 3, 0))
    return f"user::{owner}\nuser:0:---\ngroup::---\nmask::{mask}\nother::{others}"


def examine_disk(path: Path, archive: Path | None = None) -> UsedDisk:
    """The disk at ``path``. ``archive`` has the disk's files, unless its file system is ext4. Raises BadInputError when
    the disk's machine was not shut down properly, or when another process writes to the disk.
    """
    with opened_regular(path) as fd:
        before = seen(fd)
        superblock = read_superblock(path)
        _check_ended(path, superblock)
        with unchanged(path, before):
            return UsedDisk(
                path=path,
                digest=digest_of_data(fd, path),
                superblock=superblock,
                seen=before,
                archive=archive,
            )


def _check_ended(path: Path, superblock: Superblock) -> None:
    if superblock.needs_recovery or superblock.has_errors or not superblock.clean:
        raise BadInputError(
            f"{path} was not shut down in order",
            hint="boot the machine once (quickstart run OUT) and end it with Ctrl-C",
        )


def reference_of_disk(
    disk: UsedDisk, label: str, planned_bytes: int, context: Context, boot: UsedDisk | None = None
) -> ReferenceImage:
    """The content of ``disk`` as a reference image. If the store does not have this image, the content of ``disk``
    is copied into the store. Copying needs root, so that files keep their owners. ``boot`` is the file system that the
    machine mounts on /boot, unless /boot is a directory of ``disk``.

    ``planned_bytes`` is the size of the disk in the profile. The data of the copy has a limit, which is the larger of
    ``planned_bytes`` and the bytes that the disk's file uses on this host. Raises BadInputError when the data of the
    copy would exceed the limit, and when the disk has no kernel or no initramfs.
    """
    inputs = {
        "kind": USED_DISK,
        "digest": disk.digest,
        "recipe": source_digest(
            "quickstart.artefact.useddisk",
            "quickstart.inspect.foreign",
            "quickstart.launch.appliance",
            "quickstart.store.treehash",
        ),
        **({"boot": boot.digest} if boot else {}),
    }

    def make(directory: Path) -> None:
        tree = directory / "root"
        with context.progress.step(f"reference: copy what is on {disk.path.name}"):
            _bring_home(disk, tree, planned_bytes)
            if boot:
                _bring_home(boot, directory / "boot", planned_bytes)
                _mount_over(directory / "boot", tree / "boot")
        # This check is here because a complete copy stays in the store, and a later hint would name this
        # copy, which nobody can repair.
        if (lacks := entry.lacking(ImageRoot(tree))) is not None:
            raise BadInputError(
                f"{disk.path} has no {lacks}",
                hint="install the kernel's package in the machine, or give a disk that boots",
            )
        with context.progress.step("reference: hash the image"):
            entry.write_facts(directory, disk.superblock.uuid, label)

    made = context.store.get_or_make("reference", inputs, make)
    return entry.load(made.path, (USED_DISK, disk.digest))


def _bring_home(disk: UsedDisk, tree: Path, planned_bytes: int) -> None:
    with disk.members(with_data=True) as members:
        # A FIFO stays on the disk, too: nobody packs one.
        wanted = ((each, data) for each, data in members if each.kind is not Kind.FIFO)
        bring_home(wanted, tree, _limits(disk.path, planned_bytes), str(disk.path))


def _mount_over(content: Path, place: Path) -> None:
    """Put the tree ``content`` at ``place``, where a mount would hide what the root volume has there."""
    if place.is_symlink() or not place.is_dir():
        raise BadInputError("/boot of the disk is no directory", hint="make it one in the machine")
    remove_tree(place)
    content.rename(place)


def _limits(disk: Path, planned_bytes: int) -> Limits:
    """The limits for the copy. A single file may have up to 16 TiB, because a sparse file may be much larger than the
    disk.

    The limit for the data of the copy does not depend on the total size of the files on the disk. A small disk can
    have files with terabytes of holes, and many files that claim the same blocks.
    """
    data_bytes = max(planned_bytes, disk.stat().st_blocks * _STAT_BLOCK_BYTES)
    return Limits(
        data_bytes=data_bytes,
        members=data_bytes // _LEAST_INODE_BYTES,
        file_bytes=_LARGEST_FILE_BYTES,
        drops_links=True,
    )


def with_times_of(start_set: StartSet, used: UsedDisk) -> StartSet:
    """A copy of ``start_set`` in which each file has the modification and change time that the file has on the used
    disk. At boot, init compares these times with the times of the files on the volume. Raises BadInputError when a file
    of the start set is not on the disk.
    """
    wanted = {str(file.path).lstrip("/") for file in start_set.files}
    with used.members(with_data=False) as members:
        # The disk may have any number of other files. A hard link has the times of its file. In an archive, names begin with ./.
        times = {
            PurePosixPath("/", name): (member.mtime_ns // 10**9, member.ctime_s)
            for member, _ in members
            if (name := member.path.removeprefix("./")) in wanted
        }
    if missing := [file.path for file in start_set.files if file.path not in times]:
        raise BadInputError(f"{missing[0]} is not on {used.path}", hint="was the disk used meanwhile?")
    files = (
        replace(file, mtime_s=times[file.path][0], ctime_s=times[file.path][1]) for file in start_set.files
    )
    return replace(start_set, files=tuple(files))
