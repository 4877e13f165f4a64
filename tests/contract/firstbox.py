"""The functions of init's first half, in a root of their own. The host's BusyBox runs them (as root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door


def said(root: Path, script: str, within: tuple[str, ...] = ()) -> str:
    """What the script prints after init's functions were read. ``within`` is a command that starts it."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    shutil.copy(door.tool_path("busybox"), root / "busybox")
    first = resources.files("quickstart.initramfs").joinpath("init", "first")
    (root / "first").write_bytes(first.read_bytes())
    for name in ("bin", "dev"):
        (root / name).mkdir(exist_ok=True)
    (root / "dev/null").touch()
    for name in ("grep", "head", "od", "sed", "tr"):
        if not (root / "bin" / name).is_symlink():
            (root / "bin" / name).symlink_to("/busybox")
    done = subprocess.run(
        [*within, "chroot", str(root), "/busybox", "sh", "-c", f"ROOT_FSTYPE=ext4; . /first; {script}"],
        capture_output=True,
        env={"PATH": "/bin:/usr/sbin:/usr/bin"},
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode().strip()
