"""Divide our initramfs for a disk that boots by itself. The boot loader reads only part A, and init reads part B from
the root volume (docs/adr/0029-late.md).
"""

from __future__ import annotations

import os
from pathlib import Path

from quickstart.host.beneath import opened_regular
from quickstart.host.holes import copy_range
from quickstart.initramfs.payload import packing
from quickstart.model import Initramfs
from quickstart.model.words import Payload

# By these names, the script image/targets/disk/install finds the files.
LOADED, LATE = "initramfs.img", "start-set"


def divided(initramfs: Initramfs, payload: Payload, loaded: Payload, place: Path) -> dict[str, Path]:
    """The files for the disk, by their names, made in the directory ``place``. ``payload`` is the form of
    ``initramfs``, and ``loaded`` is the form that part A gets.

    Init unpacks part B only if it is a plain archive. In every other form, the boot loader reads the whole initramfs.
    """
    if payload is not Payload.CPIO:
        return {LOADED: initramfs.path}
    part_a, part_b = place / LOADED, place / LATE
    with opened_regular(initramfs.path) as fd:
        with part_a.open("xb") as file, packing(file, loaded) as sink:
            sink.write(os.pread(fd, initramfs.part_a_bytes, 0))
        with part_b.open("xb") as file:
            copy_range(fd, initramfs.part_a_bytes, initramfs.part_b_bytes, file.fileno())
    # They have what only root may read on the disk.
    for part in (part_a, part_b):
        part.chmod(0o600)
    return {LOADED: part_a, LATE: part_b}
