"""What init's first half reads out of the kernel's command line, by the host's BusyBox in a root of its own (as root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from quickstart.host import door

UNIT = "nginx.service"
USUAL = "BOOT_IMAGE=/vmlinuz root=UUID=0123 ro quiet console=ttyS0 panic=10"


def unwanted(root: Path, line: str, policy: str = "") -> str:
    """Why init boots the stock way at once with that command line; empty when it does not."""
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they chroot")
    shutil.copy(door.tool_path("busybox"), root / "busybox")
    first = resources.files("quickstart.initramfs").joinpath("init", "first")
    (root / "first").write_bytes(first.read_bytes())
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text(f"{line}\n")
    (root / "sys/fs" / policy).mkdir(parents=True)
    script = f'. /first; UNIT={UNIT}; read_command_line; echo "$unwanted"'
    done = subprocess.run(
        ["chroot", str(root), "/busybox", "sh", "-c", script],
        capture_output=True,
        env={"PATH": "/bin:/usr/sbin:/usr/bin"},
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    "words",
    [
        USUAL,
        f"{USUAL} quickstart=stay",
        f"{USUAL} systemd.mask=ssh.service systemd.mask=nginx-debug",
        f'{USUAL} dyndbg="file a.c +p" noresume',
        "",
    ],
)
def test_what_asks_for_nothing(tmp_path: Path, words: str) -> None:
    assert unwanted(tmp_path, words) == ""


@pytest.mark.parametrize(
    "word",
    [
        *("quickstart=off", "single", "s", "S", "1", "-s", "-b", "emergency", "rescue"),
        *("systemd.unit=rescue.target", "init=/bin/sh", "root=/dev/vdb1"),
        # The unit by both of its names, and who pulls it in.
        *("systemd.mask=nginx", "systemd.mask=nginx.service", "systemd.mask=multi-user.target"),
        # Of the root volume, before it is mounted or by its mount.
        *("fsck.mode=force", "forcefsck", "rootflags=noexec"),
    ],
)
def test_what_asks_for_the_stock_boot(tmp_path: Path, word: str) -> None:
    assert unwanted(tmp_path, f"{USUAL} {word} quiet") == word


@pytest.mark.parametrize(
    ("quoted", "word"),
    [
        ('"systemd.mask=nginx.service"', "systemd.mask=nginx.service"),
        ("systemd.mask='nginx'", "systemd.mask=nginx"),
        ('"rescue"', "rescue"),
        ('"quickstart=off and more"', "quickstart=off"),
        ("sys\"temd.unit=a\"'.target'", "systemd.unit=a.target"),
    ],
)
def test_quotes_hide_nothing(tmp_path: Path, quoted: str, word: str) -> None:
    assert unwanted(tmp_path, f"{quoted} {USUAL}") == word


@pytest.mark.parametrize("policy", ["selinux", "smackfs"])
def test_a_policy_that_comes_with_systemd(tmp_path: Path, policy: str) -> None:
    """The kernel makes the directory when that access control is on (sel_init of selinuxfs, smk_init of smackfs)."""
    assert unwanted(tmp_path, USUAL, policy) == (
        f"the kernel confines services ({policy}), and its policy comes with the stock init"
    )
