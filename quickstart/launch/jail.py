"""Make the jail in which QEMU runs. The jail is necessary because a hostile guest may take over the QEMU in which the
guest runs. The jail restricts QEMU's system calls, user, files and descriptors.

QEMU gets its disk, its sockets and the pipes of its logs as descriptors. QEMU can open the kernel and the
initramfs only by name, so these files are copied into a directory that only this QEMU process uses. QEMU starts in
this directory, and makes its temporary files there. So QEMU can run as an unprivileged user, even if this user may
not read the files on the host. QEMU never opens a path that an untrusted party chose.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quickstart.errors import BadInputError, HostLacksError, MissingToolError
from quickstart.host import door
from quickstart.host.beneath import opened_regular
from quickstart.host.identity import Identity, unprivileged
from quickstart.host.memory import available_bytes
from quickstart.host.unchanged import copy_exactly
from quickstart.image.qcow2 import virtual_bytes
from quickstart.model import MIB
from quickstart.model.machine import KERNEL_BYTES

# QEMU's seccomp(2) filters, which are always on. They forbid obsolete system calls, changes of user, new processes
# and scheduling.
SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
_KVM = Path("/dev/kvm")
# Debian's package ovmf. The images of 4 MB are those that later releases have, too.
_OVMF = Path("/usr/share/OVMF")
_UEFI_CODE, _UEFI_VARIABLES = "OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"
_GROUP, _OTHERS = 0o060, 0o006
# The most bytes that the files of a machine without a disk may have, or the tables of an overlay in addition to the
# disk's bytes.
_SLACK_BYTES = 64 * MIB
# A guest of this size uses only a part of its memory. A build's guests have no more, unless the profile asks for
# more.
_USUAL_MIB = 2048
# No file is longer (lseek(2)), and no limit needs to be.
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Jail:
    """A jail. ``identity`` is the user as whom QEMU runs, and ``directory`` is the directory in which QEMU must start.
    QEMU has no access to the parent directory of ``directory``.
    """

    directory: Path
    identity: Identity

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for QEMU. TMPDIR names the jail's directory, so QEMU makes its temporary files
        there. One of these files is the overlay of QEMU's option snapshot=on.
        """
        return {"TMPDIR": ".", "HOME": "."}


@contextmanager
def made_jail(workspace: Path, *, kvm: bool = False) -> Iterator[Jail]:
    """A context with a jail for one program. The jail's directory is made in our directory ``workspace``. The program
    must have ended before the context ends.

    With ``kvm``, the program may use /dev/kvm, provided that our own process may use /dev/kvm.
    """
    with unprivileged(kvm_group() if kvm else None) as identity:
        jail = Jail(workspace / "machine", identity)
        jail.directory.mkdir(mode=0o700)
        if identity.uid is not None and identity.gid is not None:
            os.chown(jail.directory, identity.uid, identity.gid)
        yield jail


def kvm_group() -> int | None:
    """The ID of the group that may use /dev/kvm. The result is None when all users or only root may use /dev/kvm. The
    result is never the ID of the group root, because QEMU must not get this group.
    """
    try:
        status = _KVM.stat()
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    by_group = mode & _GROUP == _GROUP and mode & _OTHERS != _OTHERS
    return status.st_gid if by_group and status.st_gid != 0 else None


def put_kernel(jail: Jail, kernel: Path, expected_bytes: int | None = None) -> Path:
    """Copy the file ``kernel`` into the jail, and return the name of the copy in the jail.

    Raises BadInputError when the file is not regular, is too large for a kernel, or does not have ``expected_bytes``
    bytes. Also raises BadInputError when another process writes to the file during the call.
    """
    with opened_regular(kernel) as fd:
        size_bytes = os.fstat(fd).st_size
        if size_bytes > KERNEL_BYTES:
            raise BadInputError(f"{kernel} has {size_bytes} bytes: that is no kernel")
        target = jail.directory / "kernel"
        with target.open("xb") as out:
            copy_exactly(fd, out, kernel, expected_bytes)
    return given(jail, target)


