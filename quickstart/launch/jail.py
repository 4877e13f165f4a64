"""Where a QEMU runs that its guest may have taken over: system calls, user, files and descriptors.

It gets what it works on as descriptors: disk, sockets, the pipes of its logs. What it can only open by name, kernel and initramfs,
is copied into a directory of its own. It starts there, and its temporary files lie there. So an unprivileged user can run it
whatever the modes of the files and directories on the host, and it never opens a name that a stranger chose.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.identity import Identity, unprivileged
from quickstart.host.unchanged import copy_exactly
from quickstart.image.qcow2 import virtual_bytes
from quickstart.model import MIB

# seccomp(2) filters of QEMU, always: no obsolete system call, no change of user, no new process, no scheduling.
SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
_KVM = Path("/dev/kvm")
_GROUP, _OTHERS = 0o060, 0o006
_KERNEL_BYTES = 256 * MIB
# What the files of a machine without a disk, or the tables of an overlay, may have at most beside the disk's bytes.
_SLACK_BYTES = 64 * MIB
# No file is longer (lseek(2)), and no limit needs to be.
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Jail:
    """Who a QEMU is, and the directory of its own, in which it has to start; ours is the one above, into which it does not get."""

    directory: Path
    identity: Identity

    @property
    def environment(self) -> dict[str, str]:
        """What it needs to be told: where its temporary files go, the overlay of snapshot=on among them."""
        return {"TMPDIR": ".", "HOME": "."}


@contextmanager
def made_jail(workspace: Path, *, kvm: bool = False) -> Iterator[Jail]:
    """A jail in ``workspace``, an empty directory of ours, for one program, which has to have ended when the context does.

    With ``kvm`` it can use /dev/kvm if we can.
    """
    with unprivileged(kvm_group() if kvm else None) as identity:
        jail = Jail(workspace / "machine", identity)
        jail.directory.mkdir(mode=0o700)
        if identity.uid is not None and identity.gid is not None:
            os.chown(jail.directory, identity.uid, identity.gid)
        yield jail


def kvm_group() -> int | None:
    """The group by which /dev/kvm can be used; None where everybody may, or nobody but root: root's group is lent to nobody."""
    try:
        status = _KVM.stat()
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    by_group = mode & _GROUP == _GROUP and mode & _OTHERS != _OTHERS
    return status.st_gid if by_group and status.st_gid != 0 else None


def put_kernel(jail: Jail, kernel: Path, expected_bytes: int | None = None) -> Path:
    """The name in the jail of a copy of ``kernel``.

    Raises BadInputError for what is no regular file, too large for a kernel, not of ``expected_bytes``, or written to meanwhile.
    """
    with opened_regular(kernel) as fd:
        size_bytes = os.fstat(fd).st_size
        if size_bytes > _KERNEL_BYTES:
            raise BadInputError(f"{kernel} has {size_bytes} bytes: that is no kernel")
        target = jail.directory / "kernel"
        with target.open("xb") as out:
            copy_exactly(fd, out, kernel, expected_bytes)
    return given(jail, target)


def given(jail: Jail, path: Path) -> Path:
    """The name in the jail of ``path``, a file that we have made there, which who is in it can read from now on."""
    if jail.identity.uid is not None and jail.identity.gid is not None:
        os.chown(path, -1, jail.identity.gid, follow_symlinks=False)
        path.chmod(0o640)
    return Path(path.name)


def largest_file(disk: int | None, disk_format: str) -> int:
    """How many bytes a file may have that a QEMU writes to, ``disk`` being the open disk, or a connection to who serves it.

    Its overlay, or the qcow2 file that it is, has all of the disk at most, and tables: far below 1/64 of it (docs/interop/qcow2.txt
    of QEMU). A qcow2 file may have clusters beside those that count. Raises BadInputError for a qcow2 file that is none, or rests
    on another.
    """
    status = None if disk is None else os.fstat(disk)
    if disk is None or status is None or not stat.S_ISREG(status.st_mode):
        return _SLACK_BYTES
    whole, beside = status.st_size, 0
    if disk_format == "qcow2":
        try:
            whole, beside = virtual_bytes(disk), status.st_size
        except ValueError as error:
            raise BadInputError(f"the disk cannot be used: {error}") from error
    return min(whole + whole // 64 + beside + _SLACK_BYTES, _MOST_BYTES)


def limited(words: Iterable[str | Path], file_bytes: int) -> tuple[str, ...]:
    """QEMU's argv with those ``words``: no file that it writes gets longer (setrlimit(2)), and there is no core of its memory."""
    qemu = door.tool_path("qemu-system-x86_64")
    return ("prlimit", f"--fsize={file_bytes}", door.core_limit(), "--", str(qemu), *map(str, words))


def demand_room(initrds: Iterable[Path], memory_mib: int) -> None:
    """Raise BadInputError for initramfs files that the machine's memory cannot hold: they are copied before it starts."""
    size_bytes = sum(each.stat().st_size for each in initrds)
    if size_bytes > memory_mib * MIB:
        raise BadInputError(
            f"the initramfs has {size_bytes // MIB} MiB, the machine {memory_mib} MiB of memory",
            hint="is that the OUT of a build?",
        )
