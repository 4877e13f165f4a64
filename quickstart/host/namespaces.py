"""Make namespaces for programs. There are mount and PID namespaces for work inside an image, and a network namespace
for programs that need no network.
"""

from __future__ import annotations

from pathlib import Path


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
