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
    out = tmp_path / "a, b"
    out.mkdir()
    write_manifest(out, cmdline=FAST, stock_cmdline=STOCK, kernel_options="boot")
    (out / "run.sh").write_text(run_script(read_manifest(out)))
    (out / "bin").mkdir()
    program = out / "bin/qemu-system-x86_64"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\npwd\n')
    program.chmod(0o755)
    return out


def asked_for(out: Path, *words: str) -> dict[str, str]:
    """What QEMU is to boot: its words by the option before them."""
    env = {**os.environ, "PATH": f"{out / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", str(out / "run.sh"), *words], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    said = done.stdout.splitlines()
    return {name: said[said.index(name) + 1] for name in ("-kernel", "-initrd", "-append", "-drive")}


def booting(out: Path, initrd: str, line: str) -> dict[str, str]:
    disk = str(out / "root.raw").replace(",", ",,")
    drive = f"file={disk},format=raw,if=none,id=root"
    return {"-kernel": str(out / "vmlinuz"), "-initrd": str(out / initrd), "-append": line, "-drive": drive}


def test_our_initramfs_is_booted_with_the_kernel_options(out: Path) -> None:
    assert asked_for(out) == booting(out, "initramfs.img", FAST)


def test_the_stock_entry_is_booted_with_the_stock_line(out: Path) -> None:
    assert asked_for(out, "stock") == booting(out, "initrd.img", STOCK)


def test_an_artefact_that_never_starts_early_boots_the_stock_entry(out: Path) -> None:
    write_manifest(out, cmdline=FAST, stock_cmdline=STOCK, kernel_options="boot", early="never")
    (out / "run.sh").write_text(run_script(read_manifest(out)))
    assert asked_for(out) == booting(out, "initrd.img", STOCK)
    assert asked_for(out, "fast") == booting(out, "initramfs.img", FAST)


def test_qemu_finds_no_firmware_in_the_artefact(out: Path) -> None:
    """QEMU 7.2 looks for bios-256k.bin in its working directory before its own (softmmu/datadir.c, qemu_find_file)."""
    env = {**os.environ, "PATH": f"{out / 'bin'}:{os.environ['PATH']}", "CDPATH": "/:."}
    done = subprocess.run(
        ["sh", "run.sh"], cwd=out, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "/"
