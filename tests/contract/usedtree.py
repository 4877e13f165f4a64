"""A small tree of a machine's files, for tests of a used disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.contract.test_ext4 import CAPABILITY


def write_tree(tree: Path, programs: Iterable[str]) -> None:
    """A kernel with its initramfs, and ``programs`` with the owner 1234:2345, each with its own name as its content. One
    of them has capabilities, another one has a second name, and a link leads to it.
    """
    if os.geteuid() != 0:
        pytest.fail("run the contract tests as root: they write files of other owners")
    for name in ("boot", "usr/bin", "etc"):
        (tree / name).mkdir(parents=True)
    (tree / "boot/vmlinuz-6.1.0-1").write_text("kernel")
    (tree / "boot/initrd.img-6.1.0-1").write_text("initrd")
    for name in ("usr/bin/plain", "usr/bin/able", *programs):
        (tree / name).write_text(name)
        (tree / name).chmod(0o755)
        os.chown(tree / name, 1234, 2345)
        os.utime(tree / name, ns=(1, 1_600_000_000 * 10**9))
    os.setxattr(tree / "usr/bin/able", "security.capability", CAPABILITY)
    (tree / "usr/bin/second").hardlink_to(tree / "usr/bin/plain")
    (tree / "usr/bin/link").symlink_to("plain")
