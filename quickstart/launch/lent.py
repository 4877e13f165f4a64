"""Open the descriptors that our process passes to QEMU. These are descriptors of the root volume and of the channels
between QEMU and us.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from quickstart.errors import GuestError
from quickstart.host.beneath import open_regular
from quickstart.model.machine import Machine, NbdSocket


def lent_disk(machine: Machine, lent: ExitStack) -> int | None:
    """The descriptor of the root volume for QEMU. The descriptor is that of the open disk file, or of a connection to
    the volume's NBD server. The result is None for a machine without a disk.
    """
    if machine.disk is None:
        return None
    if isinstance(machine.disk, NbdSocket):
        served = lent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            served.connect(str(machine.disk.path))
        except OSError as error:
            raise GuestError(f"the root volume cannot be reached: {error.strerror}") from error
        return served.fileno()
    fd = open_regular(machine.disk, writable=not machine.snapshot)
    lent.callback(os.close, fd)
    return fd


def lent_pair(stack: ExitStack, lent: ExitStack) -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection between our process and QEMU, as (our end, QEMU's end). Our process closes QEMU's
    end as soon as QEMU has a copy of this end.
    """
    ours, theirs = socket.socketpair()
    return stack.enter_context(ours), lent.enter_context(theirs)
