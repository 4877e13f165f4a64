"""The functions of init's scripts, in a root of their own. The host's BusyBox runs them (as root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door


def said(root: Path, script: str, within: tuple[str, ...] = ()) -> str:
    """What the script prints after the functions of init's first half were read. ``within`` is a command that starts it."""
    lay_out(root, "first", ("grep", "head", "od", "sed", "tr"))
    return printed(root, f"ROOT_FSTYPE=ext4; . /first; {script}", within)


def lay_out(root: Path, name: str, applets: Iterable[str]) -> None:
    """Put BusyBox with these applets into ``root``, and the script ``name`` of init."""
    shutil.copy(door.tool_path("busybox"), root / "busybox")
    text = resources.files("quickstart.initramfs").joinpath("init", name).read_bytes()
    (root / name).write_bytes(text)
    for directory in ("bin", "dev"):
        (root / directory).mkdir(exist_ok=True)
    (root / "dev/null").touch()
    for applet in applets:
        if not (root / "bin" / applet).is_symlink():
            (root / "bin" / applet).symlink_to("/busybox")


def printed(root: Path, script: str, within: tuple[str, ...] = ()) -> str:
    """What the script prints, with ``root`` as its root directory. It writes nothing to stderr."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    done = subprocess.run(
        [*within, "chroot", str(root), "/busybox", "sh", "-c", script],
        capture_output=True,
        env={"PATH": "/bin:/usr/sbin:/usr/bin"},
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode().strip()
