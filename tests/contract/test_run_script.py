"""The host's own shell runs an artefact's run.sh, with a QEMU that only prints its arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quickstart.artefact.directory import run_script
from quickstart.artefact.manifest import read_manifest
from quickstart.image.kerneloptions import stock_line, with_options
from quickstart.model.words import KernelOptions
from tests.unit.outs import SUPERBLOCK, write_manifest

STOCK = stock_line(SUPERBLOCK.uuid)
FAST = with_options(STOCK, KernelOptions.BOOT)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An OUT that was built with kernel options, and a QEMU in bin/."""
    write_manifest(tmp_path, cmdline=FAST, stock_cmdline=STOCK, kernel_options="boot")
    (tmp_path / "run.sh").write_text(run_script(read_manifest(tmp_path)))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/qemu-system-x86_64"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return tmp_path


def asked_for(out: Path, *words: str) -> dict[str, str]:
    """What QEMU is to boot: its words by the option before them."""
    env = {**os.environ, "PATH": f"{out / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", str(out / "run.sh"), *words], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    said = done.stdout.splitlines()
    return {name: said[said.index(name) + 1] for name in ("-kernel", "-initrd", "-append")}


def test_our_initramfs_is_booted_with_the_kernel_options(out: Path) -> None:
    assert asked_for(out) == {"-kernel": "vmlinuz", "-initrd": "initramfs.img", "-append": FAST}


def test_the_stock_entry_is_booted_with_the_stock_line(out: Path) -> None:
    assert asked_for(out, "stock") == {"-kernel": "vmlinuz", "-initrd": "initrd.img", "-append": STOCK}


def test_an_artefact_that_never_starts_early_boots_the_stock_entry(out: Path) -> None:
    write_manifest(out, cmdline=FAST, stock_cmdline=STOCK, kernel_options="boot", early="never")
    (out / "run.sh").write_text(run_script(read_manifest(out)))
    assert asked_for(out) == {"-kernel": "vmlinuz", "-initrd": "initrd.img", "-append": STOCK}
    assert asked_for(out, "fast") == {"-kernel": "vmlinuz", "-initrd": "initramfs.img", "-append": FAST}
