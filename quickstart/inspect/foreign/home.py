"""Write members into a new directory, within limits. A member is one file of any kind that the reader finds in a
foreign source (an archive or a disk). Each member is created relative to an open directory, by a name without a slash.
Another process (module ``reader``) parses the source, so a fault of the parser cannot harm the host.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.holes import write_at
from quickstart.host.identity import unprivileged
from quickstart.host.namespaces import own_namespaces
from quickstart.host.workspace import workspace
from quickstart.inspect.foreign.attributes import acl_attribute
from quickstart.inspect.foreign.made import Directories
from quickstart.inspect.foreign.members import DEVICES, PATH_BYTES, DeviceNode, Kind, Member, read_members
from quickstart.inspect.foreign.pump import pumped
from quickstart.parse.printable import brief

Members = Iterator[tuple[Member, Iterator[bytes]]]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_BYTES, _TARGET_BYTES = 255, 4095
# Devices and sockets, which are kept in memory. A machine has some hundred.
_MOST_LEFT_OUT = 16384
# CPU time of the writer, which is several times what a busy host needs. Most of it is for each member.
_CPU_S, _CPU_S_PER_MEMBER, _CPU_S_PER_BYTE = 30.0, 0.003, 30 / (1 << 30)
_NO_ID = 0xFFFFFFFF
# inodes.rst, "Inode Timestamps": 34 bits from 1901 on.
_FIRST_TIME_S, _LAST_TIME_S = -(2**31), -(2**31) + 2**34
# The device numbers that ext4 and the kernel can store (kernel: include/linux/kdev_t.h, new_encode_dev).
_MAJORS, _MINORS = 1 << 12, 1 << 20
_TYPES = {Kind.CHARACTER: stat.S_IFCHR, Kind.BLOCK: stat.S_IFBLK}
# Limits for the decompressor, whose output is not trusted. Its user has no other process, and it starts few processes.
_LIMITS = ("--as=1073741824", "--fsize=0", "--cpu=1800", "--nproc=16")


def _limited() -> tuple[str, ...]:
    return ("prlimit", *_LIMITS, door.core_limit(), "--")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an import: the number of bytes in the data and extended attributes of all members together, the
    number of members, and the size of one file including its holes. With ``drops_links``, hard links that the target's
    file system does not allow are left out.
    """

    data_bytes: int
    members: int
    file_bytes: int
    drops_links: bool = False


@dataclass(frozen=True)
class NotHome:
    """The members that are never created on the host. ``devices`` are the device nodes, which QuickStart makes only on
    the image's disk. ``sockets`` are the paths of the sockets. No program needs a socket from the image, because a
    program makes its own socket when it starts. Both tuples are sorted by path.
    """

    sockets: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()


