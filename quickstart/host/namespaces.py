"""Mount and PID namespaces for what works inside an image, a network one for what talks to nobody else."""

from __future__ import annotations

from pathlib import Path


def own_namespaces(*, network: bool = False) -> tuple[str, ...]:
    """The beginning of an argv, unshare(1): all that is mounted or started there ends with the command.

    With ``network`` it has a network of its own, whose interfaces end with it, too; and nothing of System V or POSIX (sysvipc(7),
    mq_overview(7)) in common with others of its user.
    """
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    # In a bare chroot "/" is no mount, and there is nothing whose propagation could be changed.
    propagation = "private" if any(fields[4] == "/" for fields in mounts) else "unchanged"
    options = ("--mount", "--propagation", propagation, "--pid", "--fork", "--kill-child=SIGKILL")
    return ("unshare", *options, *(("--net", "--ipc") if network else ()), "--")
