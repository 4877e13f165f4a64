"""Namespaces: mount and PID namespaces for work inside an image, and a network namespace for programs that need no network."""

from __future__ import annotations

from pathlib import Path


def own_namespaces(*, network: bool = False) -> tuple[str, ...]:
    """The first words of an argv, with unshare(1). The command gets its own mounts and process IDs, which end
    with it.

    With ``network``, the command also gets its own network, whose interfaces end with it. The command then
    shares no System V or POSIX IPC (sysvipc(7), mq_overview(7)) with other programs of its user.
    """
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    # In a bare chroot "/" is no mount, and there is nothing whose propagation could be changed.
    propagation = "private" if any(fields[4] == "/" for fields in mounts) else "unchanged"
    options = ("--mount", "--propagation", propagation, "--pid", "--fork", "--kill-child=SIGKILL")
    return ("unshare", *options, *(("--net", "--ipc") if network else ()), "--")
