"""Functions of init's first half: what the kernel's command line asks for."""

from __future__ import annotations

import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

FIXED = "UNIT=nginx.service ROOT_FSTYPE=ext4 ROOT_UUID= HAND_OFF=keep EARLY=seen"


def unwanted(tmp_path: Path, shell: tuple[str, ...], line: str) -> str:
    """Why the stock boot is wanted; empty when it is not."""
    (tmp_path / "cmdline").write_text(f"{line}\n")
    first = resources.files("quickstart.initramfs").joinpath("init", "first").read_text()
    found = re.search(r"^read_command_line\(\) \{.*?^\}", first, re.MULTILINE | re.DOTALL)
    assert found
    function = found[0].replace("/proc/cmdline", str(tmp_path / "cmdline"))
    script = f'{FIXED}\n{function}\nread_command_line; printf %s "$unwanted"'
    done = subprocess.run([*shell, "-euc", script], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh")])
@pytest.mark.parametrize(
    "word",
    [
        *(
            "quickstart=off",
            "single",
            "emergency",
            "init=/bin/sh",
            "systemd.unit=rescue.target",
            "systemd.mask=nginx",
        ),
        # A check that somebody asks for, a root with other options or none at all, another goal of the boot.
        *(
            "fsck.mode=force",
            "forcefsck",
            "rootflags=noexec,ro",
            "rootfstype=btrfs",
            "boot=live",
            "break=premount",
        ),
        *("systemd.run=/bin/true", "systemd.volatile=yes"),
        # What PID 1 hands on to each service, and who makes the kernel's settings.
        *("systemd.setenv=HTTP_PROXY=http://x/", "systemd.cpu_affinity=0", "systemd.cpu-affinity=0"),
        *("systemd.mask=systemd-sysctl", "systemd.mask=systemd-sysctl.service"),
    ],
)
def test_who_asks_for_another_boot_gets_the_stock_one(
    tmp_path: Path, shell: tuple[str, ...], word: str
) -> None:
    assert unwanted(tmp_path, shell, f"root=UUID=1-2 ro {word} quiet") == word


@pytest.mark.parametrize(
    "words",
    [
        "",
        "quiet rw panic=10 console=ttyS0",
        "rootfstype=ext4",
        "fsck.mode=skip",
        "systemd.mask=other boot_delay=1",
    ],
)
def test_what_changes_nothing_is_no_reason(tmp_path: Path, words: str) -> None:
    assert unwanted(tmp_path, ("busybox", "sh"), f"root=UUID=1-2 ro {words}") == ""
