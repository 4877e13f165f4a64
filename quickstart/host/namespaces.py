"""Mount and PID namespaces for what works inside an image."""

from __future__ import annotations

from pathlib import Path


def own_namespaces() -> tuple[str, ...]:
    """The beginning of an argv, unshare(1): all that is mounted or started there ends with the command."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    # In a bare chroot "/" is no mount, and there is nothing whose propagation could be changed.
    propagation = "private" if any(fields[4] == "/" for fields in mounts) else "unchanged"
    options = ("--mount", "--propagation", propagation, "--pid", "--fork", "--kill-child=SIGKILL")
    return ("unshare", *options, "--")