def limits_of_disk(disk_bytes: int) -> Limits:
    """The limits for an ext4 file system of ``disk_bytes`` bytes. The limit for the number of members follows from the
    settings in mke2fs.conf, which give a file system at most one inode for every 4 KiB.
    """
    return Limits(data_bytes=disk_bytes, members=disk_bytes // 4096, file_bytes=disk_bytes)


@contextmanager
def foreign_members(
    source: Path, form: str, decompressor: tuple[str, ...] = (), digest: str = ""
) -> Iterator[Members]:
    """The members that the reader finds in the file ``source``. ``form`` is the format of this file, as a key of
    ``reader.FORMS``. ``decompressor`` is the argv of a program that decompresses the file for the reader, or empty.

    Raises BadInputError for the faults that the reader reports. ``digest`` may be given only for a source that is read
    as a stream, such as a tar archive. With ``digest``, also raises BadInputError when the SHA-256 of the source
    differs from ``digest``. The caller must be root, on the host or in a user namespace.
    """
    with workspace("quickstart-reader-") as work, source.open("rb") as file, ExitStack() as stack:
        (empty := work / "empty").mkdir(mode=0o755)
        filtered, alone = file.fileno(), own_namespaces(network=True)
        if digest:
            filtered = stack.enter_context(pumped(filtered, source, digest))
        unpacking = None
        if decompressor:
            # As nobody, it could open /proc/PID/mem of a daemon of the host that also runs as nobody. So it runs as a
            # user without any other process. unshare(1) would bind it to itself, and thus to us, only until it
            # changes its user.
            words = door.bound_words(stack.enter_context(unprivileged()))
            stranger = (*alone, *words, *_limited(), *decompressor)
            unpacking = stack.enter_context(door.filtered(stranger, filtered))
            filtered = unpacking.stdout.fileno()
        module = "quickstart.inspect.foreign.reader"
        argv: list[str | Path] = [*alone, sys.executable, "-P", "-m", module, form, empty]
        with door.filtered(argv, filtered) as reading:
            if unpacking:
                # Otherwise, the program would not notice that its reader has ended.
                unpacking.stdout.close()
            yield read_members(reading.stdout, str(source))
        if unpacking and (fault := unpacking.fault()):
            raise BadInputError(f"{source} cannot be unpacked whole: {brief(fault)}", hint="is it cut?")


def bring_home(members: Members, tree: Path, limits: Limits, source: str) -> NotHome:
    """Write ``members`` below the new directory ``tree``. Return the members that are left out: devices and
    sockets.

    A later member replaces an earlier member with the same path, as in tar(1). Nothing is ever written outside
    ``tree``. Raises BadInputError for:

    - a name that leads out of ``tree`` or through a link
    - a member that exceeds ``limits``
    - a member that cannot be written, for example because its owner or time is invalid
    """
    tree.mkdir()
    # Where no member says how the root is.
    tree.chmod(0o755)
    top = os.open(tree, _DIRECTORY)
    try:
        with tempfile.TemporaryFile(dir=tree.parent) as file:
            return _Home(Directories(top, file), limits, source).take(members)
    finally:
        os.close(top)


class _Home:
    """Writes the members of a foreign source. ``directories`` are the directories of the new tree, and ``source``
    names the source in messages. Each directory gets its owner, mode, attributes and time after all members are
    written.
    """

    def __init__(self, directories: Directories, limits: Limits, source: str) -> None:
        self._directories, self._limits, self._source = directories, limits, source
        self._data_bytes = self._members = 0
        self._begin_s = time.process_time()
        # The members that are left out, by their paths. None stands for a socket.
        self._left_out: dict[str, DeviceNode | None] = {}

    def take(self, members: Members) -> NotHome:
        for member, data in members:
            self._count(member)
            parts = self._parts(member.path)
            self._check_numbers(member)
            if not parts:
                if member.kind is not Kind.DIRECTORY:
                    raise self._refused(member.path, "is the root, and no directory")
                self._directories.remember(parts, member)
            else:
                with self._named(member), self._opened(parts[:-1]) as directory:
                    self._make(directory, parts, member, data)
        for member in self._directories.remembered():
            with self._named(member), self._opened(self._parts(member.path)) as directory:
                self._dress(directory, member)
        left_out = sorted(self._left_out.items(), key=lambda each: each[0].split("/"))
        return NotHome(
            tuple(path for path, node in left_out if node is None),
            tuple(node for _, node in left_out if node is not None),
        )

    def _leave_out(self, path: str, member: Member) -> None:
        if member.kind not in DEVICES:
            self._not_made(path, None)
            return
        if not 0 <= member.major < _MAJORS or not 0 <= member.minor < _MINORS:
            raise self._refused(
                member.path, f"is a device {member.major}:{member.minor}, as none is numbered"
            )
        node = DeviceNode(
            path=path,
            mode=_TYPES[member.kind] | member.mode & 0o7777,
            uid=member.uid,
            gid=member.gid,
            major=member.major,
            minor=member.minor,
            mtime_s=member.mtime_ns // 10**9,
        )
        self._not_made(path, node)

    def _not_made(self, path: str, node: DeviceNode | None) -> None:
        self._left_out[path] = node
        if len(self._left_out) > _MOST_LEFT_OUT:
            raise BadInputError(
                f"{self._source} has more than {_MOST_LEFT_OUT} devices and sockets",
                hint="remove what no service needs",
            )

    @contextmanager
    def _named(self, member: Member) -> Iterator[None]:
        """Turn an OSError or ValueError for ``member`` into BadInputError. The error of a full disk is passed
        on unchanged, because the member did not cause it.
        """
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise self._refused(
                member.path,
                f"cannot be made here with the owner {member.uid}:{member.gid}, {member.size_bytes} bytes: {why}",
            ) from error

    def _check_numbers(self, member: Member) -> None:
        """Raise BadInputError when an ID is not valid for chown(2) (-1 is not an ID there), or when a time is not
        valid in ext4.
        """
        ids = 0 <= member.uid < _NO_ID and 0 <= member.gid < _NO_ID
        if not ids or not _FIRST_TIME_S <= member.mtime_ns // 10**9 < _LAST_TIME_S:
            raise self._refused(member.path, "has an owner or a time that no file can have")

    def _count(self, member: Member) -> None:
        limits = self._limits
        self._members += 1
        self._data_bytes += member.block_bytes + member.attribute_bytes
        if self._members > limits.members or self._data_bytes > limits.data_bytes:
            raise BadInputError(
                f"{self._source} does not fit on the disk: more than {limits.members} files or {limits.data_bytes} bytes",
                hint="raise disk.size_mib in the profile",
            )
        allowed_s = _CPU_S + _CPU_S_PER_MEMBER * self._members + _CPU_S_PER_BYTE * self._data_bytes
        if time.process_time() - self._begin_s > allowed_s:
            raise BadInputError(
                f"unpacking {self._source} takes more than {allowed_s:.0f} s of CPU time for {self._members} files",
                hint="look for very long paths, and for files with many holes or extended attributes",
            )
        if member.size_bytes > limits.file_bytes:
            raise BadInputError(
                f"{self._source} does not fit on the disk: {_quoted(member.path)} has {member.size_bytes} bytes, holes and all",
                hint="raise disk.size_mib in the profile, or make the file anew",
            )

    def _refused(self, path: str, why: str) -> BadInputError:
        return BadInputError(
            f"{self._source} cannot be unpacked whole: {_quoted(path)} {why}", hint="nothing of it was kept"
        )

    def _parts(self, path: str) -> tuple[str, ...]:
        """The components of ``path``, without a leading / and without components that are a single dot."""
        if len(os.fsencode(path)) > PATH_BYTES:
            raise self._refused(path, f"is a path of more than {PATH_BYTES} bytes")
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        for part in parts:
            if part == ".." or "\0" in part or len(os.fsencode(part)) > _NAME_BYTES:
                raise self._refused(path, "has a name that no file can have")
        return parts

    @contextmanager
    def _opened(self, parts: tuple[str, ...]) -> Iterator[int]:
        """The descriptor of the directory at ``parts``. Missing directories are created. No link is followed."""
        try:
            way = self._directories.open(parts, self._make_missing)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            obstacle = self._directories.obstacle(parts)
            raise self._refused(
                "/".join(parts), f"leads through {_quoted(obstacle)}, no directory"
            ) from error
        try:
            yield way
        finally:
            os.close(way)

    def _make_missing(self, holder: int, parts: Sequence[str]) -> None:
        """Make the directory at ``parts``, which no member has described so far, in the open directory ``holder``."""
        if "/".join(parts) in self._left_out:
            raise self._refused("/".join(parts), f"leads through {_quoted(parts[-1])}, no directory")
        member = Member(path="/".join(parts), kind=Kind.DIRECTORY, mode=0o755)
        self._count(member)
        os.mkdir(parts[-1], 0o700, dir_fd=holder)
        self._directories.remember(parts, member)

    def _make(self, directory: int, parts: tuple[str, ...], member: Member, data: Iterator[bytes]) -> None:
        name = parts[-1]
        if not self._remove(directory, parts, member.kind):
            self._directories.remember(parts, member)
            return
        self._left_out.pop("/".join(parts), None)
        if member.kind in (*DEVICES, Kind.SOCKET):
            self._leave_out("/".join(parts), member)
        elif member.kind is Kind.DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=directory)
            self._directories.remember(parts, member)
        elif member.kind is Kind.HARD:
            self._link(directory, parts, member)
        elif member.kind is Kind.FILE:
            self._write(directory, name, member, data)
        else:
            if member.kind is Kind.LINK:
                if (
                    not member.target
                    or "\0" in member.target
                    or len(os.fsencode(member.target)) > _TARGET_BYTES
                ):
                    raise self._refused(member.path, "is a link that leads nowhere")
                os.symlink(member.target, name, dir_fd=directory)
            else:
                os.mkfifo(name, 0o600, dir_fd=directory)
            os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
            if member.kind is not Kind.LINK:
                os.chmod(name, member.mode & 0o7777, dir_fd=directory)
            self._attributes(f"/proc/self/fd/{directory}/{name}", member)
            os.utime(name, ns=(member.mtime_ns,) * 2, dir_fd=directory, follow_symlinks=False)

    def _remove(self, directory: int, parts: tuple[str, ...], kind: Kind) -> bool:
        """Remove the file that an earlier member left at the path of a new member. ``kind`` is the kind of the new
        member. When both members are directories, the directory stays, and the result is False. Raises BadInputError
        when the earlier member is a directory and the new member is not.
        """
        try:
            mode = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return True
        if not stat.S_ISDIR(mode):
            os.unlink(parts[-1], dir_fd=directory)
            return True
        if kind is not Kind.DIRECTORY:
            raise self._refused("/".join(parts), "is a directory already")
        return False

    def _link(self, directory: int, parts: tuple[str, ...], member: Member) -> None:
        target = self._parts(member.target)
        if not target:
            raise self._refused(member.path, "is a hard link to a directory")
        if (first_path := "/".join(target)) in self._left_out:
            first, path = self._left_out[first_path], "/".join(parts)
            self._not_made(path, replace(first, path=path) if first else None)
            return
        with self._opened(target[:-1]) as other:
            try:
                os.link(target[-1], parts[-1], src_dir_fd=other, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.EMLINK and self._limits.drops_links:
                    return
                why = f"is a hard link to {_quoted(member.target)}: {error.strerror}"
                raise self._refused(member.path, why) from error

    def _write(self, directory: int, name: str, member: Member, data: Iterator[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            end = 0
            for offset, length in member.segments:
                if offset < end or offset + length > member.size_bytes:
                    raise self._refused(member.path, "has pieces that overlap or lie beyond its end")
                end = offset + length
                while offset < end:
                    offset += write_at(fd, next(data), offset)
            os.ftruncate(fd, member.size_bytes)
            self._dress(fd, member)
        finally:
            os.close(fd)

    def _dress(self, fd: int, member: Member) -> None:
        """Set owner, mode, attributes and time. The owner is set first, because a change of owner clears
        set-uid bits and capabilities.
        """
        os.fchown(fd, member.uid, member.gid)
        os.fchmod(fd, member.mode & 0o7777)
        self._attributes(fd, member)
        os.utime(fd, ns=(member.mtime_ns,) * 2)

    def _attributes(self, what: int | str, member: Member) -> None:
        """Set the extended attributes of an open file, or of the file at a path. A link at the path is not
        followed.
        """
        try:
            acls = {f"system.posix_acl_{which}": acl_attribute(text) for which, text in member.acls.items()}
        except BadInputError as error:
            raise BadInputError(f"{self._source} {error.message}", hint=error.hint) from error
        for name, value in {**member.xattrs, **acls}.items():
            try:
                os.setxattr(what, name, value, follow_symlinks=isinstance(what, int))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise BadInputError(
                    f"{self._source}: {_quoted(member.path)} has an attribute {_quoted(name)} that cannot be given here: {why}",
                    hint="only root may give some of them: run it as root, or leave the attribute out",
                ) from error


def _quoted(word: str) -> str:
    """``word``, a text from the foreign source, in a shortened and quoted form for a message."""
    return f"'{brief(word)}'"
