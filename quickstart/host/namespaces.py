"""Make namespaces for programs. There are mount and PID namespaces for work inside an image, and network namespaces for
programs that need no network, or another network than the host's.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from quickstart.errors import NeedsRootError

# linux/sched.h; netdevice(7), linux/sockios.h
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 1
# struct ifreq: a name, then flags or a struct sockaddr_in.
_REQUEST_FLAGS, _REQUEST_ADDRESS = struct.Struct("16sH22x"), struct.Struct("16sHH4s16x")


def own_namespaces(*, network: bool = False) -> tuple[str, ...]:
    """A call of unshare(1), to be put before the argv of a command. The command gets a mount and a PID namespace of its
    own, which end with the command.

    With ``network``, the command also gets a network namespace of its own, whose interfaces end with the command, and
    an IPC namespace of its own (sysvipc(7), mq_overview(7)). So the command shares no IPC objects with other programs
    of its user.
    """
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    # In a bare chroot, "/" is not a mount, so its propagation cannot be changed.
    propagation = "private" if any(fields[4] == "/" for fields in mounts) else "unchanged"
    options = ("--mount", "--propagation", propagation, "--pid", "--fork", "--kill-child=SIGKILL")
    return ("unshare", *options, *(("--net", "--ipc") if network else ()), "--")


def enter_own_network(*addresses: str) -> None:
    """Move the calling thread into a new network namespace. The threads and programs that it starts afterwards are in
    this namespace, too, and so are its new sockets (network_namespaces(7)). Its earlier sockets stay where they are.

    The namespace has a loopback interface with 127.0.0.1 and ``addresses``, and no other interface. It ends with its
    last thread and program. Raises NeedsRootError when the process is root neither of the host nor of a user namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        why = os.strerror(ctypes.get_errno())
        raise NeedsRootError(f"no network namespace for this thread: {why}", hint="run it as root")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # The kernel itself gives the interface 127.0.0.1 then.
        fcntl.ioctl(control, _SIOCSIFFLAGS, _REQUEST_FLAGS.pack(b"lo", _IFF_UP))
        for number, address in enumerate(addresses):
            for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
                value = _REQUEST_ADDRESS.pack(b"lo:%d" % number, socket.AF_INET, 0, socket.inet_aton(text))
                fcntl.ioctl(control, request, value)