def put_firmware(jail: Jail) -> tuple[Path, Path]:
    """Copy the host's UEFI firmware for guests into the jail. The firmware consists of a file with its code and a file
    with its variables, which QEMU may change. Return the names of the two copies in the jail. Raises MissingToolError
    when the host has no UEFI firmware.
    """
    code, variables = (_copied_firmware(jail, name) for name in (_UEFI_CODE, _UEFI_VARIABLES))
    if jail.identity.uid is not None and jail.identity.gid is not None:
        os.chown(variables, jail.identity.uid, jail.identity.gid)
    variables.chmod(0o600)
    return given(jail, code), Path(variables.name)


def _copied_firmware(jail: Jail, name: str) -> Path:
    if not (_OVMF / name).is_file():
        raise MissingToolError(name, door.package_of(name))
    return shutil.copyfile(_OVMF / name, jail.directory / name)


def given(jail: Jail, path: Path) -> Path:
    """Let the jail's user read the file ``path``, which our process has written into the jail's directory. Return the
    file's name in the jail.
    """
    if jail.identity.uid is not None and jail.identity.gid is not None:
        os.chown(path, -1, jail.identity.gid, follow_symlinks=False)
        path.chmod(0o640)
    return Path(path.name)


def largest_file(disk: int | None, disk_format: str, *, read_only: bool = False) -> int:
    """The limit in bytes for the size of every file that QEMU writes. ``disk`` is the descriptor of the open disk or of
    a connection to the disk's NBD server. For a machine without a disk, ``disk`` is None.

    The largest file that QEMU writes is the disk's overlay or the qcow2 disk itself. This file has at most the content
    of the whole disk and the tables of the format qcow2. The tables need far less than 1/64 of the size of the content
    (docs/interop/qcow2.txt of QEMU). A qcow2 file may also have unused clusters. When QEMU opens the disk only for
    reading (``read_only``), QEMU makes no overlay. Raises BadInputError for a qcow2 file that is damaged or has a
    backing file.
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
    if read_only:
        return _SLACK_BYTES
    return min(whole + whole // 64 + beside + _SLACK_BYTES, _MOST_BYTES)


def limited(
    words: Iterable[str | Path],
    file_bytes: int,
    *,
    tool: str = "qemu-system-x86_64",
    memory_bytes: int | None = None,
) -> tuple[str, ...]:
    """The argv that runs the program ``tool`` (by default QEMU) with the arguments ``words`` under prlimit(1). The
    program cannot write a file of more than ``file_bytes`` bytes (setrlimit(2)), and dumps no core. The program has at
    most ``memory_bytes`` bytes of address space. By default, the address space is not limited.
    """
    memory = () if memory_bytes is None else (f"--as={memory_bytes}",)
    limits = (f"--fsize={file_bytes}", door.core_limit(), *memory)
    return ("prlimit", *limits, "--", str(door.tool_path(tool)), *map(str, words))


def demand_room(initrds: Iterable[Path], memory_mib: int) -> None:
    """Raise BadInputError when the initramfs files ``initrds`` do not fit into the machine's memory. Without this
    check, the files would be copied into the jail, which is a temporary directory, before QEMU refuses the files.

    Raise HostLacksError when the machine has unusually much memory and the host does not have this memory available.
    If the guest used all its memory, the host's kernel would kill some process.
    """
    available_mib = available_bytes() // MIB
    if memory_mib > max(_USUAL_MIB, available_mib):
        raise HostLacksError(
            f"the machine has {memory_mib} MiB of memory, the host {available_mib} MiB that are available",
            hint="free some memory, or use another host",
        )
    size_bytes = sum(each.stat().st_size for each in initrds)
    if size_bytes > memory_mib * MIB:
        raise BadInputError(
            f"the initramfs has {size_bytes // MIB} MiB, the machine {memory_mib} MiB of memory",
            hint="is that the OUT of a build?",
        )
